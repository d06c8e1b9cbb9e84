//! Uses of paths and NARs, collected in memory and recorded from time to time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use narval_nix::HashPart;

use crate::written::index::{CacheId, Used};
use crate::written::name::NarFileName;

/// The most uses that wait to be recorded, in each part. More within one period are not noted.
const WAITING_MAX: usize = 1 << 14;

/// Parts, each with its lock, so that requests for different paths rarely wait for each other.
const PARTS: usize = 16;

/// A use is recorded to the minute: of many within one, the first is noted.
const RESOLUTION_SECONDS: u64 = 60;

/// Paths and NARs whose last use is remembered, so that another one within the same minute takes one load: 64 KiB in all. Two that
/// share a place displace each other, which costs the lock of a part.
const RECENT: usize = 8192;

/// Uses that are not recorded yet.
pub(in crate::written) struct Uses {
    parts: [Mutex<HashMap<(CacheId, Subject), u64>>; PARTS],
    /// Each is a hash of a path or a NAR and of the minute of its last use. Should two be the same, a use is not noted, and the next one
    /// a minute later is.
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
    /// Notes that a path was used. Cheap for one that was used within the same minute: narinfos are answered from memory.
    pub(in crate::written) fn note_path(&self, cache: CacheId, part: &HashPart, now: u64) {
        // Half of the hash part will do, which is a hash already: 5 of 8 bits are random.
        if self.is_first(cache, part.as_bytes(), now) {
            self.note(cache, Subject::Path(*part), now);
        }
    }

    /// As [`note_path`](Self::note_path), of a NAR's file: each range of a NAR that is asked for is a use.
    pub(in crate::written) fn note_file(&self, cache: CacheId, name: &NarFileName, now: u64) {
        if self.is_first(cache, name.file_hash().as_bytes(), now) {
            self.note(cache, Subject::File(name.to_string()), now);
        }
    }

    /// Whether this is the first use within the minute, as far as is remembered.
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
            let last = waiting.entry(key).or_default();
            *last = time.max(*last);
        }
    }

    /// Has uses wait again that could not be recorded. Later ones of the same count.
    pub(in crate::written) fn put_back(&self, uses: Vec<Used>) {
        for Used { cache, path, file, time } in uses {
            let subjects = [path.map(Subject::Path), file.map(Subject::File)];
            subjects.into_iter().flatten().for_each(|subject| self.note_at_least(cache, subject, time));
        }
    }

    /// Takes all waiting uses, to record them.
    pub(in crate::written) fn take(&self) -> Vec<Used> {
        let take = |part: &Mutex<_>| std::mem::take(&mut *part.lock().unwrap_or_else(PoisonError::into_inner));
        let used = |((cache, subject), time): ((CacheId, Subject), u64)| match subject {
            Subject::Path(part) => Used { cache, path: Some(part), file: None, time },
            Subject::File(name) => Used { cache, path: None, file: Some(name), time },
        };
        self.parts.iter().flat_map(take).map(used).collect()
    }
}

/// Where the last use of what has this hash is remembered, and what stands there after one within `minute`. The first 16 bytes are looked at.
fn recent(cache: CacheId, hash: &[u8], minute: u64) -> (usize, u64) {
    let (a, b) = (word(hash, 0), word(hash, 8));
    let mixed = (a ^ b.rotate_left(29) ^ cache.0.cast_unsigned().rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let name = (mixed ^ mixed >> 32).wrapping_add(minute).wrapping_mul(0xff51_afd7_ed55_8ccd);
    // Nothing was used at first.
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

    /// A client that reads a NAR in many ranges, and many clients that read the same one, take no lock.
    #[test]
    fn uses_of_a_nar_within_a_minute_take_no_lock() {
        let uses = Uses::default();
        let nar = NarFileName::new(narval_nix::Sha256::of(b"nar"), narval_nix::Compression::Zstd);
        uses.note_file(CacheId(1), &nar, 60);
        let locked: Vec<_> = uses.parts.iter().map(|part| part.lock().unwrap()).collect();
        std::thread::scope(|scope| {
            // On a separate thread: it would deadlock on a lock that this one holds.
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
