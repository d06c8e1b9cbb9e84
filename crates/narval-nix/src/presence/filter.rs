//! A set of keys that answers "absent" for certain, and "present" wrongly once in 256 times: binary fuse filters of 8 bits (Graf and Lemire,
//! 2022), one for each range of keys.

use thiserror::Error;

use crate::hash::nix32;
use crate::store_path::HashPart;

/// The most keys in a filter.
pub const PATHS_MAX: usize = 1 << 24;
/// The largest encoded filter, in bytes.
pub const FILTER_LEN_MAX: usize = 32 << 20;

/// Up to this many keys are in one segment, on average. A smaller one would need more bits for each of them.
const SEGMENT_KEYS: usize = 1 << 18;
/// The most segments, as a power of two.
const SEGMENTS_LOG_MAX: u32 = 10;
/// The longest block, as a power of two.
const BLOCK_LOG_MAX: u32 = 18;
/// How many seeds are tried. One fails for few sets of keys, and independently of the others.
const SEEDS_MAX: u64 = 64;
/// A segment's seed, the length of its blocks, and their number.
const SEGMENT_HEAD_LEN: usize = 8 + 1 + 4;

/// Why there is no filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FilterError {
    /// More than [`PATHS_MAX`].
    #[error("a presence filter has at most {PATHS_MAX} paths")]
    TooMany,
    /// No seed fits.
    #[error("no presence filter of these paths was found")]
    NoSeed,
    /// The encoded filter is longer than [`FILTER_LEN_MAX`].
    #[error("a presence filter has at most {FILTER_LEN_MAX} bytes")]
    TooLong,
    /// The encoded filter ends too early, or goes on after its end.
    #[error("the presence filter has another length than its segments say")]
    Length,
    /// A number in the encoded filter is too large.
    #[error("the presence filter has a segment that cannot be")]
    Segment,
}

/// The key of a path: the first 64 bits of its hash part, which is uniform.
///
/// ```
/// let part = narval_nix::HashPart::parse(b"00bgd045z0d4icpbc2yyz4gx48ak44la").unwrap();
/// let filter = narval_nix::presence::Filter::build(vec![narval_nix::presence::key(&part)]).unwrap();
/// assert!(filter.contains(narval_nix::presence::key(&part)));
/// ```
pub fn key(hash_part: &HashPart) -> u64 {
    // The digits of a hash part are valid, so the default is never used.
    let digest = nix32::decode::<20>(hash_part.as_bytes()).unwrap_or_default();
    digest.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

/// The filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// As many as a power of two: that of a key is in its first bits.
    segments: Vec<Segment>,
}

/// A binary fuse filter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Segment {
    seed: u64,
    /// A key has one slot in each of three blocks that follow each other. They have this length, as a power of two.
    block_log: u32,
    /// How many blocks the first of the three may be.
    starts: u32,
    fingerprints: Box<[u8]>,
}

/// The place of a key.
#[derive(Clone, Copy)]
struct Slots([usize; 3]);

impl Filter {
    /// Makes the filter of these keys.
    ///
    /// # Errors
    /// There are too many.
    pub fn build(mut keys: Vec<u64>) -> Result<Self, FilterError> {
        if keys.len() > PATHS_MAX {
            return Err(FilterError::TooMany);
        }
        keys.sort_unstable();
        keys.dedup();
        let log = keys.len().div_ceil(SEGMENT_KEYS).max(1).next_power_of_two().ilog2();
        let (mut segments, mut rest) = (Vec::with_capacity(1 << log), keys.as_slice());
        for at in 0..1_usize << log {
            let (own, others) = rest.split_at(rest.partition_point(|key| segment_of(*key, log) <= at));
            segments.push(Segment::build(own)?);
            rest = others;
        }
        Ok(Self { segments })
    }

    /// Whether a key is in it: never `false` for one that is, and seldom `true` for another.
    pub fn contains(&self, key: u64) -> bool {
        let at = segment_of(key, self.segments.len().trailing_zeros());
        self.segments.get(at).is_some_and(|segment| segment.contains(key))
    }

    /// The encoded filter: the number of segments as a power of two, and the segments.
    pub fn encode(&self) -> Vec<u8> {
        let len = self.segments.iter().map(|segment| SEGMENT_HEAD_LEN + segment.fingerprints.len()).sum::<usize>();
        let mut out = Vec::with_capacity(1 + len);
        out.push(u8::try_from(self.segments.len().trailing_zeros()).unwrap_or_default());
        for segment in &self.segments {
            out.extend(segment.seed.to_le_bytes());
            out.push(u8::try_from(segment.block_log).unwrap_or_default());
            out.extend(segment.starts.to_le_bytes());
            out.extend(&segment.fingerprints);
        }
        out
    }

    /// Reads an encoded filter.
    ///
    /// # Errors
    /// It is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, FilterError> {
        if bytes.len() > FILTER_LEN_MAX {
            return Err(FilterError::TooLong);
        }
        let (log, mut rest) = bytes.split_first().ok_or(FilterError::Length)?;
        let log = Some(u32::from(*log)).filter(|log| *log <= SEGMENTS_LOG_MAX).ok_or(FilterError::Segment)?;
        if rest.len() < SEGMENT_HEAD_LEN << log {
            return Err(FilterError::Length);
        }
        let mut segments = Vec::with_capacity(1 << log);
        for _ in 0..1_usize << log {
            let (segment, after) = Segment::decode(rest)?;
            segments.push(segment);
            rest = after;
        }
        if rest.is_empty() { Ok(Self { segments }) } else { Err(FilterError::Length) }
    }
}

fn segment_of(key: u64, log: u32) -> usize {
    key.checked_shr(u64::BITS - log).map_or(0, |at| usize::try_from(at).unwrap_or_default())
}

impl Segment {
    fn build(keys: &[u64]) -> Result<Self, FilterError> {
        if keys.is_empty() {
            return Ok(Self::default());
        }
        let (block_log, starts) = shape(keys.len());
        let mut seed = 0;
        for _ in 0..SEEDS_MAX {
            // SplitMix64's step: the seeds differ in about half of their bits.
            seed = mix(seed, 0x9e37_79b9_7f4a_7c15);
            let len = usize::try_from(starts + 2).unwrap_or_default() << block_log;
            let mut segment = Self { seed, block_log, starts, fingerprints: vec![0; len].into() };
            if let Some(order) = segment.peel(keys) {
                segment.assign(&order);
                return Ok(segment);
            }
        }
        Err(FilterError::NoSeed)
    }

    /// Finds an order in which each key has a slot that no later one uses; `None` if there is none.
    fn peel(&self, keys: &[u64]) -> Option<Vec<(u64, usize)>> {
        // How many keys use a slot, and the hashes of all of them combined.
        let mut slots = vec![(0_u32, 0_u64); self.fingerprints.len()];
        for key in keys {
            let hash = mix(*key, self.seed);
            for at in self.slots(hash).0 {
                let slot = slots.get_mut(at)?;
                *slot = (slot.0 + 1, slot.1 ^ hash);
            }
        }
        let single = |(at, slot): (usize, &(u32, u64))| (slot.0 == 1).then_some(at);
        let mut queue: Vec<usize> = slots.iter().enumerate().filter_map(single).collect();
        let mut order = Vec::with_capacity(keys.len());
        while let Some(at) = queue.pop() {
            let (1, hash) = *slots.get(at)? else { continue };
            order.push((hash, at));
            for other in self.slots(hash).0 {
                let slot = slots.get_mut(other)?;
                *slot = (slot.0 - 1, slot.1 ^ hash);
                if slot.0 == 1 {
                    queue.push(other);
                }
            }
        }
        (order.len() == keys.len()).then_some(order)
    }

    /// Gives each key the fingerprint that it needs, the last one first: its slot is used by no earlier one.
    fn assign(&mut self, order: &[(u64, usize)]) {
        for (hash, own) in order.iter().rev() {
            let others = self.slots(*hash).0.into_iter().filter(|at| at != own);
            let value =
                others.fold(fingerprint(*hash), |value, at| value ^ self.fingerprints.get(at).copied().unwrap_or(0));
            if let Some(slot) = self.fingerprints.get_mut(*own) {
                *slot = value;
            }
        }
    }

    fn contains(&self, key: u64) -> bool {
        if self.starts == 0 {
            return false;
        }
        let hash = mix(key, self.seed);
        let at = |at: usize| self.fingerprints.get(at).copied().unwrap_or(0);
        let [one, two, three] = self.slots(hash).0;
        at(one) ^ at(two) ^ at(three) == fingerprint(hash)
    }

    fn slots(&self, hash: u64) -> Slots {
        let (block, mask) = (1_u64 << self.block_log, (1_u64 << self.block_log) - 1);
        // The upper half of the product: uniform over all slots of the blocks that may be the first one.
        let range = u64::from(self.starts) << self.block_log;
        let one = u64::try_from((u128::from(hash) * u128::from(range)) >> 64).unwrap_or_default();
        let two = (one + block) ^ ((hash >> 18) & mask);
        let three = (one + 2 * block) ^ (hash & mask);
        Slots([one, two, three].map(|at| usize::try_from(at).unwrap_or_default()))
    }

    fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), FilterError> {
        let (seed, rest) = bytes.split_first_chunk().ok_or(FilterError::Length)?;
        let (block_log, rest) = rest.split_first().ok_or(FilterError::Length)?;
        let (starts, rest) = rest.split_first_chunk().ok_or(FilterError::Length)?;
        let (block_log, starts) = (u32::from(*block_log), u32::from_le_bytes(*starts));
        if block_log > BLOCK_LOG_MAX || starts > u32::try_from(FILTER_LEN_MAX).unwrap_or(u32::MAX) {
            return Err(FilterError::Segment);
        }
        let len = if starts == 0 { 0 } else { (u64::from(starts) + 2) << block_log };
        let len = usize::try_from(len).map_err(|_| FilterError::Segment)?;
        let (fingerprints, rest) = rest.split_at_checked(len).ok_or(FilterError::Length)?;
        Ok((Self { seed: u64::from_le_bytes(*seed), block_log, starts, fingerprints: fingerprints.into() }, rest))
    }
}

/// The length of blocks as a power of two, and how many of them may be a key's first one: the smallest for which a seed is soon found (the
/// paper's section 3).
fn shape(keys: usize) -> (u32, u32) {
    // Counts are far below 2^52.
    let count = keys.max(2) as f64;
    let block_log = (count.ln() / 3.33_f64.ln() + 2.25).floor().clamp(0.0, f64::from(BLOCK_LOG_MAX)) as u32;
    let slots = count * (0.875 + 0.25 * 1e6_f64.ln() / count.ln()).max(1.125);
    let blocks = (slots / f64::from(1_u32 << block_log)).ceil() as u32;
    (block_log, blocks.saturating_sub(2).max(1))
}

/// MurmurHash3's finalizer, of the key and a seed.
const fn mix(key: u64, seed: u64) -> u64 {
    let mut hash = key.wrapping_add(seed);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

const fn fingerprint(hash: u64) -> u8 {
    (hash ^ (hash >> 32)).to_le_bytes()[0]
}
