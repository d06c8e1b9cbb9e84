//! A body that resumes after broken connections, transparently to its reader.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use crate::error::HttpError;
use crate::exchange::body::Body;
use crate::exchange::client::Client;
use crate::exchange::request::{Extra, Request, Response};
use crate::message::coding::names;
use crate::retrying::retry::Attempts;
use crate::url::Url;

/// After this much progress, the number of failures is reset: a server that closes every connection after a megabyte
/// must not fail a download of gigabytes.
const PROGRESS_LEN: u64 = 256 * 1024;

/// Content codings that the reader of a file decodes itself.
#[derive(Clone, Debug, Default)]
pub struct OwnCodings {
    /// The value of `Accept-Encoding`: names, separated by commas. If empty, no coding is accepted.
    pub accepted: String,
    /// Additional fields of the request, with names in lower case.
    pub fields: Vec<(&'static str, String)>,
}

impl OwnCodings {
    /// The accepted coding of a response, if it has exactly one.
    fn find(&self, names: &[String]) -> Option<String> {
        let [name] = names else { return None };
        self.accepted.split(',').any(|own| own.trim() == name).then(|| name.clone())
    }
}

enum State {
    /// The bytes as they are stored.
    Open(Body),
    /// With a content coding that was not requested: its bytes cannot be counted, so the download cannot be resumed.
    Coded(Box<dyn Read + Send>),
    /// Must be requested again.
    Broken,
}

/// The bytes of one file. When a connection breaks, the download resumes where it stopped.
pub struct ResumingBody {
    client: Arc<Client>,
    url: Url,
    own: OwnCodings,
    /// The coding of the bytes, which the reader decodes.
    coding: Option<String>,
    body: State,
    /// The total length, once it is known.
    total: Option<u64>,
    etag: Option<String>,
    position: u64,
    attempts: Attempts,
    failed_at: u64,
    resumes: u32,
}

impl ResumingBody {
    /// Requests the file; `None` if the server does not have it.
    pub fn open(client: &Arc<Client>, url: &Url) -> Result<Option<Self>, HttpError> {
        Self::open_coded(client, url, OwnCodings::default(), false)
    }

    /// Like [`open`](Self::open), but with these codings the bytes are passed on as they are sent: see
    /// [`coding`](Self::coding). `hasty`: a server that is away is not waited for, now and later.
    pub fn open_coded(
        client: &Arc<Client>,
        url: &Url,
        own: OwnCodings,
        hasty: bool,
    ) -> Result<Option<Self>, HttpError> {
        let attempts = || if hasty { Attempts::hasty() } else { Attempts::default() };
        Self::open_with(client, url, own, attempts(), attempts())
    }

    /// Like [`open`](Self::open), with one attempt: another server may have the file. What is read from it later is resumed.
    pub fn open_once(client: &Arc<Client>, url: &Url) -> Result<Option<Self>, HttpError> {
        Self::open_with(client, url, OwnCodings::default(), Attempts::once(), Attempts::default())
    }

    fn open_with(
        client: &Arc<Client>,
        url: &Url,
        own: OwnCodings,
        first: Attempts,
        attempts: Attempts,
    ) -> Result<Option<Self>, HttpError> {
        let response = client.retrying_as(first, url, || {
            let response = send(client, Request::get(url), &own)?;
            match response.head.status {
                200 => Ok(response),
                status if client.says_absent(status, url) => Ok(response),
                _ => Err(status_error(response)),
            }
        })?;
        let Response { head, body } = response;
        if head.status != 200 {
            body.drain();
            return Ok(None);
        }
        let codings = names(&head)?;
        let coding = own.find(&codings);
        let coded = !codings.is_empty() && coding.is_none();
        let total = body.expected_len().filter(|_| !coded);
        let etag = head.field("etag").filter(|tag| !tag.starts_with("W/")).map(str::to_owned);
        let body = if coded { State::Coded(client.codings().reader(body, &codings)?) } else { State::Open(body) };
        let (client, url) = (Arc::clone(client), url.clone());
        let (position, failed_at, resumes) = (0, 0, 0);
        Ok(Some(Self { client, url, own, coding, body, total, etag, position, attempts, failed_at, resumes }))
    }

    /// The rest of a file of a known length whose first bytes came from elsewhere. Nothing is requested yet: the first read, or
    /// [`begin`](Self::begin), reports an absent file, or another one, as [`HttpError::Changed`].
    pub fn rest(client: &Arc<Client>, url: &Url, position: u64, len: u64) -> Self {
        Self {
            client: Arc::clone(client),
            url: url.clone(),
            own: OwnCodings::default(),
            coding: None,
            body: State::Broken,
            total: Some(len),
            etag: None,
            position,
            attempts: Attempts::default(),
            failed_at: position,
            resumes: 0,
        }
    }

    /// Requests what is to be read next, if nothing is requested yet. There is one attempt.
    pub fn begin(&mut self) -> Result<(), HttpError> {
        match self.body {
            State::Broken => self.reopen(),
            State::Open(_) | State::Coded(_) => Ok(()),
        }
    }

    /// The coding of the bytes that are read, if it is one of those that the reader decodes itself.
    pub fn coding(&self) -> Option<&str> {
        self.coding.as_deref()
    }

    /// The file's length, if the server has sent it.
    pub const fn total_len(&self) -> Option<u64> {
        self.total
    }

    /// The entity tag of the file, unless it is a weak one.
    pub fn etag(&self) -> Option<&str> {
        self.etag.as_deref()
    }

    /// The number of bytes read.
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// How often the download was resumed.
    pub const fn resumes(&self) -> u32 {
        self.resumes
    }

    /// Whether a read would not block.
    pub fn is_readable(&self) -> bool {
        match &self.body {
            State::Open(body) => body.is_readable(),
            State::Coded(_) => true,
            State::Broken => false,
        }
    }

    /// Waits until there is something to read, or the end; returns whether there is. `true` if that cannot be told.
    pub fn wait_for_data(&mut self, within: Duration) -> bool {
        match &mut self.body {
            State::Open(body) => body.wait_for_data(within),
            State::Coded(_) | State::Broken => true,
        }
    }

    /// Like [`read_some`](Self::read_some), but resumes nothing itself: after an error, the next read does.
    pub fn read_once(&mut self, out: &mut [u8]) -> Result<usize, HttpError> {
        let State::Open(body) = &mut self.body else { return self.read_some(out) };
        match body.read_some(out) {
            Ok(len) => {
                self.position += len as u64;
                Ok(len)
            }
            Err(error) => {
                self.body = State::Broken;
                Err(error)
            }
        }
    }

    /// Ends the connection, which is too slow, and waits as after other failures: the next read resumes.
    ///
    /// # Errors
    /// The error, if it has failed too often.
    pub fn abort(&mut self, error: HttpError) -> Result<(), HttpError> {
        if matches!(self.body, State::Coded(_)) {
            return Err(error);
        }
        self.after_failure(error)
    }

    /// Reads some bytes; returns 0 at the file's end.
    pub fn read_some(&mut self, out: &mut [u8]) -> Result<usize, HttpError> {
        loop {
            let read = match &mut self.body {
                State::Open(body) => body.read_some(out),
                State::Coded(reader) => return read_coded(reader, out),
                State::Broken => self.reopen().map(|()| usize::MAX),
            };
            match read {
                Ok(usize::MAX) => {}
                Ok(len) => {
                    self.position += len as u64;
                    return Ok(len);
                }
                Err(error) => self.after_failure(error)?,
            }
        }
    }

    /// Waits before the next attempt, or returns the error if there is no further attempt.
    fn after_failure(&mut self, error: HttpError) -> Result<(), HttpError> {
        if self.position >= self.failed_at + PROGRESS_LEN {
            self.attempts.progressed();
        }
        self.failed_at = self.position;
        self.body = State::Broken;
        self.attempts.again(&self.client, &self.url, error)
    }

    /// Requests the rest. A server without ranges sends everything, and the known part is skipped.
    fn reopen(&mut self) -> Result<(), HttpError> {
        self.resumes += 1;
        let request = Request { from: self.position, if_range: self.etag.as_deref(), ..Request::get(&self.url) };
        // Only the coding that it began with can be continued, which the server may not prefer any more.
        let own = match &self.coding {
            Some(coding) => OwnCodings { accepted: coding.clone(), fields: self.own.fields.clone() },
            None => OwnCodings::default(),
        };
        let response = send(&self.client, request, &own)?;
        // Bytes with another coding than that of the first response cannot follow it.
        if names(&response.head)? != self.coding.iter().cloned().collect::<Vec<_>>() {
            return Err(HttpError::Changed);
        }
        let changed = HttpError::Changed;
        match response.head.status {
            206 => {
                let range = response.head.content_range();
                let matches = |(first, total): (u64, Option<u64>)| {
                    first == self.position && (total.is_none() || self.total.is_none() || total == self.total)
                };
                if !range.is_some_and(matches) {
                    return Err(HttpError::Malformed("the Content-Range is not the requested one"));
                }
                self.body = State::Open(response.body);
            }
            200 => {
                let (expected, tag) = (response.body.expected_len(), response.head.field("etag"));
                let other_len = expected.is_some() && self.total.is_some() && expected != self.total;
                let other_tag = self.etag.is_some() && tag.is_some() && tag != self.etag.as_deref();
                if other_len || other_tag {
                    return Err(changed);
                }
                self.body = State::Open(skipped(response.body, self.position)?);
            }
            403 | 404 | 410 | 412 | 416 => return Err(changed),
            _ => return Err(status_error(response)),
        }
        Ok(())
    }
}

fn send(client: &Client, request: Request<'_>, own: &OwnCodings) -> Result<Response, HttpError> {
    let fields: Vec<_> = own.fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let own_codings = (!own.accepted.is_empty()).then_some(own.accepted.as_str());
    client.send(&Request { own_codings, extra: Extra { fields: &fields, ..request.extra }, ..request })
}

fn skipped(mut body: Body, len: u64) -> Result<Body, HttpError> {
    let mut scratch = vec![0; 64 * 1024];
    let mut left = len;
    while left > 0 {
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(scratch.len());
        match body.read_some(scratch.get_mut(..wanted).unwrap_or_default())? {
            0 => return Err(HttpError::Truncated { received: len - left, expected: Some(len) }),
            read => left -= read as u64,
        }
    }
    Ok(body)
}

fn status_error(response: Response) -> HttpError {
    let (status, retry_after) = (response.head.status, response.head.retry_after());
    response.body.drain();
    HttpError::Status { status, retry_after }
}

fn read_coded(reader: &mut impl Read, out: &mut [u8]) -> Result<usize, HttpError> {
    reader.read(out).map_err(|error| match error.downcast::<HttpError>() {
        Ok(error) => error,
        Err(error) => HttpError::Coding(error.to_string()),
    })
}
