//! The memory for the request bodies of all connections.
//!
//! A body that is being received may use a share of the free memory (1/[`SHARES`]): a few bodies may be large, many
//! must be small. Switches share their buffers among ports in this way (Choudhury and Hahne, "Dynamic queue length
//! thresholds for shared-memory packet switches", 1998). A quarter of the memory is reserved for small bodies, which never
//! wait for it.
//!
//! A body that may use no more is not refused: it waits in the queue of the threads for streamed bodies, and nothing
//! more of it is received until its handler reads. Bodies whose handlers run never wait for memory, so each of them
//! ends, and the next in the queue takes its thread: no body waits for one behind it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The share of the free memory that one body may use: 1/64.
const SHARES: usize = 64;

/// A body with an announced length up to this may use all free memory.
const SMALL: u64 = 16 * 1024;

/// Bodies are refused when this many times the memory is in use. What has arrived must be stored: a client may send
/// along with a head, or within a window of HTTP/2, before it can be stopped.
const REFUSED_FROM: usize = 2;

/// Counts the memory used by bodies.
#[derive(Debug)]
pub(crate) struct BodyMemory {
    used: AtomicUsize,
    /// Bytes that clients may send beyond what every client may, before their handlers read.
    promised: AtomicUsize,
    /// Bytes that handlers received themselves, which use no memory here.
    received_by_handlers: AtomicU64,
    bytes_max: usize,
}

impl BodyMemory {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            promised: AtomicUsize::new(0),
            received_by_handlers: AtomicU64::new(0),
            bytes_max,
        })
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

    /// Whether so little is left that connections should receive in small pieces.
    pub(crate) fn is_tight(&self) -> bool {
        self.used() > self.bytes_max - self.bytes_max / 4
    }

    fn is_full(&self) -> bool {
        self.used() > self.bytes_max
    }
}

/// The memory used by one body; released when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    memory: Arc<BodyMemory>,
    bytes: usize,
    promised: usize,
    is_small: bool,
}

impl Share {
    /// An empty share.
    pub(crate) fn of(memory: &Arc<BodyMemory>) -> Self {
        Self { memory: memory.clone(), bytes: 0, promised: 0, is_small: false }
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

    /// Allows the client to send this much more before its handler reads, if half of the memory is enough for that and
    /// all that is used and promised.
    pub(crate) fn promise(&mut self, bytes: usize) -> bool {
        let BodyMemory { used, promised, bytes_max, .. } = &*self.memory;
        let all = used.load(Ordering::Relaxed) + promised.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let is_there = all <= bytes_max / 2;
        if is_there {
            self.promised += bytes;
        } else {
            promised.fetch_sub(bytes, Ordering::Relaxed);
        }
        is_there
    }

    /// The handler reads: what was promised to the client does not wait for a thread any longer.
    pub(crate) fn keep_promise(&mut self) {
        self.memory.promised.fetch_sub(std::mem::take(&mut self.promised), Ordering::Relaxed);
    }

    /// The body's length is announced.
    pub(crate) fn announce(&mut self, length: u64) {
        self.is_small = length <= SMALL;
    }

    /// Whether an incomplete body may keep its share.
    pub(crate) fn is_fair(&self) -> bool {
        let BodyMemory { bytes_max, .. } = *self.memory;
        let free = (bytes_max - bytes_max / 4).saturating_sub(self.memory.used());
        self.is_small || (self.bytes <= free / SHARES && !self.memory.is_full())
    }

    /// Whether so much is in use that a body whose handler does not run should not be received further.
    pub(crate) fn is_short(&self) -> bool {
        self.memory.is_short()
    }

    /// Whether everything is in use, so that the body must wait although nothing of it has arrived.
    pub(crate) fn is_full(&self) -> bool {
        self.memory.is_full() && !self.is_small
    }

    /// Whether so much is in use that bodies are refused.
    pub(crate) fn is_refused(&self) -> bool {
        self.memory.used() > self.memory.bytes_max.saturating_mul(REFUSED_FROM)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.bytes);
        self.keep_promise();
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

    /// The next step for a body of which up to `buffer_max` bytes are received into memory. `is_whole`: all of it has
    /// arrived.
    pub(crate) fn next_step(&self, buffer_max: usize, is_whole: bool) -> NextStep {
        if self.share.is_refused() {
            NextStep::Refuse
        } else if is_whole {
            NextStep::Answer
        } else if self.bytes.len() > buffer_max || !self.share.is_fair() {
            NextStep::Stream
        } else {
            NextStep::Receive
        }
    }
}

/// The next step for a body that is being received into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// Receive more of it.
    Receive,
    /// It is whole: a worker answers the request.
    Answer,
    /// Stream the rest to a handler, once a thread is free.
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
        late.add(SMALL as usize);
        assert!(!late.is_fair() && !memory.is_full());
        late.announce(SMALL);
        assert!(late.is_fair());
        drop((late, shares));
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn no_more_is_promised_than_half_of_the_memory() {
        let memory = BodyMemory::new(1000);
        let mut shares: Vec<Share> = (0..10).map(|_| Share::of(&memory)).collect();
        let promised = shares.iter_mut().filter_map(|share| share.promise(100).then_some(())).count();
        assert_eq!(promised, 5);
        shares[9].add(100);
        shares[0].keep_promise();
        assert!(!shares[8].promise(100) && !memory.is_short());
        drop(shares);
        assert!(Share::of(&memory).promise(500));
    }

    #[test]
    fn a_body_waits_when_everything_is_in_use_and_is_refused_at_twice_that() {
        let memory = BodyMemory::new(1000);
        let mut body = Buffered::new(&memory);
        let mut others = Share::of(&memory);
        let mut step_with = |used: usize, is_whole| {
            others.give_back(usize::MAX);
            others.add(used);
            body.next_step(100, is_whole)
        };
        assert_eq!(step_with(1000, false), NextStep::Receive);
        assert_eq!(step_with(1001, false), NextStep::Stream);
        assert_eq!(step_with(2000, true), NextStep::Answer);
        assert_eq!(step_with(2001, true), NextStep::Refuse);
        body.push(&[0; 101], 101);
        assert_eq!(body.next_step(100, false), NextStep::Refuse);
        drop(others);
        assert_eq!(body.next_step(100, false), NextStep::Stream);
    }
}
