//! Who was asked for, collected in memory and recorded from time to time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use narval_nix::HashPart;

use crate::written::index::{CacheId, Used};

/// What can wait to be recorded, in each part. Uses of more different things within one period are not noted.
const WAITING_MAX: usize = 1 << 14;

/// Parts, each with its lock: requests for different things do not wait for each other.
const PARTS: usize = 16;

/// A use is recorded to the minute: of many within one, the first is noted.
const RESOLUTION_SECONDS: u64 = 60;

/// Paths whose last use is remembered, so that another one within the same minute takes one load: 32 KiB in all. Two that share a
/// place displace each other, which costs the lock of a part.
const RECENT: usize = 4096;

/// Uses that are not recorded yet.
pub(in crate::written) struct Uses {
    parts: [Mutex<HashMap<(CacheId, Subject), u64>>; PARTS],
    /// Each names a path and the minute of its last use, by a hash of both. Should two be the same, a use is not noted, and the next
    /// one a minute later is.
    recent: Box<[AtomicU64]>,
}

impl Default for Uses {
    fn default() -> Self {
        Self { parts: Default::default(), recent: (0..RECENT).map(|_| AtomicU64::new(0)).collect() }
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(in crate::written) enum Subject {
    Path(HashPart),
    File(String),
}

impl Uses {
    /// Notes that a path was used. Cheap for one that was used within the same minute: narinfos are answered from memory.
    pub(in crate::written) fn note_path(&self, cache: CacheId, part: &HashPart, now: u64) {
        let minute = now / RESOLUTION_SECONDS;
        let (place, name) = recent(cache, part, minute);
        if let Some(place) = self.recent.get(place)
            && place.load(Ordering::Relaxed) != name
        {
            place.store(name, Ordering::Relaxed);
            self.note(cache, Subject::Path(*part), now);
        }
    }

    pub(in crate::written) fn note(&self, cache: CacheId, subject: Subject, now: u64) {
        let now = now - now % RESOLUTION_SECONDS;
        // Hash parts and hashes of files: any of their characters are spread well.
        let last = match &subject {
            Subject::Path(part) => part.as_bytes().last().copied(),
            Subject::File(name) => name.bytes().next(),
        };
        let [first, ..] = &self.parts;
        let part = self.parts.get(usize::from(last.unwrap_or(0)) % PARTS).unwrap_or(first);
        let mut waiting = part.lock().unwrap_or_else(PoisonError::into_inner);
        let room = waiting.len() < WAITING_MAX;
        let key = (cache, subject);
        if room || waiting.contains_key(&key) {
            waiting.insert(key, now);
        }
    }

    /// Takes all that waits, to be recorded.
    pub(in crate::written) fn take(&self) -> Vec<Used> {
        let take = |part: &Mutex<_>| std::mem::take(&mut *part.lock().unwrap_or_else(PoisonError::into_inner));
        let used = |((cache, subject), time): ((CacheId, Subject), u64)| match subject {
            Subject::Path(part) => Used { cache, path: Some(part), file: None, time },
            Subject::File(name) => Used { cache, path: None, file: Some(name), time },
        };
        self.parts.iter().flat_map(take).map(used).collect()
    }
}

/// Where the last use of a path is remembered, and what stands there after one within `minute`.
fn recent(cache: CacheId, part: &HashPart, minute: u64) -> (usize, u64) {
    // Half of the hash part will do, which is a hash already: 5 of 8 bits are random.
    let (a, b) = (word(part, 0), word(part, 8));
    let mixed = (a ^ b.rotate_left(29) ^ cache.0.cast_unsigned().rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let name = (mixed ^ mixed >> 32).wrapping_add(minute).wrapping_mul(0xff51_afd7_ed55_8ccd);
    // Nothing was used at first.
    ((mixed >> 52) as usize % RECENT, name | 1)
}

fn word(part: &HashPart, at: usize) -> u64 {
    part.as_bytes().get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: usize) -> HashPart {
        HashPart::from_digest(&std::array::from_fn(|at| (number * 7 + at * number) as u8))
    }

    #[test]
    fn a_use_is_noted_once_a_minute_for_each_path_and_cache() {
        let uses = Uses::default();
        let (one, other) = (CacheId(1), CacheId(2));
        for now in [60, 61, 119] {
            for number in 0..300 {
                uses.note_path(one, &part(number), now);
                uses.note_path(other, &part(number), now);
            }
        }
        let parts: std::collections::HashSet<HashPart> = (0..300).map(part).collect();
        let taken = uses.take();
        assert_eq!(taken.len(), 2 * parts.len());
        assert!(taken.iter().all(|used| used.time == 60));
        // Those that share a place displace each other, and may come once more; what is taken is not needed again in this minute.
        uses.note_path(one, &part(299), 119);
        assert!(uses.take().is_empty());
        uses.note_path(one, &part(299), 120);
        assert_eq!(uses.take().len(), 1);
    }
}
