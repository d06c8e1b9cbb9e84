//! Waits until something may have changed: inotify on the folders of the database and of the queue.
//!
//! An inotify event is only a reason to check, and checks also happen periodically: a folder may be on a file system
//! without events, or be replaced.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;

/// Waits for changes in folders, or for [`Waker::wake`].
pub(super) struct Waker {
    folders: Vec<PathBuf>,
    inotify: Option<OwnedFd>,
    woken: OwnedFd,
}

impl Waker {
    /// Watches folders. One that cannot be watched is checked periodically.
    pub(super) fn new(folders: &[&Path]) -> std::io::Result<Self> {
        let woken = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let folders: Vec<PathBuf> = folders.iter().map(|folder| folder.to_path_buf()).collect();
        let make = || {
            let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
            watch(&inotify, &folders)?;
            Ok::<_, Errno>(inotify)
        };
        let inotify = make().inspect_err(|error| tracing::debug!(%error, "no inotify; checking periodically")).ok();
        Ok(Self { folders, inotify, woken })
    }

    /// Whether changes are reported.
    pub(super) const fn is_told(&self) -> bool {
        self.inotify.is_some()
    }

    /// Ends a wait, this one or the next.
    pub(super) fn wake(&self) {
        // It can only fail because it is full, and then the wait has ended.
        let _ = rustix::io::write(&self.woken, &1_u64.to_ne_bytes());
    }

    /// Waits for a change, at most this long. Returns whether there was one.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        let mut handles = vec![PollFd::new(&self.woken, PollFlags::IN)];
        handles.extend(self.inotify.as_ref().map(|inotify| PollFd::new(inotify, PollFlags::IN)));
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match poll(&mut handles, Timespec::try_from(left).ok().as_ref()) {
                Err(Errno::INTR) => continue,
                Ok(count) if count > 0 => {}
                _ => {
                    // A folder may have been replaced. If it cannot be watched now, the next wait tries it again.
                    let _ = self.inotify.as_ref().map(|inotify| watch(inotify, &self.folders));
                    return false;
                }
            }
            let is_change = handles.get(1).is_some_and(|handle| !handle.revents().is_empty());
            drain(&self.woken);
            if let Some(inotify) = &self.inotify {
                drain(inotify);
            }
            return is_change;
        }
    }

    /// Waits until nothing has changed for `quiet`, but at most `longest`.
    pub(super) fn settle(&self, quiet: Duration, longest: Duration, is_over: impl Fn() -> bool) {
        let until = Instant::now() + longest;
        while !is_over() && Instant::now() < until && self.wait(quiet) {}
    }
}

/// Watches folders; those that are watched already stay so.
fn watch(inotify: &OwnedFd, folders: &[PathBuf]) -> Result<(), Errno> {
    let changes = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO;
    folders.iter().try_for_each(|folder| inotify::add_watch(inotify, folder, changes).map(drop))
}

/// Reads everything available.
fn drain(handle: impl AsFd) {
    let mut buffer = [0_u8; 4096];
    while rustix::io::read(&handle, &mut buffer).is_ok_and(|len| len > 0) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn changes_end_a_wait() {
        let dir = tempfile::tempdir().unwrap();
        let waker = Waker::new(&[dir.path()]).unwrap();
        assert!(waker.is_told() && !waker.wait(Duration::from_millis(1)));
        std::fs::write(dir.path().join("a"), "x").unwrap();
        assert!(waker.wait(LONG));
        assert!(!waker.wait(Duration::from_millis(1)), "once for all of them");
        std::fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        waker.settle(Duration::from_millis(1), LONG, || false);
        waker.wake();
        assert!(!waker.wait(LONG), "woken, and nothing has changed");
        let missing = Waker::new(&[&dir.path().join("missing")]).unwrap();
        assert!(!missing.is_told());
    }
}
