//! Fetching: caches as a source, whose NARs are decoded as they arrive.

mod check;
mod cores;
mod input;
mod source;

use narval_cache::Caches;

pub(crate) use check::{damaged, mismatch};
pub(crate) use cores::Cores;
pub(crate) use source::{CacheEntry, FromCaches};

use crate::Progress;
use crate::delta::Deltas;

/// The memory of a decoder for a large NAR.
const DICTIONARY_LEN: u64 = 8 * 1024 * 1024;

/// The memory that a NAR's decoder may use.
pub(crate) fn decoder_memory(nar_size: u64) -> u64 {
    nar_size.min(DICTIONARY_LEN)
}

impl<'a> FromCaches<'a> {
    /// These caches, decoding on these cores.
    pub(crate) const fn new(caches: &'a Caches, cores: &'a Cores, progress: &'a Progress) -> Self {
        Self { caches, cores, progress, deltas: None }
    }

    /// The same, with deltas where they are worth it.
    pub(crate) const fn with_deltas(self, deltas: &'a Deltas<'a>) -> Self {
        Self { deltas: Some(deltas), ..self }
    }
}
