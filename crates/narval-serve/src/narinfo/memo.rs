//! Narinfos and absences that are remembered, and never served stale.
//!
//! An entry is valid for one state of the store's database (or of the writable cache's index), which a stamp stands for. Each request takes the stamp anew (one
//! system call while nothing changes; it never waits), and only entries with that stamp are served. A change of the database makes all
//! entries invalid at once; each is replaced when it is asked for, which costs a database query of about 20 µs.
//!
//! The stamp is taken *before* the database is read, so an entry can only be newer than its stamp says. That costs a query, and never
//! gives a wrong answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use narval_http::{Bytes, HeaderValue, Prepared};
use narval_nix::HashPart;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

/// What is remembered of a hash part.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// The narinfo of a valid path.
    Present(Arc<Present>),
    /// There is no valid path with this hash part.
    Absent,
}

/// A narinfo, ready to be sent.
#[derive(Debug)]
pub(crate) struct Present {
    /// The answer.
    pub(crate) response: Prepared,
    /// Its entity tag, where the dialect has one.
    pub(crate) etag: Option<HeaderValue>,
    /// The narinfo; shared with the answer.
    pub(crate) text: Bytes,
    /// In a cache that takes uploads: until when it is answered from memory, in seconds since 1970.
    pub(crate) until: u64,
}

impl AsRef<Prepared> for Present {
    fn as_ref(&self) -> &Prepared {
        &self.response
    }
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Memo<S: Copy + Eq> {
    entries: Cache<HashPart, (S, Answer), ByBytes>,
    forgotten: AtomicU64,
}

#[derive(Clone, Debug)]
struct ByBytes;

/// What an entry takes beside its narinfo: the cache's slot, two allocations, and the head of the answer.
const ENTRY_BYTES: u64 = 100;
const PRESENT_BYTES: u64 = 400;

impl<S> Weighter<HashPart, (S, Answer)> for ByBytes {
    fn weight(&self, _: &HashPart, (_, answer): &(S, Answer)) -> u64 {
        match answer {
            Answer::Absent => ENTRY_BYTES,
            Answer::Present(present) => ENTRY_BYTES + PRESENT_BYTES + present.text.len() as u64,
        }
    }
}

impl<S: Copy + Eq> Memo<S> {
    /// A memo of at most so many bytes.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let entries = usize::try_from(bytes_max / 1024).unwrap_or(usize::MAX).clamp(16, 1 << 24);
        Self { entries: Cache::with_weighter(entries, bytes_max, ByBytes), forgotten: AtomicU64::new(0) }
    }

    /// What is known of a hash part in the state that `stamp` stands for.
    pub(crate) fn get(&self, stamp: S, hash_part: &HashPart) -> Option<Answer> {
        let (of, answer) = self.entries.get(hash_part)?;
        (of == stamp).then_some(answer)
    }

    /// Remembers what was read after `stamp` was taken.
    pub(crate) fn insert(&self, stamp: S, hash_part: HashPart, answer: Answer) {
        self.entries.insert(hash_part, (stamp, answer));
    }

    /// How often something was forgotten.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::Acquire)
    }

    /// Remembers what was read after `stamp` and `forgotten` were taken, unless something was forgotten since: it may have been this.
    pub(crate) fn insert_unless_forgotten(&self, forgotten: u64, stamp: S, hash_part: HashPart, answer: Answer) {
        self.insert(stamp, hash_part, answer);
        // After it is there: whoever forgets it later finds it.
        if self.forgotten() != forgotten {
            self.entries.remove(&hash_part);
        }
    }

    /// Forgets a hash part: its narinfo must be rendered again.
    pub(crate) fn forget(&self, hash_part: &HashPart) {
        self.forgotten.fetch_add(1, Ordering::AcqRel);
        self.entries.remove(hash_part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_before_it_was_forgotten_is_not_remembered() {
        let memo = Memo::new(1 << 20);
        let hash_part = HashPart::parse(b"0123456789abcdfghijklmnpqrsvwxyz").unwrap();
        let before = memo.forgotten();
        // Its NAR is compressed while it is rendered: the narinfo does not name that file.
        memo.forget(&hash_part);
        memo.insert_unless_forgotten(before, 1, hash_part, Answer::Absent);
        assert!(memo.get(1, &hash_part).is_none());
        memo.insert_unless_forgotten(memo.forgotten(), 1, hash_part, Answer::Absent);
        assert!(memo.get(1, &hash_part).is_some());
    }
}
