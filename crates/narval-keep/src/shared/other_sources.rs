//! Paths of other caches that references may point to.

use narval_nix::{NarInfo, StorePath};

use crate::name::CacheName;

/// Where paths may exist that are not in the cache: sources that are asked before it or after it.
pub trait OtherSources: Send + Sync {
    /// Whether a client of this cache can get each of these paths.
    fn contain(&self, cache: &CacheName, paths: &[&StorePath]) -> Vec<bool>;

    /// The verified narinfo of each path in a source that is asked after the cache, as served: a path of the cache hides it.
    fn shadowed(&self, cache: &CacheName, paths: &[&StorePath]) -> Vec<Option<NarInfo>>;
}
