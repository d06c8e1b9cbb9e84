//! `GET /presence-v1`: the filter of the paths that the cache has, and what it got since. The format is in `docs/presence-filters.md`.

use std::time::{Duration, Instant};

use narval_http::semantics::conditional::{Outcome, Validators, evaluate};
use narval_http::{Body, Bytes, HeadRef, HeaderValue, Response, StatusCode, header};
use narval_keep::{Cache, Point};
use narval_nix::presence::{CHANGES_MAX, Changes, Filter, PATHS_MAX, Snapshot, key};
use narval_nix::{SecretKey, StoreDir};
use parking_lot::Mutex;

use crate::config::Config;
use crate::error::ServeError;

/// The key in `nix-cache-info` that tells clients where the filter is.
pub(crate) const CACHE_INFO_KEY: &str = "PresenceFilter";
/// After how many changes a new filter is made: as many as clients get at once, or a part of the paths, if that is more.
const CHANGES_PART: usize = 16;
/// After which time a new filter is made, if anything has changed: paths that were removed are in the old one.
const AGE_MAX: Duration = Duration::from_secs(3600);

/// Held while a filter is made: the process makes one at a time, whatever the number of its caches, because it holds all hash parts meanwhile.
static MAKING: Mutex<()> = Mutex::new(());

/// The filter of a cache.
pub(crate) struct Presence {
    cache: Cache,
    store_dir: StoreDir,
    sign_keys: Vec<SecretKey>,
    /// Names the history that the numbers are of: another process may have seen another one, unless they share it.
    own: u64,
    made: Mutex<Option<Made>>,
}

struct Made {
    file: Bytes,
    etag: HeaderValue,
    point: Point,
    paths: usize,
    at: Instant,
}

impl Presence {
    /// The filter of a cache.
    pub(crate) fn of(cache: &Cache, config: &Config, store_dir: &StoreDir) -> Option<Self> {
        // Without random numbers there is no filter.
        let nonce = SecretKey::generate("instance").ok()?.sign(b"").ok()?;
        Some(Self {
            cache: cache.clone(),
            store_dir: store_dir.clone(),
            sign_keys: config.sign_keys.clone(),
            own: nonce.bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)),
            made: Mutex::default(),
        })
    }

    /// Answers with the filter, or with what came since: `?since=<instance>.<sequence>&nonce=<nonce>`.
    pub(crate) fn answer(&self, head: &HeadRef<'_>) -> Result<Response, ServeError> {
        match head.query() {
            None => self.snapshot(head),
            Some(query) => self.changes(query),
        }
    }

    /// The filter, which is made while nobody else makes it.
    fn snapshot(&self, head: &HeadRef<'_>) -> Result<Response, ServeError> {
        let mut made = self.made.try_lock().ok_or(ServeError::Busy)?;
        let is_old = match &*made {
            None => true,
            Some(made) => {
                let changes_max = CHANGES_MAX.min((made.paths / CHANGES_PART).max(CHANGES_MAX / CHANGES_PART));
                match self.cache.parts_since(made.point, changes_max)? {
                    Some((point, _)) => made.at.elapsed() > AGE_MAX && point != made.point,
                    None => true,
                }
            }
        };
        if is_old {
            let _only = MAKING.try_lock().ok_or(ServeError::Busy)?;
            *made = Some(self.make()?);
        }
        let Some(Made { file, etag, .. }) = &*made else { return Err(ServeError::NoRoute) };
        if evaluate(head, Some(&Validators { etag: Some(etag), last_modified: None })) == Outcome::NotModified {
            return Ok(Response::new(StatusCode::NOT_MODIFIED).header(header::ETAG, etag.clone()));
        }
        Ok(answered(file.clone()).header(header::ETAG, etag.clone()))
    }

    fn make(&self) -> Result<Made, ServeError> {
        let at = Instant::now();
        // Too many paths for a filter: clients ask.
        let (point, parts) = self.cache.all_parts(PATHS_MAX)?.ok_or(ServeError::NoRoute)?;
        let filter = Filter::build(parts.iter().map(key).collect()).map_err(|error| {
            tracing::error!("the presence filter of the cache '{}' cannot be made: {error}", self.cache.name());
            ServeError::NoRoute
        })?;
        let (instance, sequence) = (point.shared.unwrap_or(self.own), point.sequence);
        let file = Snapshot { instance, sequence, filter }.render(&self.store_dir, &self.sign_keys)?;
        tracing::info!(
            "presence filter of the cache '{}': {} paths, {} bytes, {} ms",
            self.cache.name(),
            parts.len(),
            file.len(),
            at.elapsed().as_millis()
        );
        let etag = HeaderValue::from_str(&format!("\"{instance:016x}.{sequence}\""));
        let etag = etag.map_err(|_| ServeError::NoRoute)?;
        Ok(Made { file: file.into(), etag, point, paths: parts.len(), at })
    }

    fn changes(&self, query: &str) -> Result<Response, ServeError> {
        let wrong = ServeError::Batch("the query must be since=<instance>.<sequence>&nonce=<nonce>");
        let Some((instance, sequence, nonce)) = parse(query) else { return Err(wrong) };
        // The filter is of another history, or too much has come since: it is to be fetched again.
        let since = Point { shared: (instance != self.own).then_some(instance), sequence };
        let changes = self.cache.parts_since(since, CHANGES_MAX)?;
        let Some((point, parts)) = changes else { return Ok(Response::new(StatusCode::GONE)) };
        let keys = parts.iter().map(key).collect();
        let changes = Changes { instance, since: sequence, sequence: point.sequence, nonce, keys };
        Ok(answered(changes.render(&self.store_dir, &self.sign_keys)?.into()))
    }
}

impl std::fmt::Debug for Presence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Presence").field("cache", &self.cache.name()).finish_non_exhaustive()
    }
}

fn parse(query: &str) -> Option<(u64, u64, u128)> {
    let (since, nonce) = query.strip_prefix("since=")?.split_once("&nonce=")?;
    let (instance, since) = since.split_once('.')?;
    let instance = u64::from_str_radix(instance, 16).ok().filter(|_| instance.len() == 16)?;
    let nonce = u128::from_str_radix(nonce, 16).ok().filter(|_| nonce.len() == 32)?;
    // An id has 63 bits.
    let since = since.parse().ok().filter(|since| i64::try_from(*since).is_ok())?;
    Some((instance, since, nonce))
}

fn answered(file: Bytes) -> Response {
    Response::new(StatusCode::OK)
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/x-narval-presence"))
        .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
        .body(Body::bytes(file))
}
