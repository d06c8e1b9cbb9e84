//! Requests with a body: sent from memory or from a file, and again from the start if a connection breaks.

use std::fmt::Display;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use super::body::Body;
use super::request::{Extra, Method};
use crate::error::HttpError;
use crate::exchange::client::Client;
use crate::limits::METADATA_LEN_MAX;
use crate::message::head::Head;
use crate::url::{Scheme, Url};
use crate::wire::connection::Connection;

/// Bodies of at least this length are announced with `Expect: 100-continue` (RFC 9110 section 10.1.1): a server that
/// requires credentials, or has the file, responds before they are sent.
const EXPECT_LEN_MIN: u64 = 256 * 1024;
/// How long to wait for `100 Continue`, which not every server supports.
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a server may take to respond once it has everything: it may have to verify and store all of it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// Size of the pieces of a file that are read and sent.
const BUFFER_LEN: usize = 256 * 1024;

/// A request with a body. It must be repeatable.
#[derive(Clone, Copy)]
pub struct Upload<'a> {
    /// PUT or POST.
    pub method: Method,
    /// The target.
    pub url: &'a Url,
    /// `Content-Type`.
    pub content_type: &'a str,
    /// Additional fields and parameters.
    pub extra: Extra<'a>,
    /// The body.
    pub payload: Payload<'a>,
    /// Called with the number of bytes after each sent piece.
    pub on_sent: &'a (dyn Fn(u64) + Sync),
    /// The maximum size of the response body.
    pub answer_len_max: u64,
}

/// The body of an [`Upload`].
#[derive(Clone, Copy)]
pub enum Payload<'a> {
    /// Bytes in memory.
    Bytes(&'a [u8]),
    /// This many bytes from the start of a file.
    File(&'a File, u64),
    /// A section of a file: its offset and its length in bytes.
    Section(&'a File, u64, u64),
}

impl Payload<'_> {
    /// Its length in bytes.
    pub const fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, len) | Self::Section(_, _, len) => *len,
        }
    }

    /// Whether there is nothing to send.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The response to an [`Upload`], with any status.
#[derive(Debug)]
pub struct Answer {
    /// Status and fields.
    pub head: Head,
    /// The body.
    pub body: Vec<u8>,
}

impl Client {
    /// Sends a body and reads the response. Retried according to the [`RetryPolicy`](crate::RetryPolicy) if the
    /// connection breaks, or the server cannot handle it now (408, 429, 5xx). Any other status is returned, also 4xx
    /// and 507 (no space).
    ///
    /// # Errors
    /// If the last attempt failed; redirects are not followed.
    pub fn upload(&self, upload: &Upload<'_>) -> Result<Answer, HttpError> {
        self.retrying(upload.url, || {
            let answer = self.upload_once(upload)?;
            let status = HttpError::Status { status: answer.head.status, retry_after: answer.head.retry_after() };
            if status.is_retryable() && answer.head.status != 507 { Err(status) } else { Ok(answer) }
        })
    }

    fn upload_to_bucket(&self, upload: &Upload<'_>) -> Result<Answer, HttpError> {
        let url = self.sign(upload.method, upload.url, upload.extra)?;
        let extra = Extra { is_signed: true, ..upload.extra };
        let mut answer = self.upload_once(&Upload { url: &url, extra, ..*upload })?;
        if !matches!(answer.head.status, 200..=299) {
            answer.head = Head::local(self.interpret_bucket_error(upload.url, &answer.head, &answer.body)?);
        }
        Ok(answer)
    }

    fn upload_once(&self, upload: &Upload<'_>) -> Result<Answer, HttpError> {
        if self.is_offline() || upload.url.scheme() == Scheme::File {
            return Err(HttpError::Offline);
        }
        if upload.url.scheme() == Scheme::S3 {
            return self.upload_to_bucket(upload);
        }
        let mut span = self.span(upload.method, upload.url, upload.extra);
        let answer = self.uploaded(upload);
        span.answered(answer.as_ref().map(|answer| answer.head.status).map_err(|error| error as &dyn Display));
        answer
    }

    fn uploaded(&self, upload: &Upload<'_>) -> Result<Answer, HttpError> {
        let origin = upload.url.origin();
        let proxy = self.find_proxy(origin)?;
        let expects = upload.payload.len() >= EXPECT_LEN_MIN;
        let mut head = self.render_head(upload.method, upload.url, "identity", proxy.as_ref(), upload.extra);
        head.push_str(&format!("Content-Type: {}\r\n", upload.content_type));
        head.push_str(&format!("Content-Length: {}\r\n", upload.payload.len()));
        head.push_str(if expects { "Expect: 100-continue\r\n\r\n" } else { "\r\n" });
        loop {
            let mut connection = self.connection(origin, proxy.as_ref())?;
            match exchange(&mut connection, head.as_bytes(), upload, expects) {
                Ok((answer, sent_all)) => {
                    if answer.status < 500 {
                        self.pool().answered(origin);
                    }
                    if matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
                        return Err(HttpError::Redirect("a request with a body is not sent elsewhere"));
                    }
                    // If the body is incomplete, the server cannot distinguish it from the next request.
                    let head = if sent_all { answer.clone() } else { answer.closing() };
                    let body = Body::network(connection, &head, answer.status != 204, self.pool(), origin)?;
                    let body = body.read_all(upload.answer_len_max.min(METADATA_LEN_MAX))?;
                    return Ok(Answer { head: answer, body });
                }
                Err(HttpError::Broken { .. }) if connection.reused && !connection.has_buffered() => {
                    drop(connection);
                    Arc::clone(self.pool()).forget_idle(origin);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Sends head and body. Returns the final response's head, and whether the whole body was sent before it arrived.
fn exchange(
    connection: &mut Connection,
    head: &[u8],
    upload: &Upload<'_>,
    expects: bool,
) -> Result<(Head, bool), HttpError> {
    match upload.payload {
        // Head and body in one packet, if they fit.
        Payload::Bytes(bytes) if !expects => {
            connection.send(&[head, bytes].concat())?;
            (upload.on_sent)(bytes.len() as u64);
        }
        _ => {
            connection.send(head)?;
            if expects && let Some(answer) = early_answer(connection)? {
                return Ok((answer, false));
            }
            if let Err(error) = send_payload(connection, upload) {
                // A server that refuses closes its side, but its response may have arrived.
                connection.set_timeout(CONTINUE_TIMEOUT)?;
                return match connection.read_final_head() {
                    Ok(answer) => Ok((answer, false)),
                    Err(_) => Err(error),
                };
            }
        }
    }
    connection.set_timeout(ANSWER_TIMEOUT)?;
    let answer = connection.read_final_head()?;
    connection.reset_timeout()?;
    Ok((answer, true))
}

/// Waits for `100 Continue`; returns the response if the server does not want the body.
fn early_answer(connection: &mut Connection) -> Result<Option<Head>, HttpError> {
    connection.set_timeout(CONTINUE_TIMEOUT)?;
    let answer = match connection.read_head() {
        Ok(head) if matches!(head.status, 100..=199) => None,
        Ok(head) => Some(head),
        Err(HttpError::Stalled { .. }) => None,
        Err(error) => return Err(error),
    };
    connection.reset_timeout()?;
    Ok(answer)
}

fn send_payload(connection: &mut Connection, upload: &Upload<'_>) -> Result<(), HttpError> {
    match upload.payload {
        Payload::Bytes(bytes) => {
            for piece in bytes.chunks(BUFFER_LEN) {
                connection.send(piece)?;
                (upload.on_sent)(piece.len() as u64);
            }
        }
        Payload::File(file, len) => send_file(connection, upload, file, 0..len)?,
        Payload::Section(file, start, len) => send_file(connection, upload, file, start..start.saturating_add(len))?,
    }
    Ok(())
}

fn send_file(
    connection: &mut Connection,
    upload: &Upload<'_>,
    file: &File,
    mut range: Range<u64>,
) -> Result<(), HttpError> {
    let mut buffer = vec![0; BUFFER_LEN];
    while !range.is_empty() {
        let wanted = usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(BUFFER_LEN);
        let piece = buffer.get_mut(..wanted).unwrap_or_default();
        let read = file.read_exact_at(piece, range.start);
        read.map_err(|source| HttpError::File { path: "the data to send".into(), source })?;
        connection.send(piece)?;
        (upload.on_sent)(piece.len() as u64);
        range.start += wanted as u64;
    }
    Ok(())
}
