//! Narinfos and absences that are remembered, and never served stale.
//!
//! An entry is valid for one state of the store's database (or of the writable cache's index), which a stamp stands for. Each request takes the stamp anew (one
//! system call while nothing changes; it never waits), and only entries with that stamp are served. A change of the database makes all
//! entries invalid at once; each is replaced when it is asked for, which costs a database query of about 20 µs.
//!
//! The stamp is taken *before* the database is read, so an entry can only be newer than its stamp says. That costs a query, and never
//! gives a wrong answer.

use std::sync::Arc;

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
        Self { entries: Cache::with_weighter(entries, bytes_max, ByBytes) }
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

    /// Forgets a hash part: its narinfo must be rendered again.
    pub(crate) fn forget(&self, hash_part: &HashPart) {
        self.entries.remove(hash_part);
    }
}
