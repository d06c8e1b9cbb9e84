//! Uses of paths and NARs, collected in memory and recorded from time to time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use narval_nix::HashPart;

use crate::name::NarFileName;
use crate::records::paths::{CacheId, Used};

/// The maximum number of unrecorded uses in each part. Further ones are dropped.
const WAITING_MAX: usize = 1 << 14;

/// The number of parts. Each has its own lock, so that requests for different paths rarely wait for each other.
const PARTS: usize = 16;

/// Times are rounded down to this: of several uses within a minute, only the first is noted.
pub(crate) const RESOLUTION_SECONDS: u64 = 60;

/// The number of recent uses that are remembered (64 KiB). Another use of the same path within the minute then costs one load
/// instead of a lock. Two paths that share an entry displace each other, which costs only the lock.
const RECENT: usize = 8192;

/// Spreads the bits of a hash: 2^64 divided by the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Uses that are not recorded yet.
pub(crate) struct Uses {
    parts: [Mutex<HashMap<(CacheId, Subject), u64>>; PARTS],
    /// Hashes of a path or NAR and of the minute of its last use. If two collide, a use is missed; the next one, a minute later,
    /// is not.
    recent: Box<[AtomicU64]>,
}

impl Default for Uses {
    fn default() -> Self {
        Self { parts: Default::default(), recent: (0..RECENT).map(|_| AtomicU64::new(0)).collect() }
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Subject {
    Path(HashPart),
    File(String),
}

impl Uses {
    /// Notes that a path was used. It must be cheap: narinfos are answered from memory.
    pub(crate) fn note_path(&self, cache: CacheId, part: &HashPart, now: u64) {
        // A hash already: 5 of 8 bits are random, so half of it is enough.
        if self.is_first(cache, part.as_bytes(), now) {
            self.note(cache, Subject::Path(*part), now);
        }
    }

    /// Like [`note_path`](Self::note_path), for the file of a NAR. Each requested range counts as a use.
    pub(crate) fn note_file(&self, cache: CacheId, name: &NarFileName, now: u64) {
        if self.is_first(cache, name.hash().as_bytes(), now) {
            self.note(cache, Subject::File(name.to_string()), now);
        }
    }

    /// Whether this is the first remembered use within the minute.
    fn is_first(&self, cache: CacheId, hash: &[u8], now: u64) -> bool {
        let (place, name) = recent(cache, hash, now / RESOLUTION_SECONDS);
        let Some(place) = self.recent.get(place) else { return true };
        let is_first = place.load(Ordering::Relaxed) != name;
        if is_first {
            place.store(name, Ordering::Relaxed);
        }
        is_first
    }

    fn note(&self, cache: CacheId, subject: Subject, now: u64) {
        self.note_at_least(cache, subject, now - now % RESOLUTION_SECONDS);
    }

    fn note_at_least(&self, cache: CacheId, subject: Subject, time: u64) {
        let hash: &[u8] = match &subject {
            Subject::Path(part) => part.as_bytes(),
            Subject::File(name) => name.as_bytes(),
        };
        // Mixed: a character of a hash has 32 values, which are unevenly distributed modulo 16, and the first one of a file has two.
        let mixed = word(hash, 8).wrapping_mul(MULTIPLIER) >> 32;
        let [first, ..] = &self.parts;
        let part = self.parts.get(mixed as usize % PARTS).unwrap_or(first);
        let mut waiting = part.lock().unwrap_or_else(PoisonError::into_inner);
        let room = waiting.len() < WAITING_MAX;
        let key = (cache, subject);
        if room || waiting.contains_key(&key) {
            let last = waiting.entry(key).or_default();
            *last = time.max(*last);
        }
    }

    /// Puts back uses that could not be recorded. A later use of the same path takes precedence.
    pub(crate) fn put_back(&self, uses: Vec<Used>) {
        for Used { cache, path, file, time } in uses {
            let subjects = [path.map(Subject::Path), file.map(Subject::File)];
            subjects.into_iter().flatten().for_each(|subject| self.note_at_least(cache, subject, time));
        }
    }

    /// Takes all unrecorded uses.
    pub(crate) fn take(&self) -> Vec<Used> {
        let take = |part: &Mutex<_>| std::mem::take(&mut *part.lock().unwrap_or_else(PoisonError::into_inner));
        let used = |((cache, subject), time): ((CacheId, Subject), u64)| match subject {
            Subject::Path(part) => Used { cache, path: Some(part), file: None, time },
            Subject::File(name) => Used { cache, path: None, file: Some(name), time },
        };
        self.parts.iter().flat_map(take).map(used).collect()
    }
}

/// The index of the entry for this hash, of which 16 bytes are used, and the entry's value after a use within `minute`.
fn recent(cache: CacheId, hash: &[u8], minute: u64) -> (usize, u64) {
    let (a, b) = (word(hash, 0), word(hash, 8));
    let mixed = (a ^ b.rotate_left(29) ^ cache.0.cast_unsigned().rotate_left(40)).wrapping_mul(MULTIPLIER);
    let name = (mixed ^ mixed >> 32).wrapping_add(minute).wrapping_mul(0xff51_afd7_ed55_8ccd);
    // Never zero: that is an empty entry.
    ((mixed >> 51) as usize % RECENT, name | 1)
}

fn word(hash: &[u8], at: usize) -> u64 {
    hash.get(at..).and_then(<[u8]>::first_chunk).copied().map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(number: usize) -> HashPart {
        HashPart::from_digest(&std::array::from_fn(|at| (number * 7 + at * number) as u8))
    }

    /// The numbers of files and of paths.
    fn files_in(part: &HashMap<(CacheId, Subject), u64>) -> (usize, usize) {
        let files = part.keys().filter(|(_, subject)| matches!(subject, Subject::File(_))).count();
        (files, part.len() - files)
    }

    /// A client that reads a NAR in many ranges, and many clients that read the same one, take no lock.
    #[test]
    fn uses_of_a_nar_within_a_minute_take_no_lock() {
        let uses = Uses::default();
        let nar = NarFileName::new(narval_nix::Sha256::of(b"nar"), narval_nix::Compression::Zstd);
        uses.note_file(CacheId(1), &nar, 60);
        let locked: Vec<_> = uses.parts.iter().map(|part| part.lock().unwrap()).collect();
        std::thread::scope(|scope| {
            // On its own thread: it would deadlock if it took a lock that this thread holds.
            let (done, is_done) = std::sync::mpsc::channel();
            let (uses, nar) = (&uses, &nar);
            scope.spawn(move || {
                (0..1000).for_each(|second| uses.note_file(CacheId(1), nar, 60 + second % 60));
                done.send(()).unwrap();
            });
            let in_time = is_done.recv_timeout(std::time::Duration::from_secs(60));
            drop(locked);
            in_time.unwrap();
        });
        uses.note_file(CacheId(2), &nar, 60);
        uses.note_file(CacheId(1), &nar, 120);
        let mut taken: Vec<_> = uses.take().into_iter().map(|used| (used.cache.0, used.time, used.file)).collect();
        taken.sort();
        let name = || Some(nar.to_string());
        assert_eq!(taken, [(1, 120, name()), (2, 60, name())]);
    }

    #[test]
    fn uses_are_spread_over_all_parts() {
        let uses = Uses::default();
        for number in 0_u32..1000 {
            let hash = narval_nix::Sha256::of(&number.to_le_bytes());
            if number % 2 == 0 {
                uses.note_file(CacheId(1), &NarFileName::new(hash, narval_nix::Compression::Zstd), 60);
            } else {
                uses.note_path(CacheId(1), &HashPart::from_digest(&std::array::from_fn(|at| hash.as_bytes()[at])), 60);
            }
        }
        let counts: Vec<_> = uses.parts.iter().map(|part| files_in(&part.lock().unwrap())).collect();
        assert!(
            counts.iter().all(|(files, paths)| [files, paths].into_iter().all(|count| (10..60).contains(count))),
            "{counts:?}"
        );
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
        // Paths that share an entry displace each other and may be noted twice. The last one is remembered.
        uses.note_path(one, &part(299), 119);
        assert!(uses.take().is_empty());
        uses.note_path(one, &part(299), 120);
        assert_eq!(uses.take().len(), 1);
    }
}
