//! The objects of a bucket below a prefix, where a writable cache stores its files.
//!
//! Requests are retried after transient errors, with random delays. After several failures in a row, all requests fail at once for
//! a while.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_client::{
    Answer, Client, ClientOptions, Extra, HttpError, Method, Payload, Request, ResumingBody, RetryPolicy, Upload, Url,
    Valid,
};
use narval_nix::Sha256;

use crate::address::{BucketAddress, BucketError};
use crate::checksums::{Sent, with_checksum};
use crate::list::{Listing, Object, page_of, time};
use crate::put::{ObjectPut, put_object};
use crate::put_error::PutError;
use crate::xml::{element, elements};
use narval_client::Breaker;
use narval_client::clock;

/// The maximum number of pages of a list.
const PAGES_MAX: usize = 1 << 20;

/// How often and how fast requests are retried.
const RETRY: RetryPolicy = RetryPolicy {
    attempts: 4,
    patience: Duration::ZERO,
    base: Duration::from_millis(100),
    overload_base: Duration::from_millis(500),
    cap: Duration::from_secs(5),
};

/// How long a connection may make no progress.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a connection may take to be established.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The objects below a prefix.
pub struct Objects {
    client: Arc<Client>,
    /// Never retries.
    once: Client,
    url: Url,
    breaker: Breaker,
    /// In place of an object store.
    #[cfg(any(test, feature = "simulation"))]
    pub simulated: Option<Arc<dyn Simulated>>,
}

/// An object store that is simulated.
#[cfg(any(test, feature = "simulation"))]
pub trait Simulated: Send + Sync {
    /// Stores an object.
    ///
    /// # Errors
    /// As the store answers.
    fn put(&self, key: &str, bytes: &[u8], valid: Option<Valid>) -> Result<(), HttpError>;
    /// Removes an object.
    ///
    /// # Errors
    /// As the store answers.
    fn remove(&self, key: &str, valid: Valid) -> Result<(), HttpError>;
    /// The length of an object, if it is there.
    ///
    /// # Errors
    /// As the store answers.
    fn len(&self, key: &str) -> Result<Option<u64>, HttpError>;
    /// An object, if it is there.
    ///
    /// # Errors
    /// As the store answers.
    fn read(&self, key: &str) -> Result<Option<Vec<u8>>, HttpError>;
    /// Visits the objects below a prefix; returns the folders.
    ///
    /// # Errors
    /// As the store answers.
    fn list(&self, prefix: &str, is_flat: bool, visit: &mut dyn FnMut(Object)) -> Result<Vec<String>, HttpError>;
    /// Whether [`Objects`] remembers attempts that were not answered, as it does without a simulation.
    fn remembers_unanswered(&self) -> bool;
}

/// An upload in parts that is not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    /// Relative to the prefix.
    pub key: String,
    id: String,
    /// When it was begun, in seconds since 1970.
    pub begun: Option<u64>,
}

impl Objects {
    /// The objects below an `s3` address. Nothing is requested yet.
    pub fn new(url: &Url) -> Result<Self, BucketError> {
        BucketAddress::of(url)?;
        let make = |retry| {
            let (connect_timeout, stall_timeout) = (CONNECT_TIMEOUT, STALL_TIMEOUT);
            crate::client::client(ClientOptions { connect_timeout, stall_timeout, retry, ..ClientOptions::default() })
        };
        let once = make(RetryPolicy { attempts: 1, ..RETRY });
        Ok(Self {
            client: Arc::new(make(RETRY)),
            once,
            url: url.clone(),
            breaker: Breaker::default(),
            #[cfg(any(test, feature = "simulation"))]
            simulated: None,
        })
    }

    /// The address of an object.
    pub fn object(&self, key: &str) -> Result<Url, HttpError> {
        Ok(self.url.child(key)?)
    }

    /// The key of the object in the bucket.
    fn full_key(&self, key: &str) -> Result<String, HttpError> {
        Ok(self.object(key)?.bucket_and_key().1.into_owned())
    }

    /// Opens an object; `None` if there is none.
    ///
    /// # Errors
    /// If the store fails, or denies access.
    pub fn get(&self, key: &str) -> Result<Option<ResumingBody>, HttpError> {
        let url = self.object(key)?;
        self.counted(|| match ResumingBody::open(&self.client, &url)? {
            Some(body) => Ok(Some(body)),
            // The body does not tell an absent object from denied access.
            None => self.is_absent(&url).map(|()| None),
        })
    }

    /// The rest of an object of a known length. Nothing is requested yet.
    ///
    /// # Errors
    /// If the store has just failed.
    pub fn rest(&self, key: &str, position: u64, len: u64) -> Result<ResumingBody, HttpError> {
        if self.breaker.is_failing() {
            return Err(self.has_failed());
        }
        Ok(ResumingBody::rest(&self.client, &self.object(key)?, position, len))
    }

    /// A presigned URL: whoever has it can read the object until it expires.
    ///
    /// # Errors
    /// If there are no usable credentials, or the store has just failed.
    pub fn presign(&self, key: &str, valid_for: Duration) -> Result<String, HttpError> {
        if self.breaker.is_open() {
            return Err(self.has_failed());
        }
        self.once.presign(&self.object(key)?, valid_for)
    }

    /// The length of an object; `None` if there is none.
    pub fn len(&self, key: &str) -> Result<Option<u64>, HttpError> {
        #[cfg(any(test, feature = "simulation"))]
        if let Some(simulated) = &self.simulated {
            return simulated.len(key);
        }
        let url = self.object(key)?;
        self.counted(|| {
            self.client.retrying(&url, || {
                let response = self.client.send(&Request { method: Method::Head, ..Request::get(&url) })?;
                match response.head.status {
                    200 => Ok(response.head.field("content-length").and_then(|length| length.parse().ok())),
                    404 => Ok(None),
                    status => Err(HttpError::Status { status, retry_after: response.head.retry_after() }),
                }
            })
        })
    }

    fn is_absent(&self, url: &Url) -> Result<(), HttpError> {
        self.client.retrying(url, || {
            let response = self.client.send(&Request::get(url))?;
            let (status, retry_after) = (response.head.status, response.head.retry_after());
            match status {
                404 => Ok(()),
                // It has appeared meanwhile: the next request finds it.
                200 => Err(HttpError::Changed),
                _ => Err(HttpError::Status { status, retry_after }),
            }
        })
    }

    /// Reads a small object whole; `None` if there is none.
    pub fn read(&self, key: &str, len_max: u64) -> Result<Option<Vec<u8>>, HttpError> {
        #[cfg(any(test, feature = "simulation"))]
        if let Some(simulated) = &self.simulated {
            return simulated.read(key);
        }
        let Some(mut body) = self.get(key)? else { return Ok(None) };
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
        loop {
            match body.read_some(&mut buffer)? {
                0 => return Ok(Some(bytes)),
                len => bytes.extend_from_slice(buffer.get(..len).unwrap_or_default()),
            }
            if bytes.len() as u64 > len_max {
                return Err(HttpError::TooLarge { limit: len_max });
            }
        }
    }

    /// Stores an object, in parts if it is a large file.
    pub fn put(&self, key: &str, content_type: &str, payload: Payload<'_>, hash: Sha256) -> io::Result<()> {
        #[cfg(any(test, feature = "simulation"))]
        if let (Some(simulated), Payload::Bytes(bytes)) = (&self.simulated, &payload) {
            return simulated.put(key, bytes, None).map_err(io::Error::other);
        }
        let url = self.object(key).map_err(io::Error::other)?;
        self.counted_io(|| put_object(&self.client, &url, content_type, (payload, hash), &|_| {}))
    }

    /// Stores a small object. No attempt takes effect after `until`, because its signature has expired by then.
    pub fn put_until(&self, key: &str, content_type: &str, bytes: &[u8], until: Instant) -> Result<(), HttpError> {
        let (url, hash, payload) = (self.object(key)?, Sha256::of(bytes), Payload::Bytes(bytes));
        self.until(until, |valid| {
            #[cfg(any(test, feature = "simulation"))]
            if let Some(simulated) = &self.simulated {
                return simulated.put(key, bytes, Some(valid));
            }
            let (method, on_sent, answer_len_max) = (Method::Put, &|_| {}, 64 * 1024);
            let sent = with_checksum((&url, Sent::Whole), payload, hash, |checksum| {
                let extra = Extra { fields: &[checksum.field()], valid: Some(valid), ..Extra::default() };
                let upload = Upload { method, url: &url, content_type, extra, payload, on_sent, answer_len_max };
                Ok(self.once.upload(&upload)?)
            });
            let (Answer { head, .. }, _) = sent.map_err(PutError::into_http)?;
            match head.status {
                200..=299 => Ok(()),
                status => Err(HttpError::Status { status, retry_after: head.retry_after() }),
            }
        })
    }

    /// Removes an object if it exists. No attempt takes effect after `until`, because its signature has expired by then.
    pub fn remove_until(&self, key: &str, until: Instant) -> Result<(), HttpError> {
        let url = self.object(key)?;
        self.until(until, |valid| {
            #[cfg(any(test, feature = "simulation"))]
            if let Some(simulated) = &self.simulated {
                return simulated.remove(key, valid);
            }
            let extra = Extra { valid: Some(valid), ..Extra::default() };
            let response = self.once.send(&Request { method: Method::Delete, extra, ..Request::get(&url) })?;
            let (status, retry_after) = (response.head.status, response.head.retry_after());
            response.body.drain();
            match status {
                200..=299 | 404 => Ok(()),
                status => Err(HttpError::Status { status, retry_after }),
            }
        })
    }

    /// Whether an attempt without an answer counts, even if a later one succeeds. Only a simulation takes this rule out.
    fn remembers_unanswered(&self) -> bool {
        #[cfg(any(test, feature = "simulation"))]
        if let Some(simulated) = &self.simulated {
            return simulated.remembers_unanswered();
        }
        true
    }

    /// Runs attempts, each signed for the rest of the time. An error if one was not answered, even if a later one succeeded: it may take
    /// effect after that, and after what others do next.
    fn until(&self, until: Instant, attempt: impl Fn(Valid) -> Result<(), HttpError>) -> Result<(), HttpError> {
        self.counted(|| {
            let (mut failures, mut unanswered) = (0, None);
            loop {
                // In this order: a pause between the two, or before the request is signed, makes the time shorter.
                let from = clock::system_time();
                let left = until.saturating_duration_since(clock::instant()).as_secs();
                // Rounded down: a signature has whole seconds.
                let seconds = u32::try_from(left).unwrap_or(u32::MAX);
                if seconds == 0 {
                    let message = "it took too long, and may be another server's work by now".to_owned();
                    return Err(HttpError::Bucket { status: 0, message, retry_after: None, is_retryable: false });
                }
                let error = match attempt(Valid { from, seconds }) {
                    Ok(()) => return unanswered.map_or(Ok(()), Err),
                    Err(error) => error,
                };
                failures += 1;
                match wait(failures, &error) {
                    Some(wait) if clock::instant() + wait + Duration::from_secs(1) < until => clock::sleep(wait),
                    _ => return Err(error),
                }
                if may_take_effect(&error) && self.remembers_unanswered() {
                    unanswered = Some(error);
                }
            }
        })
    }

    /// Lists objects in the order of their keys: all below `prefix`, or with `is_flat` only those directly in it.
    pub fn list(&self, prefix: &str, is_flat: bool, visit: &mut dyn FnMut(Object)) -> Result<Vec<String>, HttpError> {
        #[cfg(any(test, feature = "simulation"))]
        if let Some(simulated) = &self.simulated {
            return simulated.list(prefix, is_flat, visit);
        }
        let root = self.full_key("x")?;
        let root = root.strip_suffix('x').unwrap_or_default();
        let listing = Listing { root, prefix, is_flat, pages_max: PAGES_MAX };
        let folders = listing.read(|query| self.page(query), visit)?;
        folders.ok_or(HttpError::Malformed("the list of objects has no end"))
    }

    /// Uploads in parts that are not complete.
    pub fn unfinished(&self) -> Result<Vec<Unfinished>, HttpError> {
        let root = self.full_key("x")?;
        let root = root.strip_suffix('x').unwrap_or_default();
        let (mut found, mut after) = (Vec::new(), None::<(String, String)>);
        for _ in 0..PAGES_MAX {
            let mut query = vec![("prefix", root), ("uploads", "")];
            if let Some((key, id)) = &after {
                query.extend([("key-marker", key.as_str()), ("upload-id-marker", id.as_str())]);
            }
            let page = self.page(&query)?;
            for entry in elements(&page, "Upload") {
                let (key, id) = (element(entry, "Key"), element(entry, "UploadId"));
                if let (Some(key), Some(id)) = (key.as_deref().and_then(|key| key.strip_prefix(root)), id) {
                    found.push(Unfinished { key: key.to_owned(), id, begun: time(entry, "Initiated") });
                }
            }
            after = element(&page, "NextKeyMarker").zip(element(&page, "NextUploadIdMarker"));
            if element(&page, "IsTruncated").as_deref() != Some("true") || after.is_none() {
                return Ok(found);
            }
        }
        Err(HttpError::Malformed("the list of uploads has no end"))
    }

    /// Aborts an upload in parts.
    pub fn abort(&self, unfinished: &Unfinished) -> Result<(), HttpError> {
        let url = self.object(&unfinished.key)?;
        let query = [("uploadId", unfinished.id.as_str())];
        let extra = Extra { query: &query, ..Extra::default() };
        let request = Request { method: Method::Delete, extra, ..Request::get(&url) };
        self.client.retrying(&url, || self.client.small_answer(&request, 64 * 1024)).map(drop)
    }

    fn page(&self, query: &[(&str, &str)]) -> Result<String, HttpError> {
        self.counted(|| page_of(&self.client, &self.url, query))
    }

    /// The requests that store an object in parts.
    pub fn storing<'a>(&'a self, url: &'a Url) -> ObjectPut<'a> {
        ObjectPut { client: &self.client, url, content_type: "application/x-nix-nar", on_sent: &|_| {} }
    }

    fn has_failed(&self) -> HttpError {
        HttpError::Bucket {
            status: 503,
            message: format!("{} has just failed several times in a row", self.url),
            retry_after: None,
            is_retryable: true,
        }
    }

    /// Makes requests unless the store has just failed several times in a row.
    pub fn counted<T>(&self, ask: impl FnOnce() -> Result<T, HttpError>) -> Result<T, HttpError> {
        if self.breaker.is_open() {
            return Err(self.has_failed());
        }
        let answer = ask();
        match &answer {
            Err(error) if is_failing(error) => {
                self.breaker.failed();
            }
            _ => self.breaker.succeeded(),
        }
        answer
    }

    /// Like [`counted`](Self::counted), for uploads.
    pub fn counted_io<T>(&self, put: impl FnOnce() -> Result<T, PutError>) -> io::Result<T> {
        let mut failed = None;
        let answer = self.counted(|| match put() {
            Ok(done) => Ok(Some(done)),
            Err(PutError::Http(error)) => Err(error),
            Err(error) => {
                failed = Some(error);
                Ok(None)
            }
        });
        match (answer, failed) {
            (_, Some(error)) => Err(io::Error::other(error)),
            (Ok(Some(done)), None) => Ok(done),
            (Ok(None), None) => Err(io::ErrorKind::Other.into()),
            (Err(error), None) => Err(io::Error::other(error)),
        }
    }
}

/// Whether the store fails, or is not the one that it should be: 404 that does not say that an object is absent.
pub fn is_failing(error: &HttpError) -> bool {
    error.is_retryable() || matches!(error, HttpError::Bucket { status: 404, .. })
}

/// Whether a request that failed like this was sent, and may not have arrived yet.
const fn may_take_effect(error: &HttpError) -> bool {
    let is_answered = matches!(error, HttpError::Status { .. } | HttpError::Bucket { .. });
    !is_answered && !matches!(error, HttpError::Resolve { .. } | HttpError::Connect { .. } | HttpError::Tls { .. })
}

/// How long to wait before the next attempt; `None` if none is made.
fn wait(failures: u32, error: &HttpError) -> Option<Duration> {
    let wait = RETRY.wait(failures, None, error)?;
    // Not a random part of it in a simulation, which repeats what a seed has done.
    Some(if clock::has_threads() { wait } else { RETRY.base * failures })
}
