//! A file that grows while it is read.

use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How a fill ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FillEnd {
    /// The file is complete, and verified.
    Complete,
    /// It never will be: whoever reads it must tell its client that something went wrong.
    Failed(Arc<str>),
}

/// How far a fill has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that may be read, from the beginning of the file.
    pub readable: u64,
    /// Whether there will be no more, and why.
    pub end: Option<FillEnd>,
}

/// What the upstream said before the first byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// The file comes; its length, if that is known.
    Comes(Option<u64>),
    /// The upstream does not have it.
    Absent,
    /// It can't be asked.
    Unavailable(String),
}

/// A NAR on its way from an upstream, shared by all who want it. Nobody holds a thread for it but the one that fetches.
pub struct Fill {
    file: Arc<File>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    start: Option<Start>,
    written: u64,
    length: Option<u64>,
    end: Option<FillEnd>,
    /// Whom to call once there is more than so many bytes.
    wakers: Vec<(u64, Waker)>,
}

type Waker = Box<dyn FnOnce() + Send>;

impl Fill {
    pub(super) fn new(file: File) -> Self {
        Self { file: Arc::new(file), state: Mutex::default(), changed: Condvar::new() }
    }

    /// The file, of which as much may be read as [`progress`](Self::progress) says.
    pub const fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        self.lock().progress()
    }

    /// Calls `wake` once there is more to read than `beyond` bytes, or the end is known; at once if that is so. It must not block.
    pub fn when_beyond(&self, beyond: u64, wake: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        let progress = state.progress();
        if progress.readable > beyond || progress.end.is_some() {
            drop(state);
            wake();
        } else {
            state.wakers.push((beyond, Box::new(wake)));
        }
    }

    /// Waits for what the upstream says first.
    pub(super) fn start(&self, patience: Duration) -> Option<Start> {
        let state = self.changed.wait_timeout_while(self.lock(), patience, |state| state.start.is_none());
        state.unwrap_or_else(PoisonError::into_inner).0.start.clone()
    }

    /// Waits for the end.
    pub(super) fn wait_for_end(&self, patience: Duration) {
        // Whoever waits does nothing with it.
        drop(self.changed.wait_timeout_while(self.lock(), patience, |state| state.end.is_none()));
    }

    /// Says what the upstream said.
    pub(super) fn starts(&self, start: Start) {
        let mut state = self.lock();
        if let Start::Comes(length) = start {
            state.length = length;
        }
        state.start.get_or_insert(start);
        self.changed.notify_all();
    }

    /// So many bytes are in the file.
    pub(super) fn wrote(&self, written: u64) {
        let mut state = self.lock();
        state.written = written;
        let readable = state.progress().readable;
        let due: Vec<_> = state.wakers.extract_if(.., |(beyond, _)| readable > *beyond).collect();
        drop(state);
        due.into_iter().for_each(|(_, wake)| wake());
    }

    /// Says how it ended; the first one counts.
    pub(super) fn ends(&self, end: FillEnd) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        state.start.get_or_insert(Start::Unavailable("the fetch ended before it began".to_owned()));
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.changed.notify_all();
        wakers.into_iter().for_each(|(_, wake)| wake());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The last byte of a known length is held back until all are verified: no client can take a wrong NAR for a whole one.
    fn progress(&self) -> Progress {
        let complete = self.end == Some(FillEnd::Complete);
        let held_back = self.length.filter(|_| !complete).map_or(u64::MAX, |length| length.saturating_sub(1));
        Progress { readable: self.written.min(held_back), end: self.end.clone() }
    }
}

impl std::fmt::Debug for Fill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fill({:?})", self.progress())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn the_last_byte_waits_for_the_verdict() {
        let fill = Fill::new(tempfile::tempfile().unwrap());
        fill.starts(Start::Comes(Some(10)));
        fill.wrote(4);
        assert_eq!(fill.progress(), Progress { readable: 4, end: None });
        fill.wrote(10);
        assert_eq!(fill.progress(), Progress { readable: 9, end: None });
        fill.ends(FillEnd::Complete);
        fill.ends(FillEnd::Failed("too late".into()));
        assert_eq!(fill.progress(), Progress { readable: 10, end: Some(FillEnd::Complete) });
    }

    #[test]
    fn whoever_waits_is_woken_once() {
        let fill = Fill::new(tempfile::tempfile().unwrap());
        let woken = Arc::new(AtomicUsize::new(0));
        let wake = || {
            let woken = Arc::clone(&woken);
            move || {
                woken.fetch_add(1, Ordering::Relaxed);
            }
        };
        fill.when_beyond(0, wake());
        assert_eq!(woken.load(Ordering::Relaxed), 0);
        fill.wrote(5);
        fill.wrote(6);
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        fill.when_beyond(5, wake());
        fill.when_beyond(6, wake());
        fill.when_beyond(9, wake());
        assert_eq!(woken.load(Ordering::Relaxed), 2);
        fill.wrote(8);
        fill.ends(FillEnd::Failed("no".into()));
        assert_eq!(woken.load(Ordering::Relaxed), 4);
        assert_eq!(fill.start(Duration::ZERO), Some(Start::Unavailable("the fetch ended before it began".to_owned())));
    }
}
