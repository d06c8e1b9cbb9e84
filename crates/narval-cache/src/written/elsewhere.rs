//! Paths of other caches that references may lead to.

use narval_nix::HashPart;

use super::CacheName;

/// Where paths may be that are referred to and not in the cache: its upstreams.
pub trait Elsewhere: Send + Sync {
    /// For each hash part, whether a client that uses this cache can have the path.
    fn have(&self, cache: &CacheName, hash_parts: &[HashPart]) -> Vec<bool>;
}
