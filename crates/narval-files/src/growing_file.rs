//! A file that grows while it is read.

use std::fs::File;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::permits::Permit;

/// How long a fetch continues after its last reader has left: a client that lost its connection may resume.
pub const ABANDONED_AFTER: Duration = Duration::from_secs(2);

/// How a fill ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FillEnd {
    /// The file is complete, and verified.
    Complete,
    /// It never will be: its readers must report an error to their clients.
    Failed(Arc<str>),
}

/// The progress of a fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that may be read, from the start of the file.
    pub readable: u64,
    /// How it ended, if it has.
    pub end: Option<FillEnd>,
}

/// How a fetch starts: known before the first byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// The file follows; its length, if known.
    Comes(Option<u64>),
    /// There is no such file.
    Absent,
    /// It cannot be reached.
    Unavailable(String),
}

/// Somebody who waits for a fill, until this is dropped.
#[derive(Debug)]
pub struct Waits(Arc<GrowingFile>);

/// A file that is being fetched, shared by all its readers. Only the fetch itself holds a thread.
pub struct GrowingFile {
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
    /// How many wait for it.
    waiting: usize,
    /// Since when nobody waits for it any more.
    left: Option<Instant>,
    abandoned: bool,
    /// Functions to call once there are more than this many bytes.
    wakers: Vec<(u64, Waker)>,
}

type Waker = Box<dyn FnOnce() + Send>;

impl GrowingFile {
    /// A file that has not started.
    pub fn new(file: File) -> Self {
        Self { file: Arc::new(file), state: Mutex::default(), changed: Condvar::new() }
    }

    /// The file; only the bytes that [`progress`](Self::progress) reports may be read.
    pub const fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// The current progress.
    pub fn progress(&self) -> Progress {
        self.state.lock().progress()
    }

    /// The file's length, if it has started and that is known.
    pub fn length(&self) -> Option<u64> {
        self.state.lock().length
    }

    /// Registers somebody who waits for it; `None` if it has been abandoned.
    pub fn waits(self: &Arc<Self>) -> Option<Waits> {
        let mut state = self.state.lock();
        if state.abandoned {
            return None;
        }
        state.waiting += 1;
        state.left = None;
        Some(Waits(Arc::clone(self)))
    }

    /// Whether the fetch should stop, because all have left who waited for it, [`ABANDONED_AFTER`] ago. It has ended then.
    pub fn is_abandoned(&self) -> bool {
        let mut state = self.state.lock();
        if state.end.is_none() && state.left.is_some_and(|left| left.elapsed() >= ABANDONED_AFTER) {
            state.abandoned = true;
            state.end = Some(FillEnd::Failed("nobody waited for it any more".into()));
        }
        state.abandoned
    }

    /// Calls `wake` once there are more than `beyond` bytes to read, or it has ended; immediately if that is already
    /// so. `wake` must not block.
    pub fn when_beyond(&self, beyond: u64, wake: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        let progress = state.progress();
        if progress.readable > beyond || progress.end.is_some() {
            drop(state);
            wake();
        } else {
            state.wakers.push((beyond, Box::new(wake)));
        }
    }

    /// Waits until the fetch has started: with a permit, unless it has already. Threads must stay free for files that need no fetch.
    /// `None`: it takes longer.
    ///
    /// # Errors
    /// Those of `permit`.
    pub fn start<E>(&self, patience: Duration, permit: impl FnOnce() -> Result<Permit, E>) -> Result<Option<Start>, E> {
        let mut state = self.state.lock();
        if state.start.is_none() {
            let _permit = permit()?;
            self.changed.wait_while_for(&mut state, |state| state.start.is_none(), patience);
        }
        Ok(state.start.clone())
    }

    /// Waits for the end.
    pub fn wait_for_end(&self, patience: Duration) {
        // The guard is not needed.
        self.changed.wait_while_for(&mut self.state.lock(), |state| state.end.is_none(), patience);
    }

    /// Sets how the fetch has started.
    pub fn starts(&self, start: Start) {
        let mut state = self.state.lock();
        if let Start::Comes(length) = start {
            state.length = length;
        }
        state.start.get_or_insert(start);
        self.changed.notify_all();
    }

    /// Sets how many bytes are in the file.
    pub fn wrote(&self, written: u64) {
        let mut state = self.state.lock();
        state.written = written;
        let readable = state.progress().readable;
        let due: Vec<_> = state.wakers.extract_if(.., |(beyond, _)| readable > *beyond).collect();
        drop(state);
        due.into_iter().for_each(|(_, wake)| wake());
    }

    /// Sets how it ended; only the first call counts.
    pub fn ends(&self, end: FillEnd) {
        let mut state = self.state.lock();
        state.end.get_or_insert(end);
        state.start.get_or_insert(Start::Unavailable("the fetch ended before it started".to_owned()));
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        self.changed.notify_all();
        wakers.into_iter().for_each(|(_, wake)| wake());
    }
}

impl Deref for Waits {
    type Target = Arc<GrowingFile>;

    fn deref(&self) -> &Arc<GrowingFile> {
        &self.0
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.waiting -= 1;
        if state.waiting == 0 {
            state.left = Some(Instant::now());
        }
    }
}

impl State {
    /// If the length is known, the last byte is withheld until everything is verified: no client can take a wrong NAR
    /// for a complete one.
    fn progress(&self) -> Progress {
        let complete = self.end == Some(FillEnd::Complete);
        let held_back = self.length.filter(|_| !complete).map_or(u64::MAX, |length| length.saturating_sub(1));
        Progress { readable: self.written.min(held_back), end: self.end.clone() }
    }
}

impl std::fmt::Debug for GrowingFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Fill({:?})", self.progress())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn the_last_byte_is_withheld_until_verified() {
        let fill = GrowingFile::new(tempfile::tempfile().unwrap());
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
    fn each_waiter_is_woken_once() {
        let fill = GrowingFile::new(tempfile::tempfile().unwrap());
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
        let start = fill.start(Duration::ZERO, || Err("it waits"));
        assert_eq!(start, Ok(Some(Start::Unavailable("the fetch ended before it started".to_owned()))));
    }
}
