//! One budget for the memory that connections hold for their clients: bytes of answers that wait to be sent, and the
//! messages of WebSockets in both directions.
//!
//! A client that does not read makes the server hold what it asked for. Limits for each connection do not bound the sum
//! over all of them, so every buffer that waits for a client has a [`Share`] of this budget. Beyond it, answers that need
//! more are refused (503), and the connections that hold most are closed, until there is room again.
//!
//! The connections are of many shards. To find those that hold most without a lock, they are counted by the number of
//! bits of what they hold: "most" is exact to a factor of two.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::limits::{OUTPUT_SMALL, OUTPUT_TIGHT, OUTPUT_TRIM_MIN};

/// The number of classes: one for each number of bits.
const CLASSES: usize = usize::BITS as usize + 1;

/// The memory of all connections.
#[derive(Debug)]
pub(crate) struct OutputMemory {
    used: AtomicUsize,
    bytes_max: usize,
    /// Something was refused since room was last made.
    is_wanted: AtomicBool,
    /// All shards were asked to make room since there was any.
    is_asked: AtomicBool,
    /// Connections by the number of bits of what they hold.
    classes: [AtomicUsize; CLASSES],
    /// The most in use since memory was last given back to the system.
    peak: AtomicUsize,
    /// A worker is about to give memory back to the system.
    is_trim_due: AtomicBool,
    refused: AtomicU64,
    closed: AtomicU64,
}

/// Its use, for metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) used: usize,
    pub(crate) bytes_max: usize,
    /// Answers and messages that were refused.
    pub(crate) refused: u64,
    /// Connections that were closed.
    pub(crate) closed: u64,
}

impl OutputMemory {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            bytes_max,
            is_wanted: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
            classes: [const { AtomicUsize::new(0) }; CLASSES],
            peak: AtomicUsize::new(0),
            is_trim_due: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            closed: AtomicU64::new(0),
        })
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            used: self.used.load(Ordering::Relaxed),
            bytes_max: self.bytes_max,
            refused: self.refused.load(Ordering::Relaxed),
            closed: self.closed.load(Ordering::Relaxed),
        }
    }

    /// Whether connections must be closed to make room.
    #[inline(always)]
    pub(crate) fn is_short(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.bytes_max || self.is_wanted.load(Ordering::Relaxed)
    }

    /// Whether so little is left that connections should hold small pieces.
    #[inline(always)]
    fn is_tight(&self) -> bool {
        self.used.load(Ordering::Relaxed) > self.loose_max()
    }

    /// The most in use when memory is not tight.
    fn loose_max(&self) -> usize {
        self.bytes_max - self.bytes_max / 4
    }

    /// Whether enough room was made: an eighth.
    pub(crate) fn has_room(&self) -> bool {
        self.used.load(Ordering::Relaxed) <= self.bytes_max - self.bytes_max / 8
    }

    /// Enough room was made, or nothing can be.
    pub(crate) fn is_settled(&self) {
        self.is_wanted.store(false, Ordering::Relaxed);
        self.is_asked.store(false, Ordering::Relaxed);
    }

    /// Whether a shard that cannot make enough room is the first one since there was room.
    pub(crate) fn is_asked_first(&self) -> bool {
        !self.is_asked.swap(true, Ordering::Relaxed)
    }

    /// The class of the connections that hold most.
    pub(crate) fn heaviest(&self) -> u32 {
        let held =
            (1..CLASSES).rev().find(|class| self.classes.get(*class).is_some_and(|n| n.load(Ordering::Relaxed) > 0));
        held.unwrap_or_default() as u32
    }

    /// Counts a connection that was closed to make room.
    pub(crate) fn count_closed(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether so much less is in use than before that what the allocator keeps should be given back to the system.
    /// Returns `true` once: the caller does it.
    #[inline(always)]
    pub(crate) fn wants_trim(&self) -> bool {
        let (peak, used) = (self.peak.load(Ordering::Relaxed), self.used.load(Ordering::Relaxed));
        peak >= OUTPUT_TRIM_MIN
            && used <= peak / 2
            && self.peak.compare_exchange(peak, used, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// What connections held that were closed to make room should be given back as well: other threads do not reuse it.
    /// Returns `true` if nobody is about to.
    pub(crate) fn trim_is_due(&self) -> bool {
        !self.is_trim_due.swap(true, Ordering::Relaxed)
    }

    /// Memory is being given back.
    pub(crate) fn trim_begins(&self) {
        self.is_trim_due.store(false, Ordering::Relaxed);
    }

    fn moved(&self, from: usize, to: usize) {
        let (from, to) = (class_of(from), class_of(to));
        if from != to {
            let of = |class: u32| self.classes.get(class as usize);
            if let (Some(from), Some(to)) = (of(from), of(to)) {
                to.fetch_add(1, Ordering::Relaxed);
                from.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

/// The class of a connection that holds this many bytes.
pub(crate) fn class_of(bytes: usize) -> u32 {
    usize::BITS - bytes.leading_zeros()
}

/// What one connection holds.
#[derive(Debug)]
pub(crate) struct Holding {
    memory: Arc<OutputMemory>,
    bytes: AtomicUsize,
}

impl Holding {
    pub(crate) fn new(memory: &Arc<OutputMemory>) -> Arc<Self> {
        memory.classes[0].fetch_add(1, Ordering::Relaxed);
        Arc::new(Self { memory: memory.clone(), bytes: AtomicUsize::new(0) })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How much of an answer is produced or sealed at once, and then waits for the client; `usually` unless memory is tight.
    pub(crate) fn at_once(&self, usually: usize) -> usize {
        if self.is_tight() { usually.min(OUTPUT_TIGHT) } else { usually }
    }

    /// Whether only what is sent next should be produced.
    pub(crate) fn is_tight(&self) -> bool {
        self.memory.is_tight()
    }

    /// Has a buffer with sealed bytes, which the socket did not take, hold no more memory than it must.
    pub(crate) fn fit(&self, sealed: &mut Vec<u8>) {
        if self.is_tight() && sealed.capacity() > sealed.len() + sealed.len() / 4 {
            sealed.shrink_to_fit();
        }
    }

    fn add(&self, bytes: usize) {
        self.added(bytes, self.memory.used.fetch_add(bytes, Ordering::Relaxed) + bytes);
    }

    /// Adds bytes unless memory is tight with them; returns whether it did.
    fn add_unless_tight(&self, bytes: usize) -> bool {
        let most = self.memory.loose_max();
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= most);
        let had = self.memory.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        had.is_ok_and(|had| {
            self.added(bytes, had + bytes);
            true
        })
    }

    fn added(&self, bytes: usize, used: usize) {
        let memory = &self.memory;
        if used > memory.peak.load(Ordering::Relaxed) {
            memory.peak.fetch_max(used, Ordering::Relaxed);
        }
        let had = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        memory.moved(had, had + bytes);
    }

    fn give_back(&self, bytes: usize) {
        self.memory.used.fetch_sub(bytes, Ordering::Relaxed);
        let had = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.memory.moved(had, had - bytes);
    }

    /// Whether this many bytes more may be held: they fit, or other connections hold more than this one then would, and
    /// are about to be closed. Little is always allowed. If not, that is counted, and room is made for the next one.
    fn may_add(&self, bytes: usize) -> bool {
        let memory = &self.memory;
        let (used, held) = (memory.used.load(Ordering::Relaxed).saturating_add(bytes), self.bytes() + bytes);
        let OutputMemory { bytes_max, .. } = **memory;
        if used <= bytes_max || held <= OUTPUT_SMALL {
            return true;
        }
        memory.is_wanted.store(true, Ordering::Relaxed);
        if used <= bytes_max + bytes_max / 8 && class_of(held) < memory.heaviest() {
            return true;
        }
        memory.refused.fetch_add(1, Ordering::Relaxed);
        false
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let class = class_of(self.bytes());
        if let Some(class) = self.memory.classes.get(class as usize) {
            class.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// What one buffer of a connection holds; given back when dropped.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// `None`: of no connection so far.
    holding: Option<Arc<Holding>>,
    bytes: usize,
}

impl Share {
    /// An empty share.
    pub(crate) fn of(holding: &Arc<Holding>) -> Self {
        Self { holding: Some(holding.clone()), bytes: 0 }
    }

    /// An empty share of the same connection.
    pub(crate) fn another(&self) -> Self {
        Self { holding: self.holding.clone(), bytes: 0 }
    }

    /// A share of this many bytes, unless there is no room for them.
    pub(crate) fn reserve(holding: &Arc<Holding>, bytes: usize) -> Option<Self> {
        let mut share = Self::of(holding);
        share.grow(bytes).then_some(share)
    }

    /// For the next piece of an answer, which is about to be produced: `usually` as many bytes, and little if memory is tight with them.
    /// Threads that produce pieces at the same time know of each other.
    pub(crate) fn of_piece(holding: &Arc<Holding>, usually: usize) -> Self {
        let mut share = Self::of(holding);
        if holding.add_unless_tight(usually) {
            share.bytes = usually;
        } else {
            share.set(usually.min(OUTPUT_TIGHT));
        }
        share
    }

    /// Increases it to this many bytes, unless there is no room for them.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let may = self.holding.as_ref().is_none_or(|holding| holding.may_add(more));
        if may {
            self.set(bytes.max(self.bytes));
        }
        may
    }

    /// The buffer holds this many bytes. What is there is there: the limit is checked by the shard afterwards.
    #[inline(always)]
    pub(crate) fn set(&mut self, bytes: usize) {
        let had = std::mem::replace(&mut self.bytes, bytes);
        if had == bytes {
            return;
        }
        if let Some(holding) = &self.holding {
            match bytes > had {
                true => holding.add(bytes - had),
                false => holding.give_back(had - bytes),
            }
        }
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether it is of a connection.
    pub(crate) fn is_attached(&self) -> bool {
        self.holding.is_some()
    }

    /// The buffer belongs to a connection from now on.
    pub(crate) fn attach(&mut self, holding: &Arc<Holding>) {
        let bytes = self.bytes;
        *self = Self::of(holding);
        self.set(bytes);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_given_back_and_the_heaviest_is_known() {
        let memory = OutputMemory::new(1 << 20);
        let (light, heavy) = (Holding::new(&memory), Holding::new(&memory));
        assert_eq!(memory.heaviest(), 0);
        let mut shares: Vec<Share> = (0..10).map(|_| Share::of(&light)).collect();
        shares.iter_mut().for_each(|share| share.set(1000));
        let mut one = Share::default();
        one.set(20_000);
        assert_eq!((memory.usage().used, memory.heaviest()), (10_000, class_of(10_000)));
        one.attach(&heavy);
        assert_eq!((memory.usage().used, memory.heaviest()), (30_000, class_of(20_000)));
        one.set(100);
        assert_eq!(memory.heaviest(), class_of(10_000));
        drop((shares, one, light, heavy));
        assert_eq!((memory.usage().used, memory.heaviest()), (0, 0));
    }

    #[test]
    fn whoever_holds_most_gets_no_more_and_others_do_until_an_eighth_above_the_limit() {
        let memory = OutputMemory::new(1 << 20);
        let (light, heavy) = (Holding::new(&memory), Holding::new(&memory));
        let all = Share::reserve(&heavy, 1 << 20).expect("there is room");
        assert!(!memory.is_short());
        assert!(Share::reserve(&heavy, 64 << 10).is_none());
        assert!(memory.is_short() && !memory.has_room(), "room is to be made");
        memory.is_settled();
        let some = Share::reserve(&light, 100 << 10).expect("the other one is closed for it");
        assert!(Share::reserve(&light, 100 << 10).is_none(), "more than an eighth above the limit");
        let little = Share::reserve(&Holding::new(&memory), OUTPUT_SMALL);
        assert!(little.is_some(), "a little is always allowed");
        drop(all);
        assert!(memory.has_room());
        drop((some, little));
        assert_eq!(memory.usage().refused, 2);
    }

    #[test]
    fn pieces_are_small_once_memory_is_tight_with_them() {
        let memory = OutputMemory::new(1 << 20);
        let holding = Holding::new(&memory);
        let pieces: Vec<Share> = (0..5).map(|_| Share::of_piece(&holding, 256 << 10)).collect();
        let bytes: Vec<usize> = pieces.iter().map(Share::bytes).collect();
        assert_eq!(bytes, [256 << 10, 256 << 10, 256 << 10, OUTPUT_TIGHT, OUTPUT_TIGHT]);
        assert_eq!(holding.bytes(), bytes.iter().sum::<usize>());
        drop(pieces);
        assert_eq!((holding.bytes(), memory.usage().used, memory.heaviest()), (0, 0, 0));
    }

    #[test]
    fn memory_is_given_back_when_half_of_it_is_free() {
        let memory = OutputMemory::new(1 << 30);
        let holding = Holding::new(&memory);
        let mut share = Share::of(&holding);
        share.set(4 * OUTPUT_TRIM_MIN);
        assert!(!memory.wants_trim());
        share.set(2 * OUTPUT_TRIM_MIN);
        assert!(memory.wants_trim() && !memory.wants_trim());
        share.set(0);
        assert!(memory.wants_trim() && !memory.wants_trim());
        share.set(OUTPUT_TRIM_MIN - 1);
        share.set(0);
        assert!(!memory.wants_trim(), "not worth it");
    }
}
