use std::collections::VecDeque;
use std::mem;

use crate::limits::HTTP2_HELD_MAX;

/// Which stream is next, and how much is produced for all of them. A stream with something to send is in one of the queues, and knows
/// that it is; one that was reset since may still be there.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// They can send now.
    ready: Queue,
    /// They can once the window of the connection is open.
    windowless: Queue,
    /// Their next piece is not produced while too much is held.
    hungry: VecDeque<u32>,
    /// One of these pieces must be produced anyway.
    is_starved: bool,
    /// Pieces that are being produced.
    making: usize,
    /// Bytes that are produced but not sent, plus those being produced.
    held: usize,
}

/// Small and large bodies alternate, so that neither waits for all of the others.
#[derive(Debug, Default)]
struct Queue {
    small: VecDeque<u32>,
    large: VecDeque<u32>,
    is_small_next: bool,
}

impl Turns {
    /// Queues a stream. `is_windowless`: it waits for the window of the connection.
    pub(super) fn push(&mut self, stream: u32, is_small: bool, is_windowless: bool) {
        let queue = if is_windowless { &mut self.windowless } else { &mut self.ready };
        if is_small { queue.small.push_back(stream) } else { queue.large.push_back(stream) }
    }

    /// Queues a stream until less is held.
    pub(super) fn push_hungry(&mut self, stream: u32) {
        self.hungry.push_back(stream);
    }

    /// Takes the next stream. `is_open`: the window of the connection is.
    pub(super) fn pop(&mut self, is_open: bool) -> Option<u32> {
        let waited = if is_open { self.windowless.pop() } else { None };
        waited.or_else(|| self.ready.pop()).or_else(|| {
            if !self.is_hungry_alone() {
                return None;
            }
            self.is_starved = true;
            self.hungry.pop_front()
        })
    }

    /// Takes the next stream whose piece may be produced now.
    pub(super) fn pop_hungry(&mut self) -> Option<u32> {
        if self.held < HTTP2_HELD_MAX { self.hungry.pop_front() } else { None }
    }

    /// A stream is gone. A client that keeps the window closed must not make the queue grow.
    pub(super) fn remove(&mut self, stream: u32) {
        self.windowless.small.retain(|id| *id != stream);
        self.windowless.large.retain(|id| *id != stream);
    }

    /// No stream sends any more.
    pub(super) fn clear(&mut self) {
        self.ready = Queue::default();
    }

    /// Whether a stream can send.
    pub(super) fn has_ready(&self, is_open: bool) -> bool {
        !self.ready.is_empty() || (is_open && self.has_windowless())
    }

    /// Whether a stream waits for the window of the connection.
    pub(super) fn has_windowless(&self) -> bool {
        !self.windowless.is_empty()
    }

    /// Whether all remaining streams wait for memory that nothing else will free: nothing else can be sent, and nothing is being
    /// produced. Memory held elsewhere must not block them.
    pub(super) fn is_hungry_alone(&self) -> bool {
        self.making == 0 && !self.hungry.is_empty()
    }

    /// Whether another piece may be produced.
    pub(super) fn may_make(&mut self) -> bool {
        self.held < HTTP2_HELD_MAX || mem::take(&mut self.is_starved)
    }

    /// A worker produces about this many bytes.
    pub(super) fn making(&mut self, bytes: usize) {
        self.held += bytes;
        self.making += 1;
    }

    /// It is done.
    pub(super) fn made(&mut self, bytes: usize) {
        self.held = self.held.saturating_sub(bytes);
        self.making -= 1;
    }

    /// A stream holds this much.
    pub(super) fn hold(&mut self, had: usize, has: usize) {
        self.held = (self.held + has).saturating_sub(had);
    }

    /// Bytes that are produced or being produced, and not sent.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Whether a stream is queued, once at most; it `is_queued` as it says.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn check(&self, stream: u32, is_queued: bool) {
        let queues = [&self.ready, &self.windowless].into_iter().flat_map(|queue| [&queue.small, &queue.large]);
        let places = queues.chain([&self.hungry]).flatten().filter(|id| **id == stream).count();
        assert_eq!(places, usize::from(is_queued), "stream {stream} in {self:?}");
    }
}

impl Queue {
    fn pop(&mut self) -> Option<u32> {
        self.is_small_next = !self.is_small_next;
        let (first, second) = match self.is_small_next {
            true => (&mut self.small, &mut self.large),
            false => (&mut self.large, &mut self.small),
        };
        first.pop_front().or_else(|| second.pop_front())
    }

    fn is_empty(&self) -> bool {
        self.small.is_empty() && self.large.is_empty()
    }
}
