//! Ending a watcher, and what its threads tell each other until then.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::wake::Waker;
use narval_transfer::Progress;

/// Stops a watcher from another thread. Undelivered paths stay recorded.
#[derive(Clone, Default)]
pub struct Stop(Arc<Shared>);

/// Shared by the threads of a watcher.
#[derive(Default)]
struct Shared {
    is_stopped: AtomicBool,
    is_finishing: AtomicBool,
    progress: Progress,
    /// Counts changes: collected paths, and the request to stop.
    changes: Mutex<Changes>,
    changed: Condvar,
    waker: OnceLock<Waker>,
}

#[derive(Clone, Copy, Default)]
struct Changes {
    count: u64,
    /// No more paths will be collected.
    is_over: bool,
}

impl Stop {
    /// Stops the watcher soon. May be called at any time, also before it runs.
    pub fn stop(&self) {
        self.0.is_stopped.store(true, Ordering::Relaxed);
        self.0.progress.interrupt();
        if let Some(waker) = self.0.waker.get() {
            waker.wake();
        }
        self.change(false);
    }

    /// Has the watcher look once more, deliver what it has found, and end. It tries until it is [stopped](Self::stop).
    pub fn finish(&self) {
        self.0.is_finishing.store(true, Ordering::Relaxed);
        if let Some(waker) = self.0.waker.get() {
            waker.wake();
        }
        self.change(false);
    }

    /// Whether it was told to finish.
    pub(super) fn is_finishing(&self) -> bool {
        self.0.is_finishing.load(Ordering::Relaxed)
    }

    /// Whether it was told to stop.
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped.load(Ordering::Relaxed)
    }

    /// What wakes the thread that collects.
    pub(super) fn wake_by(&self, waker: Waker) -> &Waker {
        self.0.waker.get_or_init(|| waker)
    }

    /// What interrupts what it waits for.
    pub fn progress(&self) -> &Progress {
        &self.0.progress
    }

    /// Says that something was collected, or that nothing more will be.
    pub(super) fn change(&self, is_over: bool) {
        let mut changes = self.0.changes.lock();
        changes.count += 1;
        changes.is_over |= is_over;
        drop(changes);
        self.0.changed.notify_all();
    }

    /// The number of changes so far, and whether no more paths will be collected.
    pub(super) fn changes(&self) -> (u64, bool) {
        let changes = self.0.changes.lock();
        (changes.count, changes.is_over)
    }

    /// Waits until there are more changes than `seen`, but at most this long.
    pub(super) fn wait(&self, seen: u64, timeout: Duration) {
        let more = |changes: &mut Changes| changes.count == seen && !self.is_stopped();
        self.0.changed.wait_while_for(&mut self.0.changes.lock(), more, timeout);
    }

    /// Sleeps for this long, or until the watcher must stop.
    pub fn pause(&self, timeout: Duration) {
        self.pause_while(timeout, |_| true);
    }

    /// The same, and also ends when no more paths will be collected, unless that was so before.
    pub(super) fn pause_or_over(&self, timeout: Duration, was_over: bool) {
        self.pause_while(timeout, |changes| changes.is_over == was_over);
    }

    fn pause_while(&self, timeout: Duration, as_long_as: impl Fn(&Changes) -> bool) {
        let waits = |changes: &mut Changes| !self.is_stopped() && as_long_as(changes);
        self.0.changed.wait_while_for(&mut self.0.changes.lock(), waits, timeout);
    }
}
