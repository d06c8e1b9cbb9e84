//! Narinfos and absences that are remembered, and never told when stale.
//!
//! Everything remembered belongs to a *generation*: one state of the store's database, as its [`Stamp`] tells it. A
//! request takes the stamp anew (one system call while nothing changes; it never waits), and only what belongs to that very state
//! is told. When the database changes, all of the memo is out of date at once, and is replaced entry by entry as it is
//! asked for: a look into the database costs some 20 µs.
//!
//! The stamp is taken *before* the database is read, so that what is remembered can only be newer than its
//! generation says: that costs a look, and is never wrong.

use std::sync::Arc;

use narval_http::{Bytes, HeaderValue, Prepared};
use narval_nix::HashPart;
use narval_store::Stamp;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

/// One state of the store's database.
pub(crate) type Generation = Stamp;

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
    /// Its entity tag, where the face has one.
    pub(crate) etag: Option<HeaderValue>,
    /// The narinfo; shared with the answer.
    pub(crate) text: Bytes,
}

impl AsRef<Prepared> for Present {
    fn as_ref(&self) -> &Prepared {
        &self.response
    }
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Memo {
    entries: Cache<HashPart, (Generation, Answer), ByBytes>,
}

#[derive(Clone, Debug)]
struct ByBytes;

/// What an entry takes beside its narinfo: the cache's slot, two allocations, and the head of the answer.
const ENTRY_BYTES: u64 = 100;
const PRESENT_BYTES: u64 = 400;

impl Weighter<HashPart, (Generation, Answer)> for ByBytes {
    fn weight(&self, _: &HashPart, (_, answer): &(Generation, Answer)) -> u64 {
        match answer {
            Answer::Absent => ENTRY_BYTES,
            Answer::Present(present) => ENTRY_BYTES + PRESENT_BYTES + present.text.len() as u64,
        }
    }
}

impl Memo {
    /// A memo of at most so many bytes.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let entries = usize::try_from(bytes_max / 1024).unwrap_or(usize::MAX).clamp(16, 1 << 24);
        Self { entries: Cache::with_weighter(entries, bytes_max, ByBytes) }
    }

    /// What is known of a hash part in this generation.
    pub(crate) fn get(&self, generation: Generation, hash_part: &HashPart) -> Option<Answer> {
        let (of, answer) = self.entries.get(hash_part)?;
        (of == generation).then_some(answer)
    }

    /// Remembers what was read after the generation's stamp was taken.
    pub(crate) fn insert(&self, generation: Generation, hash_part: HashPart, answer: Answer) {
        self.entries.insert(hash_part, (generation, answer));
    }

    /// Forgets a hash part: its narinfo is to be rendered anew.
    pub(crate) fn forget(&self, hash_part: &HashPart) {
        self.entries.remove(hash_part);
    }
}
