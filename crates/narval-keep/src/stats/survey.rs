//! How full caches are: counted on a thread of its own, so that whoever asks is answered from memory.
//!
//! Counting reads every path, which takes seconds for a million of them. So it is done at most every [`COUNT_EVERY`], takes at most one
//! twentieth of the time, and nobody waits for it. Nothing is counted while nobody asks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use narval_nix::SecretKey;

use crate::index::{Index, IndexError, PathTotals};
use crate::{Cache, CacheName, Data, Rejection};

/// The shortest time between two counts.
const COUNT_EVERY: Duration = Duration::from_secs(30);

/// At most one part in so many of the time is spent on counting.
const REST_FACTOR: u32 = 20;

/// Paths that are counted in one query.
const STEP: usize = 16 * 1024;

/// Ends of tokens that are listed, the nearest first: CI jobs have thousands of short-lived tokens.
const TOKENS_MAX: usize = 100;

/// A token that lasts less than this is exchanged for every job, and its end is no news.
const LASTS_MIN: u64 = 24 * 60 * 60;

/// How full a cache is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fullness {
    /// Paths.
    pub paths: u64,
    /// Those of them without a signature by each of the cache's keys, by their names; `None` if it has no key.
    pub unsigned: Option<u64>,
    /// Names of NARs, including aliases.
    pub files: u64,
    /// Bytes of NARs, as they are stored.
    pub nar_bytes: u64,
    /// Bytes of listings.
    pub listing_bytes: u64,
    /// Bytes of build logs.
    pub log_bytes: u64,
    /// Bytes of realisations, debug information and files of unknown kinds.
    pub other_bytes: u64,
    /// Pins.
    pub pins: u64,
    /// When the path that was unused for longest was last pushed or requested, in seconds since 1970.
    pub oldest_use: Option<u64>,
    /// When it was last collected completely, by whichever process, in seconds since 1970.
    pub collected: Option<u64>,
    /// Bytes of NARs and their listings that pins keep.
    pub pinned_bytes: u64,
}

/// What collections of this process have done.
#[derive(Debug, Default)]
pub(crate) struct Collections {
    removed_bytes: AtomicU64,
    last_micros: AtomicU64,
    last_removed_bytes: AtomicU64,
    last_removed_paths: AtomicU64,
}

impl Collections {
    /// Notes a collection that has removed so many paths and bytes.
    pub(crate) fn done(&self, (paths, bytes): (u64, u64), took: Duration) {
        self.removed_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.last_removed_bytes.store(bytes, Ordering::Relaxed);
        self.last_removed_paths.store(paths, Ordering::Relaxed);
        self.last_micros.store(u64::try_from(took.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn stats(&self) -> CollectionStats {
        let last = self.last_micros.load(Ordering::Relaxed);
        CollectionStats {
            removed_bytes: self.removed_bytes.load(Ordering::Relaxed),
            last: (last > 0).then(|| Duration::from_micros(last)),
            last_removed: (
                self.last_removed_paths.load(Ordering::Relaxed),
                self.last_removed_bytes.load(Ordering::Relaxed),
            ),
        }
    }
}

/// What collections of this process have done in a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectionStats {
    /// Bytes of the NARs that they have removed.
    pub removed_bytes: u64,
    /// How long the last one took, if there was one.
    pub last: Option<Duration>,
    /// How many paths the last one has removed, and the bytes of NARs.
    pub last_removed: (u64, u64),
}

/// A token's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenEnd {
    /// Its id.
    pub id: String,
    /// When it ends, in seconds since 1970.
    pub expires: u64,
}

/// All caches of a data folder, as they were counted last.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// The caches.
    pub caches: BTreeMap<CacheName, Fullness>,
    /// Tokens that will end, the nearest first. Without those of CI jobs, which are short-lived.
    pub tokens: Vec<TokenEnd>,
}

/// The last survey, and whether the next one is being made.
#[derive(Debug, Default)]
pub(crate) struct Surveys(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<(Arc<Survey>, Instant, Duration)>,
    is_counting: bool,
    /// Whether keys have changed since the last count began: what is unsigned is another question then.
    is_outdated: bool,
}

impl Surveys {
    /// Makes the next caller count again, however new the last count is.
    pub(crate) fn outdate(&self) {
        self.lock().is_outdated = true;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Data {
    /// The last survey of its caches, however old. Nothing is counted for it.
    pub fn last_survey(&self) -> Option<Arc<Survey>> {
        self.shared().surveys.lock().last.as_ref().map(|(survey, ..)| Arc::clone(survey))
    }

    /// The last survey of its caches; `None` before the first one is complete. If it is not new, the next one is begun on a thread.
    pub fn survey(&self) -> Option<Arc<Survey>> {
        let mut state = self.shared().surveys.lock();
        let is_new =
            |(_, at, took): &(Arc<Survey>, Instant, Duration)| at.elapsed() < COUNT_EVERY.max(*took * REST_FACTOR);
        if !state.is_counting && (state.is_outdated || !state.last.as_ref().is_some_and(is_new)) {
            let data = self.clone();
            let spawned = std::thread::Builder::new().name("survey".into()).spawn(move || count(&data));
            match spawned {
                Ok(_) => (state.is_counting, state.is_outdated) = (true, false),
                Err(error) => tracing::debug!("caches are not counted: cannot start a thread: {error}"),
            }
        }
        state.last.as_ref().map(|(survey, ..)| Arc::clone(survey))
    }

    fn count(&self) -> Result<Survey, Rejection> {
        let caches = self.caches().map_err(Rejection::failed)?;
        let caches = caches.iter().map(|cache| Ok((cache.name().clone(), cache.fullness()?)));
        let caches = caches.collect::<Result<_, Rejection>>()?;
        let ends = |token: crate::index::TokenRecord| {
            let lasts = token.expires?.saturating_sub(token.created);
            let is_shown = token.revoked.is_none() && lasts >= LASTS_MIN;
            is_shown.then_some(TokenEnd { id: token.id, expires: token.expires? })
        };
        let mut tokens: Vec<_> = self.shared().index.tokens()?.into_iter().filter_map(ends).collect();
        tokens.sort_by_key(|token| token.expires);
        tokens.truncate(TOKENS_MAX);
        Ok(Survey { caches, tokens })
    }
}

fn count(data: &Data) {
    let began = Instant::now();
    let counted = data.count();
    let mut state = data.shared().surveys.lock();
    state.is_counting = false;
    let survey = match counted {
        Ok(survey) => Arc::new(survey),
        Err(rejection) => {
            tracing::warn!("caches cannot be counted: {rejection}");
            // The next attempt is not made at once.
            let last = state.last.take().map(|(survey, ..)| survey);
            last.unwrap_or_default()
        }
    };
    state.last = Some((survey, Instant::now(), began.elapsed()));
}

impl Cache {
    /// Counts what is in the cache. This reads every path: for seconds, if there are a million of them.
    ///
    /// # Errors
    /// If the index fails, or the small files cannot be listed.
    pub fn fullness(&self) -> Result<Fullness, Rejection> {
        let usage = self.usage()?;
        let logs = self.bytes_of_logs()?;
        let keys = self.sign_keys();
        let counted = self.counted(&keys)?;
        let now = self.now();
        let pins = self.index().pins(self.id())?.len() as u64;
        Ok(Fullness {
            paths: counted.paths,
            unsigned: (!keys.is_empty()).then_some(counted.unsigned),
            files: usage.files,
            nar_bytes: usage.bytes.saturating_sub(counted.listing_bytes),
            listing_bytes: counted.listing_bytes.min(usage.bytes),
            log_bytes: logs,
            other_bytes: usage.small_bytes.saturating_sub(logs),
            pins,
            pinned_bytes: if pins == 0 { 0 } else { self.pinned_bytes()? },
            oldest_use: counted.oldest_use,
            collected: self.index().collected(self.id())?.map(|ago| now.saturating_sub(ago.as_secs())),
        })
    }

    /// How full it was when its folder was [surveyed](Data::survey) last.
    pub fn surveyed(&self) -> Option<Fullness> {
        self.data().survey()?.caches.get(self.name()).cloned()
    }

    /// What collections of this process have done.
    pub fn collections(&self) -> CollectionStats {
        self.state().collections.stats()
    }

    fn counted(&self, keys: &[SecretKey]) -> Result<PathTotals, IndexError> {
        // Signatures are only looked for, by the names of their keys: a commit has verified them.
        let lines: Vec<Vec<u8>> = keys.iter().map(|key| format!("\nSig: {}:", key.name()).into_bytes()).collect();
        let (index, mut all, mut after): (&dyn Index, _, _) = (self.index(), PathTotals::default(), String::new());
        loop {
            let Some((counted, last)) = index.count(self.id(), &lines, &after, STEP)? else { return Ok(all) };
            all.paths += counted.paths;
            all.unsigned += counted.unsigned;
            all.listing_bytes += counted.listing_bytes;
            all.oldest_use = [all.oldest_use, counted.oldest_use].into_iter().flatten().min();
            after = last;
        }
    }
}
