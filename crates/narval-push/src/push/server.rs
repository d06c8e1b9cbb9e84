//! A server to push to: requests, and the interpretation of refusals.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use narval_cache::CacheError;
use narval_client::{Answer, Client, Extra, HttpError, Method, Payload, Request, Scheme, Upload, Url};
use narval_nix::cache_info::CACHE_INFO_LEN_MAX;
use narval_nix::{CacheInfo, Sha256, StoreDir};
use narval_s3::{PutError, put_object};

use narval_transfer::Error;

/// The key in `nix-cache-info` with which a cache offers the protocol of `docs/push-protocol.md`.
const PROTOCOL_KEY: &str = "NarvalPush";
/// The key with which it says that it takes several NARs in one request.
const NARS_KEY: &str = "NarvalPushNars";
/// How to give credentials to a command that pushes.
const CREDENTIALS: &str = "give a token with --token-file, or an entry in netrc (--netrc-file), or --header";
/// The maximum length of a displayed message of a refusal.
const MESSAGE_LEN_MAX: usize = 1024;
/// The maximum size of a response that can only be a message.
pub(super) const ANSWER_LEN_MAX: u64 = 64 * 1024;

/// A cache over HTTP, or in a bucket.
pub(super) struct Server {
    pub(super) url: Url,
    pub(super) client: Arc<Client>,
    pub(super) store_dir: StoreDir,
    pub(super) unsigned: AtomicUsize,
}

/// What a cache offers of the protocol of `docs/push-protocol.md`.
pub(super) struct Protocol {
    /// The base of its URLs.
    pub(super) url: Url,
    /// Whether it takes several NARs in one request.
    pub(super) takes_nars: bool,
}

/// A request with a body.
pub(super) struct Sent<'a> {
    pub(super) method: Method,
    pub(super) url: &'a Url,
    pub(super) content_type: &'a str,
    /// More field lines, with names in lower case.
    pub(super) fields: &'a [(&'a str, &'a str)],
    pub(super) payload: Payload<'a>,
    pub(super) answer_len_max: u64,
}

impl Server {
    pub(super) fn new(url: Url, client: Arc<Client>, store_dir: StoreDir) -> Self {
        Self { url, client, store_dir, unsigned: AtomicUsize::new(0) }
    }

    /// Committed paths that have no signature of the cache, although it signs.
    pub(super) fn unsigned(&self) -> usize {
        self.unsigned.load(Ordering::Relaxed)
    }

    /// Requests sent so far.
    pub(super) fn requests(&self) -> u64 {
        self.client.counts().0
    }

    /// Reads the `nix-cache-info`, or uploads one if there is none and it `is_written`. Returns what the cache offers of
    /// Narval's protocol, if anything.
    pub(super) fn open(&self, is_written: bool) -> Result<Option<Protocol>, Error> {
        let url = self.url.child("nix-cache-info")?;
        let answer = self.small(&url, CACHE_INFO_LEN_MAX as u64);
        let refused = |reason: String| CacheError::Refused { cache: self.url.to_string(), reason };
        let Some(text) = answer.map_err(|error| self.failed("nix-cache-info", error))? else {
            if is_written {
                let text = format!("StoreDir: {}\n", self.store_dir);
                self.put_text(&url, "text/x-nix-cache-info", &text)?;
            }
            return Ok(None);
        };
        let info = CacheInfo::parse(&text).map_err(|error| refused(format!("nix-cache-info: {error}")))?;
        if info.store_dir != self.store_dir {
            let (theirs, ours) = (&info.store_dir, &self.store_dir);
            return Err(refused(format!("is a cache for the store {theirs}, and this one is {ours}")).into());
        }
        let offered = info.unknown.iter().find(|(key, _)| key == PROTOCOL_KEY);
        // Only below the cache itself: a cache must not decide where credentials are sent.
        let protocol = offered.and_then(|(_, path)| self.url.child(&format!("{}/", path.trim_end_matches('/'))).ok());
        let takes_nars = info.unknown.iter().any(|(key, _)| key == NARS_KEY);
        Ok(protocol.filter(|to| to.origin() == self.url.origin()).map(|url| Protocol { url, takes_nars }))
    }

    /// A small file; `None` if the cache does not have it, or the credentials only allow to write.
    pub(super) fn small(&self, url: &Url, len_max: u64) -> Result<Option<Vec<u8>>, HttpError> {
        let answer = self.client.retrying(url, || self.client.metadata_once(url, len_max));
        match answer {
            Err(HttpError::Status { status: 403, .. }) => Ok(None),
            answer => answer,
        }
    }

    /// Whether a file exists.
    pub(super) fn has(&self, url: &Url) -> Result<bool, Error> {
        let request = Request { method: Method::Head, ..Request::get(url) };
        let answer = self.client.retrying(url, || self.client.small_answer(&request, ANSWER_LEN_MAX));
        Ok(answer.map_err(|error| self.failed(&url.target(), error))?.is_some())
    }

    /// Stores a file with this hash.
    pub(super) fn put(
        &self,
        url: &Url,
        content_type: &str,
        (payload, hash): (Payload<'_>, Sha256),
        on_sent: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Error> {
        if url.scheme() == Scheme::S3 {
            let stored = put_object(&self.client, url, content_type, (payload, hash), on_sent);
            return stored.map_err(|source| match source {
                PutError::Http(error) => self.fetch_error(&url.to_string(), error).into(),
                error => CacheError::Refused { cache: self.url.to_string(), reason: error.to_string() }.into(),
            });
        }
        let (method, fields, answer_len_max) = (Method::Put, &[], ANSWER_LEN_MAX);
        let sent = Sent { method, url, content_type, fields, payload, answer_len_max };
        self.accepted(url, self.send(&sent, on_sent)?).map(drop)
    }

    /// Stores a small file.
    pub(super) fn put_text(&self, url: &Url, content_type: &str, text: &str) -> Result<(), Error> {
        self.put(url, content_type, (Payload::Bytes(text.as_bytes()), Sha256::of(text.as_bytes())), &|_| {})
    }

    /// Sends a body. Returns the response, with any status.
    pub(super) fn send(&self, sent: &Sent<'_>, on_sent: &(dyn Fn(u64) + Sync)) -> Result<Answer, Error> {
        let &Sent { method, url, content_type, fields, payload, answer_len_max } = sent;
        let extra = Extra { fields, ..Extra::default() };
        let upload = Upload { method, url, content_type, extra, payload, on_sent, answer_len_max };
        self.client.upload(&upload).map_err(|error| self.failed(&url.target(), error))
    }

    /// The body of a response, unless it is a refusal.
    pub(super) fn accepted(&self, url: &Url, answer: Answer) -> Result<Vec<u8>, Error> {
        match answer.head.status {
            200..=299 | 304 => Ok(answer.body),
            status => Err(self.rejected(&url.target(), status, &answer.body)),
        }
    }

    /// The error for a refusal, on one line.
    pub(super) fn rejected(&self, what: &str, status: u16, body: &[u8]) -> Error {
        // RFC 9457.
        let problem: Option<serde_json::Value> = serde_json::from_slice(body).ok();
        let detail = problem.as_ref().and_then(|problem| problem.get("detail")?.as_str());
        let body = detail.map_or(body, str::as_bytes);
        let text = String::from_utf8_lossy(body.get(..MESSAGE_LEN_MAX).unwrap_or(body));
        let looks_like_a_page = text.trim_start().starts_with('<');
        let text: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
        let message = match (status, text.trim()) {
            (401 | 407, text) if text.is_empty() || looks_like_a_page => {
                format!("credentials are missing, wrong or expired; {CREDENTIALS}")
            }
            (401, text) => format!("{text}; {CREDENTIALS}"),
            (_, text) if !text.is_empty() && !looks_like_a_page => text.to_owned(),
            (403, _) => "the credentials do not allow it".to_owned(),
            (404 | 405 | 501, _) => "this cache cannot be written over HTTP".to_owned(),
            (413, _) => "it is larger than the server, or a proxy in front of it, accepts".to_owned(),
            (507, _) => "the server has no space left".to_owned(),
            _ => "no reason given".to_owned(),
        };
        Error::Refused { cache: self.url.to_string(), what: what.to_owned(), status, message }
    }

    /// The error for a failed request. If credentials were refused, it names the options for them.
    pub(super) fn failed(&self, what: &str, source: HttpError) -> Error {
        match source {
            HttpError::Status { status: status @ (401 | 407), .. } => self.rejected(what, status, b""),
            source => self.fetch_error(what, source).into(),
        }
    }

    pub(super) fn fetch_error(&self, what: &str, source: HttpError) -> CacheError {
        CacheError::Fetch { cache: self.url.to_string(), what: what.to_owned(), source }
    }
}
