//! The queue through which other threads reach a shard that may be asleep in its driver.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam_queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};

use crate::io::doorbell::Doorbell;

/// A queue with many senders and one receiver. It wakes the receiver if that sleeps in a driver.
pub(crate) struct WakeQueue<M> {
    queue: SegQueue<M>,
    doorbell: Doorbell,
    waker: Waker,
    /// The receiver has ended.
    closed: AtomicBool,
}

impl<M> std::fmt::Debug for WakeQueue<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WakeQueue").field("closed", &self.closed).finish_non_exhaustive()
    }
}

/// Interrupts a driver's `wait`.
#[derive(Debug)]
pub(crate) enum Waker {
    Eventfd(OwnedFd),
    /// For a receiver that never sleeps.
    #[cfg(any(test, feature = "sim"))]
    Nobody,
}

impl Waker {
    fn wake(&self) {
        match self {
            // This can only fail if the counter is about to overflow, and then the receiver is awake anyway.
            Self::Eventfd(fd) => drop(rustix::io::write(fd, &1u64.to_ne_bytes())),
            #[cfg(any(test, feature = "sim"))]
            Self::Nobody => {}
        }
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Eventfd(fd) => Some(fd.as_fd()),
            #[cfg(any(test, feature = "sim"))]
            Self::Nobody => None,
        }
    }
}

impl<M> WakeQueue<M> {
    /// A queue that wakes through an eventfd.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self::woken_by(Waker::Eventfd(fd)))
    }

    fn woken_by(waker: Waker) -> Arc<Self> {
        let (queue, doorbell) = (SegQueue::new(), Doorbell::new());
        Arc::new(Self { queue, doorbell, waker, closed: AtomicBool::new(false) })
    }

    /// A queue of the simulated server.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn simulated() -> Arc<Self> {
        Self::woken_by(Waker::Nobody)
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Any thread: sends a message. Once the receiver has ended, the message is dropped with everything it holds (a
    /// socket is closed).
    pub(crate) fn post(&self, message: M) {
        self.queue.push(message);
        // Starts with a fence, which pairs with the one in `close`: either this thread sees that the receiver has ended,
        // or the receiver sees the message in its last look.
        if self.doorbell.has_to_wake() {
            self.waker.wake();
        }
        if self.closed.load(Ordering::Relaxed) {
            while self.queue.pop().is_some() {}
        }
    }

    /// Receiver: closes the queue. It then takes the messages that are left.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Receiver: announces that it is about to sleep. Returns `false` if there is a message, and it must not.
    pub(crate) fn may_sleep(&self) -> bool {
        self.doorbell.may_sleep(|| self.queue.is_empty())
    }

    /// Receiver: it is awake.
    pub(crate) fn awake(&self) {
        self.doorbell.awake();
    }

    /// Receiver: the next message.
    pub(crate) fn take(&self) -> Option<M> {
        // A check costs less than a pop, which starts with a fence.
        if self.queue.is_empty() {
            return None;
        }
        self.doorbell.has_message();
        self.queue.pop()
    }
}
