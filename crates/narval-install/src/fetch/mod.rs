//! Fetching: caches as a source, whose NARs are decoded as they arrive.

mod check;
mod input;
mod source;

use narval_cache::BinaryCaches;

pub(crate) use check::{damaged, mismatch};
pub(crate) use source::{CacheEntry, FromCaches};

use narval_transfer::Cores;

use crate::delta::Deltas;
use narval_transfer::Progress;

impl<'a> FromCaches<'a> {
    /// These caches, decoding on these cores.
    pub(crate) const fn new(caches: &'a BinaryCaches, cores: &'a Cores, progress: &'a Progress) -> Self {
        Self { caches, cores, progress, deltas: None }
    }

    /// The same, with deltas where they are worth it.
    pub(crate) const fn with_deltas(self, deltas: &'a Deltas<'a>) -> Self {
        Self { deltas: Some(deltas), ..self }
    }
}
