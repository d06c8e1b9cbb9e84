//! What other caches have, which clients use anyway.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_cache::{BinaryCaches, CacheError, Wanted};
use narval_client::{Client, Url};
use narval_nix::{PathInfo, StoreDir, StorePath, TrustedKeys};
use parking_lot::Mutex;

/// How many paths are asked for at the same time.
const QUESTIONS_MAX: usize = 16;
/// How many answers are remembered.
const KNOWN_MAX: usize = 100_000;

/// How long a cache that did not answer is not asked again.
const REST: Duration = Duration::from_secs(60);

/// Caches that clients use anyway. What they have, with the same contents and a trusted signature, need not be pushed.
///
/// The caches are asked, by hash part. An answer is remembered for as long as this is: what a cache says that it has may be
/// removed from it later, and what it does not have may come. Give them a client that does not wait for long.
pub struct OtherCaches {
    caches: Vec<One>,
    client: Arc<Client>,
    keys: TrustedKeys,
    store_dir: StoreDir,
    known: Mutex<HashMap<StorePath, bool>>,
}

struct One {
    url: Url,
    state: Mutex<Opened>,
}

/// Whether a cache can be asked.
enum Opened {
    Not,
    Ready(Arc<BinaryCaches>),
    RestsUntil(Instant),
}

impl OtherCaches {
    /// These caches. Nothing is asked yet.
    pub fn new(urls: Vec<Url>, client: Arc<Client>, keys: TrustedKeys, store_dir: StoreDir) -> Self {
        let caches = urls.into_iter().map(|url| One { url, state: Mutex::new(Opened::Not) }).collect();
        Self { caches, client, keys, store_dir, known: Mutex::default() }
    }

    /// Which of these paths one of the caches has. One that cannot be asked counts as one that has nothing.
    pub(super) fn have(&self, infos: &[&PathInfo]) -> Vec<bool> {
        let unknown: Vec<&PathInfo> = {
            let known = self.known.lock();
            infos.iter().copied().filter(|info| !known.contains_key(&info.path)).collect()
        };
        for several in unknown.chunks(QUESTIONS_MAX) {
            let answers: Vec<Option<bool>> = std::thread::scope(|scope| {
                let threads: Vec<_> = several.iter().map(|info| scope.spawn(|| self.exists(info))).collect();
                threads.into_iter().map(|threads| threads.join().ok().flatten()).collect()
            });
            let answers = std::iter::zip(several, answers).filter_map(|(info, has)| Some((info.path.clone(), has?)));
            let mut known = self.known.lock();
            if known.len() + several.len() <= KNOWN_MAX {
                known.extend(answers);
            }
        }
        let known = self.known.lock();
        infos.iter().map(|info| known.get(&info.path) == Some(&true)).collect()
    }

    /// Whether one of the caches has a path; `None` if one that could not be asked may have it.
    fn exists(&self, info: &PathInfo) -> Option<bool> {
        let mut answer = Some(false);
        for cache in &self.caches {
            match self.has(cache, info) {
                Some(false) => {}
                Some(true) => return Some(true),
                None => answer = None,
            }
        }
        answer
    }

    fn has(&self, cache: &One, info: &PathInfo) -> Option<bool> {
        let found = self.open(cache)?.find(&Wanted::Path(info.path.clone()));
        match found {
            Ok(found) => Some(found.info.nar_hash == info.nar_hash),
            Err(CacheError::NotFound { .. } | CacheError::Untrusted { .. } | CacheError::Mismatch { .. }) => {
                Some(false)
            }
            Err(error) => {
                cache.rest(&error.to_string());
                None
            }
        }
    }

    fn open(&self, cache: &One) -> Option<Arc<BinaryCaches>> {
        let mut state = cache.state.lock();
        match &*state {
            Opened::Ready(caches) => return Some(Arc::clone(caches)),
            Opened::RestsUntil(until) if Instant::now() < *until => return None,
            Opened::Not | Opened::RestsUntil(_) => {}
        }
        let url = std::slice::from_ref(&cache.url);
        match BinaryCaches::open(url, &self.client, &self.store_dir, self.keys.clone(), true).map(Arc::new) {
            Ok(caches) if caches.have_answered() => {
                *state = Opened::Ready(Arc::clone(&caches));
                Some(caches)
            }
            opened => {
                drop(state);
                cache.rest(&opened.err().map_or_else(|| "does not answer".to_owned(), |error| error.to_string()));
                None
            }
        }
    }
}

impl One {
    /// It did not answer.
    fn rest(&self, reason: &str) {
        let mut state = self.state.lock();
        if !matches!(*state, Opened::RestsUntil(until) if Instant::now() < until) {
            tracing::warn!("{}: {reason}; what it has is pushed as well", self.url);
            *state = Opened::RestsUntil(Instant::now() + REST);
        }
    }
}
