//! One binary cache: its `nix-cache-info` and its narinfos.

use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_nix::narinfo::NARINFO_LEN_MAX;
use narval_nix::{CacheInfo, HashPart, NarInfo, PublicKey, StoreDir};

use narval_client::{Attempts, Client, HttpError, Method, Request, Url};

use crate::advice::published_keys;
use crate::error::CacheError;
use crate::file::read_small_once;
use crate::wanted::Wanted;
use narval_client::Breaker;

/// Nix's default for caches without a priority.
const PRIORITY_DEFAULT: i64 = 50;
/// The maximum size of a `nix-cache-info`.
const CACHE_INFO_LEN_MAX: u64 = 64 * 1024;
/// The maximum number of hash parts per batch request.
pub const BATCH_MAX: usize = 1000;
/// The maximum size of a batch response.
const BATCH_LEN_MAX: u64 = 64 * 1024 * 1024;
/// The key in `nix-cache-info` with which a cache offers batch lookups (`docs/batch-protocol.md`).
const BATCH_KEY: &str = "BatchLookup";
/// The line in `nix-cache-info` with which a cache offers deltas of NARs (`docs/deltas.md`).
const DELTAS: (&str, &str) = ("NarDeltas", "dcz");

/// An open cache, whose `nix-cache-info` is known.
pub struct BinaryCache {
    url: Url,
    client: Arc<Client>,
    store_dir: StoreDir,
    /// Lower wins.
    priority: i64,
    batch: Option<Url>,
    /// Whether it sends deltas.
    deltas: bool,
    /// How long its `nix-cache-info` took, from the connection's start.
    opened_in: Duration,
    /// The keys in its `nix-cache-info`.
    published: Vec<PublicKey>,
    pub(crate) breaker: Breaker,
    /// Whether its `nix-cache-info` could not be read.
    pub(crate) silent: bool,
}

impl BinaryCache {
    /// Reads the `nix-cache-info`. Without one, the defaults apply; a cache for another store directory is rejected. A
    /// cache that does not respond is opened with its circuit breaker open: it may recover.
    ///
    /// # Errors
    /// [`CacheError::Refused`] for another store directory, or an invalid `nix-cache-info`.
    pub fn open(url: Url, client: &Arc<Client>, store_dir: &StoreDir) -> Result<Self, CacheError> {
        let refused = |reason: String| CacheError::Refused { cache: url.to_string(), reason };
        let asked_priority = url.query_value("priority").and_then(|value| value.parse().ok());
        let breaker = Breaker::default();
        let (mut priority, mut batch, mut published) = (PRIORITY_DEFAULT, None, Vec::new());
        let (mut deltas, mut silent) = (false, false);
        let begun = Instant::now();
        match read_small_once(client, &url.child("nix-cache-info")?, CACHE_INFO_LEN_MAX) {
            Ok(Some(text)) if is_html(&text) => return Err(refused(format!("nix-cache-info: {HTML}"))),
            Ok(Some(text)) => {
                let info = CacheInfo::parse(&text).map_err(|error| refused(format!("nix-cache-info: {error}")))?;
                if info.store_dir != *store_dir {
                    let (theirs, ours) = (&info.store_dir, store_dir);
                    return Err(refused(format!("is a cache for the store {theirs}, and this one is {ours}")));
                }
                priority = info.priority.unwrap_or(PRIORITY_DEFAULT);
                deltas = offers_deltas(&info);
                // They only matter for messages: one that is invalid is as good as none.
                published = published_keys(&info).unwrap_or_default();
                let offered = info.unknown.iter().find(|(key, _)| key == BATCH_KEY);
                // Only below the cache itself: a cache must not direct requests elsewhere.
                let endpoint = offered.and_then(|(_, path)| url.child(&format!("{path}?want=closure")).ok());
                batch = endpoint.filter(|to| to.origin() == url.origin());
            }
            Ok(None) => tracing::debug!(cache = %url, "has no nix-cache-info"),
            Err(HttpError::Certificates(reason)) => return Err(CacheError::Certificates { reason }),
            Err(error @ (HttpError::Offline | HttpError::File { .. })) => {
                return Err(CacheError::Fetch { cache: url.to_string(), what: "nix-cache-info".into(), source: error });
            }
            Err(error) if error.is_auth() => {
                return Err(CacheError::Fetch { cache: url.to_string(), what: "nix-cache-info".into(), source: error });
            }
            Err(error) => {
                tracing::debug!(cache = %url, %error, "does not respond");
                silent = true;
                breaker.trip();
            }
        }
        let priority = asked_priority.unwrap_or(priority);
        let (client, store_dir, opened_in) = (Arc::clone(client), store_dir.clone(), begun.elapsed());
        Ok(Self { url, client, store_dir, priority, batch, deltas, opened_in, published, breaker, silent })
    }

    /// A cache without requesting its `nix-cache-info`.
    pub(crate) fn unasked(url: Url, client: &Arc<Client>, store_dir: &StoreDir, priority: i64) -> Self {
        let (client, store_dir, breaker) = (Arc::clone(client), store_dir.clone(), Breaker::default());
        let (batch, deltas, opened_in) = (None, false, Duration::ZERO);
        Self {
            url,
            client,
            store_dir,
            priority,
            batch,
            deltas,
            opened_in,
            published: Vec::new(),
            breaker,
            silent: false,
        }
    }

    /// Its address, without secrets.
    pub const fn url(&self) -> &Url {
        &self.url
    }

    /// Its priority: lower wins.
    pub const fn priority(&self) -> i64 {
        self.priority
    }

    /// The client for its requests.
    pub const fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// The keys that it publishes.
    pub(crate) fn published(&self) -> &[PublicKey] {
        &self.published
    }

    /// Whether it supports batch lookups.
    pub const fn answers_batches(&self) -> bool {
        self.batch.is_some()
    }

    /// Whether it may send the difference between a NAR and one that the client has.
    pub const fn sends_deltas(&self) -> bool {
        self.deltas
    }

    /// Reads from its `nix-cache-info` whether it sends deltas, with one attempt.
    ///
    /// # Errors
    /// If it does not respond.
    pub(crate) fn asks_for_deltas(&self) -> Result<bool, CacheError> {
        let text = read_small_once(&self.client, &self.url.child("nix-cache-info")?, CACHE_INFO_LEN_MAX);
        let text = text.map_err(|error| self.fetch_error("nix-cache-info", error))?;
        let info = text.and_then(|text| CacheInfo::parse(&text).ok());
        Ok(info.is_some_and(|info| offers_deltas(&info)))
    }

    /// How long its `nix-cache-info` took, including the connection: two round trips at least.
    pub const fn opened_in(&self) -> Duration {
        self.opened_in
    }

    /// The URL of the NAR of a narinfo of this cache.
    ///
    /// # Errors
    /// [`CacheError::NarInfo`] if its `URL` is not allowed for this type of cache: from the network to a local
    /// file, or out of the folder of a `file` cache.
    pub fn nar_url(&self, info: &NarInfo) -> Result<Url, CacheError> {
        self.url.child(&info.url).map_err(|error| CacheError::NarInfo {
            cache: self.url.to_string(),
            what: info.path.hash_part(),
            reason: format!("its URL: {error}"),
        })
    }

    /// Requests one narinfo; `None` if the cache has none.
    pub(crate) fn narinfo(&self, wanted: &Wanted, patience: Patience) -> Result<Option<NarInfo>, CacheError> {
        let hash_part = wanted.hash_part();
        let url = self.url.child(&format!("{hash_part}.narinfo"))?;
        let mut attempts = if patience == Patience::Full { Attempts::default() } else { Attempts::hasty() };
        loop {
            match read_small_once(&self.client, &url, NARINFO_LEN_MAX as u64) {
                Ok(answer) => {
                    self.breaker.succeeded();
                    return answer.map(|text| self.parse(wanted, &text)).transpose();
                }
                // It has answered.
                Err(error) if error.is_answer() => {
                    self.breaker.succeeded();
                    return Err(self.fetch_error(hash_part.as_str(), error));
                }
                Err(error) => {
                    let retry = match (self.breaker.failed(), patience) {
                        (_, Patience::None) | (true, Patience::UntilBreakerOpens) => Err(error),
                        _ => attempts.again(&self.client, &url, error),
                    };
                    retry.map_err(|error| self.fetch_error(hash_part.as_str(), error))?;
                }
            }
        }
    }

    /// Parses a narinfo, and checks that it is the requested one: by its whole name if that is known, as Nix does
    /// (`binary-cache-store.cc`). One with another name would be dropped later, because nothing refers to it.
    pub(crate) fn parse(&self, wanted: &Wanted, text: &[u8]) -> Result<NarInfo, CacheError> {
        let (cache, hash_part) = (self.url.to_string(), wanted.hash_part());
        if is_html(text) {
            return Err(CacheError::NarInfo { cache, what: hash_part, reason: HTML.to_owned() });
        }
        let info =
            NarInfo::parse(text, &self.store_dir).map_err(|error| CacheError::narinfo(&cache, hash_part, &error))?;
        if !wanted.is(&info.path) {
            let reason = match wanted {
                Wanted::Path(path) => format!("it is that of {}, and {path} was asked for", info.path),
                Wanted::HashPart(_) => format!("it is that of {}", info.path),
            };
            return Err(CacheError::NarInfo { cache, what: hash_part, reason });
        }
        Ok(info)
    }

    /// Requests the narinfos of many paths and their closures in one request. Each is checked like a single one.
    pub(crate) fn batch(&self, hash_parts: &[HashPart]) -> Result<Vec<NarInfo>, CacheError> {
        let Some(url) = &self.batch else { return Ok(Vec::new()) };
        let question = hash_parts.iter().map(HashPart::as_str).collect::<Vec<_>>().join("\n") + "\n";
        let request =
            Request { method: Method::Post, body: question.as_bytes(), accepts_coding: true, ..Request::get(url) };
        let answer = self.client.small_answer(&request, BATCH_LEN_MAX);
        let text = answer.map_err(|error| self.fetch_error("many narinfos at once", error))?.unwrap_or_default();
        self.parse_batch(&text)
    }

    /// Parses entries up to the line `end`; without it, the response is incomplete and not used.
    fn parse_batch(&self, mut rest: &[u8]) -> Result<Vec<NarInfo>, CacheError> {
        let broken =
            || self.fetch_error("many narinfos at once", HttpError::Malformed("the batch answer does not parse"));
        let mut infos = Vec::new();
        loop {
            let end = rest.iter().position(|byte| *byte == b'\n').ok_or_else(broken)?;
            let (line, tail) = rest.split_at_checked(end).ok_or_else(broken)?;
            rest = tail.get(1..).unwrap_or_default();
            let (name, value) = str::from_utf8(line).ok().and_then(|line| line.split_once(' ')).ok_or_else(broken)?;
            match value {
                _ if name == "end" => return Ok(infos),
                "absent" | "present" => {}
                len => {
                    let hash_part = HashPart::parse(name.as_bytes()).map_err(|_| broken())?;
                    let (narinfo, tail) =
                        len.parse().ok().and_then(|len| rest.split_at_checked(len)).ok_or_else(broken)?;
                    rest = tail;
                    infos.push(self.parse(&Wanted::HashPart(hash_part), narinfo)?);
                }
            }
        }
    }

    /// Converts an error of a request to this cache.
    pub fn fetch_error(&self, what: &str, source: HttpError) -> CacheError {
        CacheError::Fetch { cache: self.url.to_string(), what: what.to_owned(), source }
    }
}

/// How long a cache is waited for that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// One attempt.
    None,
    /// Retries, until the breaker opens: other caches may have the path.
    UntilBreakerOpens,
    /// All that the client's policy allows.
    Full,
}

/// What to think of a page in place of a file of a cache: networks of hotels answer any request with one.
const HTML: &str = "this is an HTML page; is a login needed?";

/// Whether a text is an HTML page. No line of a narinfo or a `nix-cache-info` begins like that.
fn is_html(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text).trim_ascii_start();
    let starts = |with: &[u8]| text.get(..with.len()).is_some_and(|start| start.eq_ignore_ascii_case(with));
    starts(b"<!doctype") || starts(b"<html") || starts(b"<!--") || starts(b"<head")
}

fn offers_deltas(info: &CacheInfo) -> bool {
    info.unknown.iter().any(|(key, value)| (key.as_str(), value.as_str()) == DELTAS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_recognized() {
        for page in ["<!DOCTYPE html>\n", "\n <html>", "\u{feff}<HTML lang=en>", "<!-- x --><html>"] {
            assert!(is_html(page.as_bytes()), "{page}");
        }
        for text in ["", "<", "StorePath: /nix/store/x\n", "StoreDir: /nix/store\n"] {
            assert!(!is_html(text.as_bytes()), "{text}");
        }
    }
}
