//! Prefetches what a client will probably request next: the narinfos of a path's references, and the NARs of a closure that it walks.

use std::sync::{Arc, Weak};

use narval_files::Background;
use narval_nix::{HashPart, NarInfo, StorePath};

use super::shared::Shared;
use super::shared::walks::WALK_SOON;

impl Shared {
    /// Queues the narinfos of a path's references, as far as there is room.
    pub(super) fn references_ahead(&self, info: &NarInfo) {
        let own = info.path.hash_part();
        let references = info.references.iter().map(StorePath::hash_part).filter(|part| *part != own);
        self.each_ahead(&self.narinfos_ahead, references, |shared, part| shared.look_ahead(part));
    }

    /// Queues the NARs of paths, as far as there is room. Each thread waits for the NAR that it has begun to fetch.
    pub(super) fn nars_ahead(&self, paths: impl IntoIterator<Item = HashPart>) {
        self.each_ahead(&self.nars_ahead, paths, |shared, part| {
            let fill = shared.fetch_ahead(&part);
            // The upstreams may be closed meanwhile.
            drop(shared);
            fill.iter().for_each(|fill| fill.wait_for_end(WALK_SOON));
        });
    }

    fn each_ahead(
        &self,
        threads: &Arc<Background>,
        paths: impl IntoIterator<Item = HashPart>,
        fetch: fn(Arc<Self>, HashPart),
    ) {
        for part in paths {
            let shared = Weak::clone(&self.own);
            let job = move || shared.upgrade().map_or((), |shared| fetch(shared, part));
            if threads.offer(Box::new(job)).is_err() {
                return;
            }
        }
    }
}
