use std::sync::Arc;

use narval_cache::upstream::Upstreams;
use narval_keep::{CacheName, OtherSources};
use narval_nix::{NarInfo, StorePath};
use narval_store::Store;

/// The paths of the live store and of the upstreams: uploads may refer to them, because clients of this cache can get
/// them.
pub(super) struct StoreAndUpstreams(pub(super) Option<Arc<Store>>, pub(super) Option<Upstreams>);

impl OtherSources for StoreAndUpstreams {
    fn contain(&self, _: &CacheName, paths: &[&StorePath]) -> Vec<bool> {
        let live = |store: &Store, path: &StorePath| match store.path_from_hash_part(&path.hash_part()) {
            Ok(path) => path.is_some(),
            Err(error) => {
                tracing::error!("{error}");
                false
            }
        };
        let has = |path: &&StorePath| self.0.as_ref().is_some_and(|store| live(store, path));
        let mut have: Vec<_> = paths.iter().map(has).collect();
        if let Some(upstreams) = &self.1 {
            let missing = std::iter::zip(paths, &have).filter(|(_, has)| !**has).map(|(path, _)| *path);
            let missing: Vec<_> = missing.collect();
            let found = upstreams.have(&missing);
            std::iter::zip(have.iter_mut().filter(|has| !**has), found).for_each(|(has, found)| *has = found);
        }
        have
    }

    /// The live store is asked before the cache.
    fn shadowed(&self, _cache: &CacheName, paths: &[&StorePath]) -> Vec<Option<NarInfo>> {
        self.1.as_ref().map(|upstreams| upstreams.served(paths)).unwrap_or_default()
    }
}
