//! Paths of other caches that references may point to.

use narval_nix::HashPart;

use super::CacheName;

/// Where references may exist that are not in the cache: its upstreams.
pub trait Elsewhere: Send + Sync {
    /// For each hash part, whether a client of this cache can get the path.
    fn have(&self, cache: &CacheName, hash_parts: &[HashPart]) -> Vec<bool>;
}
