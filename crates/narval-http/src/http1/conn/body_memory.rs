//! The memory for the request bodies of all connections.
//!
//! A body that is being received may use a share of the free memory (1/[`SHARES`]): a few bodies may be large, many
//! must be small. Switches share their buffers among ports in this way (Choudhury and Hahne, "Dynamic queue length
//! thresholds for shared-memory packet switches", 1998). A quarter of the memory is reserved for small bodies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The share of the free memory that one body may use: 1/64.
const SHARES: usize = 64;

/// A body up to this size in bytes may use all free memory.
const SMALL: usize = 16 * 1024;

/// Counts the memory used by bodies.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    used: AtomicUsize,
    /// Bytes that handlers received themselves, which use no memory here.
    received_by_handlers: AtomicU64,
    bytes_max: usize,
}

impl BodyMemory {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), received_by_handlers: AtomicU64::new(0), bytes_max })
    }

    /// Bytes in use.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes of bodies that handlers have received themselves.
    pub(crate) fn received_by_handlers(&self) -> u64 {
        self.received_by_handlers.load(Ordering::Relaxed)
    }

    /// Whether so much is in use that bodies without progress should lose their share.
    pub(crate) fn is_short(&self) -> bool {
        self.used() > self.bytes_max / 2
    }
}

/// The memory used by one body; released when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<BodyMemory>,
    bytes: usize,
}

impl Share {
    /// An empty share.
    pub(crate) fn of(memory: &Arc<BodyMemory>) -> Self {
        Self { memory: memory.clone(), bytes: 0 }
    }

    /// Bytes of this body.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds bytes. The limit is checked afterwards, because received bytes must be stored in any case.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.memory.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Releases bytes.
    pub(crate) fn give_back(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.memory.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that the body's handler has received itself.
    pub(crate) fn count_received_by_handler(&self, bytes: u64) {
        self.memory.received_by_handlers.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether an incomplete body may keep its share.
    pub(crate) fn is_fair(&self) -> bool {
        let BodyMemory { bytes_max, .. } = *self.memory;
        let free = (bytes_max - bytes_max / 4).saturating_sub(self.memory.used());
        self.bytes <= free / SHARES || (self.bytes <= SMALL && self.fits())
    }

    /// Whether all bodies together are within the limit.
    pub(crate) fn fits(&self) -> bool {
        self.memory.used() <= self.memory.bytes_max
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

/// The received part of a body whose handler is not running yet.
#[derive(Debug)]
pub(crate) struct Buffered {
    pub(crate) bytes: Vec<u8>,
    pub(crate) share: Share,
}

impl Buffered {
    pub(crate) fn new(memory: &Arc<BodyMemory>) -> Self {
        Self { bytes: Vec::new(), share: Share::of(memory) }
    }

    /// Adds bytes of a body of about `expected` bytes in total. An announced length reserves no memory.
    pub(crate) fn push(&mut self, data: &[u8], expected: usize) {
        let needed = self.bytes.len() + data.len();
        let had = self.bytes.capacity();
        if needed > had {
            let wanted = needed.max((2 * had).min(expected));
            self.bytes.reserve_exact(wanted - self.bytes.len());
            self.share.add(self.bytes.capacity() - had);
        }
        self.bytes.extend_from_slice(data);
    }

    /// The next step for an incomplete body, of which up to `buffer_max` bytes are received into memory.
    pub(crate) fn next_step(&self, buffer_max: usize, has_free_stream: impl FnOnce() -> bool) -> NextStep {
        if !self.share.fits() {
            NextStep::Refuse
        } else if self.bytes.len() > buffer_max {
            NextStep::Stream
        } else if self.share.is_fair() {
            NextStep::Receive
        } else if has_free_stream() {
            NextStep::Stream
        } else {
            NextStep::Refuse
        }
    }
}

/// The next step for a body that is being received into memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Receive more of it.
    Receive,
    /// Stream the rest to a handler.
    Stream,
    /// There is no memory for it.
    Refuse,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_that_take_what_they_may_leave_room_for_one_more() {
        let memory = BodyMemory::new(128 << 20);
        let mut shares: Vec<Share> = (0..2000).map(|_| Share::of(&memory)).collect();
        for share in &mut shares {
            while share.is_fair() {
                share.add(1000);
            }
            share.give_back(1000);
        }
        assert!(memory.used() <= 128 << 20 && memory.is_short());
        let mut late = Share::of(&memory);
        late.add(SMALL);
        assert!(late.is_fair() && late.fits());
        late.add(1);
        assert!(!late.is_fair() && late.fits());
        drop((late, shares));
        assert_eq!(memory.used(), 0);
    }
}
