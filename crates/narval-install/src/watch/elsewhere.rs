//! What other caches have, which clients use anyway.

use std::collections::HashMap;
use std::sync::Arc;

use narval_cache::{Caches, Wanted};
use narval_client::{Client, Url};
use narval_nix::{PathInfo, StoreDir, StorePath, TrustedKeys};
use parking_lot::Mutex;

/// How many paths are asked for at the same time.
const QUESTIONS_MAX: usize = 16;
/// How many answers are remembered.
const KNOWN_MAX: usize = 100_000;

/// Caches that clients use anyway. What they have, with the same contents and a trusted signature, need not be pushed.
///
/// The caches are asked, by hash part. An answer is remembered for as long as this is: what a cache says that it has may be
/// removed from it later, and what it does not have may come.
pub struct Elsewhere {
    urls: Vec<Url>,
    client: Arc<Client>,
    keys: TrustedKeys,
    store_dir: StoreDir,
    /// Opened when they are first asked; `None` if that failed.
    opened: Mutex<Option<Option<Arc<Caches>>>>,
    known: Mutex<HashMap<StorePath, bool>>,
}

impl Elsewhere {
    /// These caches. Nothing is asked yet.
    pub fn new(urls: Vec<Url>, client: Arc<Client>, keys: TrustedKeys, store_dir: StoreDir) -> Self {
        Self { urls, client, keys, store_dir, opened: Mutex::default(), known: Mutex::default() }
    }

    /// The paths that none of the caches has. One that cannot be asked counts as one that has nothing.
    pub(super) fn without(&self, infos: Vec<PathInfo>) -> Vec<PathInfo> {
        let Some(caches) = self.caches() else { return infos };
        let known: Vec<Option<bool>> = {
            let known = self.known.lock();
            infos.iter().map(|info| known.get(&info.path).copied()).collect()
        };
        let unknown: Vec<&PathInfo> =
            std::iter::zip(&infos, &known).filter(|(_, known)| known.is_none()).map(|(info, _)| info).collect();
        for several in unknown.chunks(QUESTIONS_MAX) {
            let answers: Vec<bool> = std::thread::scope(|scope| {
                let asked: Vec<_> = several.iter().map(|info| scope.spawn(|| has(&caches, info))).collect();
                asked.into_iter().map(|asked| asked.join().unwrap_or(false)).collect()
            });
            let mut known = self.known.lock();
            if known.len() + several.len() <= KNOWN_MAX {
                known.extend(std::iter::zip(several.iter().map(|info| info.path.clone()), answers));
            }
        }
        let known = self.known.lock();
        infos.into_iter().filter(|info| known.get(&info.path) != Some(&true)).collect()
    }

    fn caches(&self) -> Option<Arc<Caches>> {
        let mut opened = self.opened.lock();
        let open = || match Caches::open(&self.urls, &self.client, &self.store_dir, self.keys.clone(), true) {
            Ok(caches) => Some(Arc::new(caches)),
            Err(error) => {
                tracing::warn!("{error}; what it has is pushed as well");
                None
            }
        };
        opened.get_or_insert_with(open).clone()
    }
}

fn has(caches: &Caches, info: &PathInfo) -> bool {
    match caches.find(&Wanted::Path(info.path.clone())) {
        Ok(found) => found.info.nar_hash == info.nar_hash,
        Err(error) => {
            tracing::debug!(path = %info.path, %error, "not elsewhere");
            false
        }
    }
}
