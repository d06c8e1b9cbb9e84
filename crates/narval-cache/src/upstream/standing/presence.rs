//! The presence filter of an upstream: what it does not have is not asked for.
//!
//! An absence by the filter holds for a moment ([`FRESH_FOR`]): who asks later has the upstream asked first what it got since, once for all who
//! wait. It is never remembered, and nothing but the answer to a client rests on it. A forged filter can do no more than make paths absent
//! from this one upstream, and must be signed by one of its keys.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_client::{HttpError, Request, Scheme, Url, clock};
use narval_nix::presence::{CHANGES_MAX, Changes, FILTER_LEN_MAX, Filter, HEAD_LEN_MAX, Snapshot, key};
use narval_nix::{CacheInfo, HashPart, StoreDir, TrustedKeys};
use parking_lot::Mutex;

/// The key in `nix-cache-info` with which a cache offers a filter (`docs/presence-filters.md`).
const KEY: &str = "PresenceFilter";
/// How long what an upstream got since is taken to be nothing.
pub(in crate::upstream) const FRESH_FOR: Duration = Duration::from_secs(1);
/// How many paths that came since the filter are remembered; then the filter is fetched again.
const ADDED_MAX: usize = 2 * CHANGES_MAX;
/// After which time a filter is looked for again, where there was none, or it could not be fetched.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(600);
/// The same after a failure, or where what came since does not fit it.
const LOAD_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// The largest `nix-cache-info`.
const CACHE_INFO_LEN_MAX: u64 = 64 * 1024;

/// What is known of the paths that an upstream has.
#[derive(Default)]
pub(in crate::upstream) struct Presence {
    state: Mutex<State>,
    /// Held by who asks for what came since.
    checking: Mutex<()>,
}

#[derive(Default)]
struct State {
    known: Option<Known>,
    is_loading: bool,
    /// When it is looked for again, if it is not known.
    load_at: Option<Instant>,
    /// Until when it is not used, because the upstream did not say in time what came since.
    unused_until: Option<Instant>,
}

struct Known {
    /// Where it is, relative to the cache.
    path: String,
    instance: u64,
    sequence: u64,
    filter: Arc<Filter>,
    /// What came since.
    added: HashSet<u64>,
    /// When the last answer about it was asked for.
    checked: Instant,
}

/// What the filter says of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Says {
    /// The upstream is to be asked.
    Nothing,
    /// It does not have it.
    Absent,
    /// It did not have it a while ago.
    WasAbsent,
}

/// A question for what came since, and when it was asked.
pub(in crate::upstream) struct Check {
    path: String,
    instance: u64,
    since: u64,
    nonce: u128,
    at: Instant,
}

impl Presence {
    /// What the filter says of a path. Without a filter, `load` is called once in a while to get one.
    pub(in crate::upstream) fn says(&self, hash_part: &HashPart, load: impl FnOnce()) -> Says {
        let mut state = self.state.lock();
        if let Some(known) = &state.known {
            let key = key(hash_part);
            return match known.filter.contains(key) || known.added.contains(&key) {
                true => Says::Nothing,
                false if clock::since(known.checked) < FRESH_FOR => Says::Absent,
                false if state.unused_until.is_some_and(|until| clock::instant() < until) => Says::Nothing,
                false => Says::WasAbsent,
            };
        }
        if !state.is_loading && state.load_at.is_none_or(|at| clock::instant() >= at) {
            state.is_loading = true;
            drop(state);
            load();
        }
        Says::Nothing
    }

    /// Whether the filter has a path, as far as it is known: one in 256 paths that are not there is in it, too.
    pub(in crate::upstream) fn has(&self, hash_part: &HashPart) -> bool {
        let (state, key) = (self.state.lock(), key(hash_part));
        state.known.as_ref().is_some_and(|known| known.filter.contains(key) || known.added.contains(&key))
    }

    /// Sets a filter with these paths.
    #[cfg(test)]
    pub(in crate::upstream) fn set(&self, paths: &[HashPart]) {
        let filter = Arc::new(Filter::build(paths.iter().map(key).collect()).unwrap());
        let (path, added, checked) = (String::new(), HashSet::new(), clock::instant());
        self.loaded(Some(Known { path, instance: 1, sequence: 1, filter, added, checked }), LOOK_AGAIN_AFTER);
    }

    /// Asks for what came since, by `ask`, unless somebody else has done so meanwhile: waits for them at most for this time.
    pub(in crate::upstream) fn check(&self, within: Duration, ask: impl FnOnce(Check)) {
        let Some(_checking) = self.checking.try_lock_for(within) else { return };
        let check = {
            let state = self.state.lock();
            match &state.known {
                Some(known) if clock::since(known.checked) >= FRESH_FOR => {
                    let mut nonce = [0; 16];
                    if let Err(error) = getrandom::fill(&mut nonce) {
                        tracing::error!("upstreams: no random numbers, so presence filters are not used: {error}");
                        return;
                    }
                    Check {
                        path: known.path.clone(),
                        instance: known.instance,
                        since: known.sequence,
                        nonce: u128::from_le_bytes(nonce),
                        at: clock::instant(),
                    }
                }
                _ => return,
            }
        };
        ask(check);
    }

    /// Takes the answer to a check: `None` if the filter is to be fetched again.
    pub(in crate::upstream) fn take(&self, check: &Check, changes: Option<Changes>) {
        let mut state = self.state.lock();
        let Some(known) = state.known.as_mut().filter(|known| known.instance == check.instance) else { return };
        let fits = |changes: &Changes| {
            (changes.instance, changes.since, changes.nonce) == (check.instance, check.since, check.nonce)
                && changes.sequence >= check.since
                && known.sequence == check.since
                && known.added.len() + changes.keys.len() <= ADDED_MAX
        };
        match changes.filter(fits) {
            Some(changes) => {
                known.added.extend(changes.keys);
                (known.sequence, known.checked) = (changes.sequence, check.at);
            }
            None => (state.known, state.load_at) = (None, Some(clock::instant() + LOAD_AGAIN_AFTER)),
        }
    }

    /// A check was not answered in time.
    pub(in crate::upstream) fn gives_up(&self) {
        self.state.lock().unused_until = Some(clock::instant() + LOAD_AGAIN_AFTER);
    }

    /// Takes a filter that was fetched, or that there is none.
    fn loaded(&self, known: Option<Known>, again_after: Duration) {
        let mut state = self.state.lock();
        state.is_loading = false;
        state.load_at = Some(clock::instant() + again_after);
        state.known = known;
    }

    /// It cannot be fetched now.
    pub(in crate::upstream) fn is_not_loaded(&self) {
        self.loaded(None, LOAD_AGAIN_AFTER);
    }
}

/// How an upstream is asked.
pub(in crate::upstream) struct Asking<'a> {
    pub(in crate::upstream) client: &'a narval_client::Client,
    pub(in crate::upstream) cache: &'a Url,
    pub(in crate::upstream) store_dir: &'a StoreDir,
    /// The keys of which one must have signed the filter.
    pub(in crate::upstream) keys: Option<&'a TrustedKeys>,
}

impl Asking<'_> {
    /// Fetches the filter, if the upstream has one.
    pub(in crate::upstream) fn load(&self, presence: &Presence) {
        match self.fetch() {
            Ok(known) => presence.loaded(known, LOOK_AGAIN_AFTER),
            Err(reason) => {
                tracing::warn!("upstream {}: its presence filter is not used: {reason}", self.cache);
                presence.is_not_loaded();
            }
        }
    }

    fn fetch(&self) -> Result<Option<Known>, String> {
        if !matches!(self.cache.scheme(), Scheme::Http | Scheme::Https) {
            return Ok(None);
        }
        let url = self.cache.child("nix-cache-info").map_err(|error| error.to_string())?;
        // It is asked again later.
        let Ok(Some(text)) = self.get(&url, CACHE_INFO_LEN_MAX) else { return Ok(None) };
        let Ok(info) = CacheInfo::parse(&text) else { return Ok(None) };
        let Some((_, path)) = info.unknown.iter().find(|(key, _)| key == KEY) else { return Ok(None) };
        let url = self.cache.child(path).map_err(|error| error.to_string())?;
        if url.origin() != self.cache.origin() {
            return Err("it is at another address".to_owned());
        }
        let checked = clock::instant();
        let len_max = (FILTER_LEN_MAX + HEAD_LEN_MAX) as u64;
        let file = self.get(&url, len_max).map_err(|error| error.to_string())?;
        let Some(file) = file else { return Ok(None) };
        let snapshot = Snapshot::parse(&file, self.store_dir, self.keys).map_err(|error| error.to_string())?;
        let Snapshot { instance, sequence, filter } = snapshot;
        // It may have been made long before: what came since is asked for first.
        let checked = checked.checked_sub(FRESH_FOR).unwrap_or(checked);
        let path = path.clone();
        Ok(Some(Known { path, instance, sequence, filter: Arc::new(filter), added: HashSet::new(), checked }))
    }

    /// Asks for what came since a filter; `None` if it is to be fetched again.
    pub(in crate::upstream) fn changes(&self, check: &Check) -> Result<Option<Changes>, HttpError> {
        let Check { path, instance, since, nonce, .. } = check;
        let Ok(url) = self.cache.child(&format!("{path}?since={instance:016x}.{since}&nonce={nonce:032x}")) else {
            return Ok(None);
        };
        match self.get(&url, (CHANGES_MAX * 8 + HEAD_LEN_MAX) as u64) {
            Ok(file) => Ok(file.and_then(|file| {
                let changes = Changes::parse(&file, self.store_dir, self.keys);
                changes.inspect_err(|error| tracing::warn!("upstream {}: {error}", self.cache)).ok()
            })),
            Err(error) if error.is_answer() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn get(&self, url: &Url, len_max: u64) -> Result<Option<Vec<u8>>, HttpError> {
        self.client.small_answer(&Request::get(url), len_max)
    }
}
