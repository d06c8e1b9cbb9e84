//! Paths of other caches that references may point to.

use narval_nix::{HashPart, NarInfo};

use crate::CacheName;

/// Where paths may exist that are not in the cache: sources that are asked before it or after it.
pub trait Elsewhere: Send + Sync {
    /// For each hash part, whether a client of this cache can get the path.
    fn have(&self, cache: &CacheName, hash_parts: &[HashPart]) -> Vec<bool>;

    /// For each hash part, its verified narinfo in a source that is asked after the cache, as served: a path of the cache hides it.
    fn behind(&self, cache: &CacheName, hash_parts: &[HashPart]) -> Vec<Option<NarInfo>>;
}
