use std::sync::Arc;

use narval_cache::upstream::Upstreams;
use narval_keep::{CacheName, Elsewhere};
use narval_nix::{HashPart, NarInfo};
use narval_store::Store;

/// The paths of the live store and of the upstreams: uploads may refer to them, because clients of this cache can get
/// them.
pub(super) struct OtherSources(pub(super) Option<Arc<Store>>, pub(super) Option<Upstreams>);

impl Elsewhere for OtherSources {
    fn have(&self, _: &CacheName, hash_parts: &[HashPart]) -> Vec<bool> {
        let live = |store: &Store, hash_part: &HashPart| match store.path_from_hash_part(hash_part) {
            Ok(path) => path.is_some(),
            Err(error) => {
                tracing::error!("{error}");
                false
            }
        };
        let has = |hash_part| self.0.as_ref().is_some_and(|store| live(store, hash_part));
        let mut have: Vec<_> = hash_parts.iter().map(has).collect();
        if let Some(upstreams) = &self.1 {
            let missing = std::iter::zip(hash_parts, &have).filter(|(_, has)| !**has).map(|(part, _)| *part);
            let missing: Vec<_> = missing.collect();
            let found = upstreams.have(&missing);
            std::iter::zip(have.iter_mut().filter(|has| !**has), found).for_each(|(has, found)| *has = found);
        }
        have
    }

    /// The live store is asked before the cache.
    fn behind(&self, _cache: &CacheName, hash_parts: &[HashPart]) -> Vec<Option<NarInfo>> {
        self.1.as_ref().map(|upstreams| upstreams.served(hash_parts)).unwrap_or_default()
    }
}
