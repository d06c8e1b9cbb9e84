//! How full caches are: counted on a thread of its own, so that whoever asks is answered from memory.
//!
//! Counting reads every path, which takes seconds for a million of them. So it is done at most every [`COUNT_EVERY`], takes at most one
//! twentieth of the time, and nobody waits for it. Nothing is counted while nobody asks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_nix::SecretKey;

use crate::cache::Cache;
use crate::data::Data;
use crate::index::{Index, IndexError};
use crate::records::paths::PathTotals;
use crate::rejection::Rejection;
use crate::shared::counts::{CollectionStats, Fullness, Survey, TokenEnd};

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
        let ends = |token: crate::records::tokens::TokenRecord| {
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
