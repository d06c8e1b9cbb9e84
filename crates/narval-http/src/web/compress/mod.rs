//! Compression of responses (RFC 9110 section 8.4) as a middleware.

mod encoder;
mod source;
#[cfg(test)]
mod tests;

use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE, ETAG, VARY,
};
use http::{HeaderName, HeaderValue, Method, StatusCode};

use crate::http1::accept::{Coding, negotiate_coding};
use crate::http1::head_parts::{HeadRef, lists};
use crate::http1::response_head::has_content;
use crate::message::body::source::{BodySource, Fill, SegmentBuf};
use crate::message::body::{Body, BodyKind};
use crate::message::request::Request;
use crate::message::response::Response;
use crate::web::files::is_compressible;
use crate::web::middleware::{Middleware, Next};

use encoder::Encoder;
use source::CompressedSource;

/// Bodies in memory up to this size, in bytes, are compressed at once, so that the response has a `Content-Length`;
/// larger ones as the client reads them.
const AT_ONCE_MAX: u64 = SegmentBuf::QUANTUM as u64;

/// A [`Middleware`] that compresses responses for clients that accept it.
///
/// It compresses compressible types (text and similar) of at least [`bytes_min`](Compression::bytes_min), streams
/// included, unless the response is a range, is encoded already, or has `Cache-Control: no-transform`. It adds `Vary:
/// Accept-Encoding` where the request field mattered, and makes a strong `ETag` weak. `text/event-stream` is not
/// compressed.
///
/// ```
/// use narval_http::{Compression, Router};
///
/// let app = Router::new().layer(Compression::default()).get("/", || "hello ".repeat(1000)).build()?;
/// # Ok::<(), narval_http::RouteError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Compression {
    codings: Vec<Coding>,
    bytes_min: u64,
}

impl Default for Compression {
    /// zstd, br (with the feature `brotli`), gzip and deflate, in this order, from 860 bytes on: smaller bodies fit
    /// into one packet anyway.
    fn default() -> Self {
        let mut codings = vec![Coding::Zstd, Coding::Gzip, Coding::Deflate];
        if cfg!(feature = "brotli") {
            codings.insert(1, Coding::Brotli);
        }
        Self { codings, bytes_min: 860 }
    }
}

impl Compression {
    /// Sets the codings, in order of preference among those that the client prefers equally. `br` is ignored without
    /// the feature `brotli`.
    #[must_use]
    pub fn codings(mut self, codings: &[Coding]) -> Self {
        self.codings = codings.iter().copied().filter(|&coding| Encoder::is_available(coding)).collect();
        self
    }

    /// Sets the size in bytes from which a body is compressed; a body of unknown size always is.
    #[must_use]
    pub fn bytes_min(mut self, bytes: u64) -> Self {
        self.bytes_min = bytes;
        self
    }
}

fn is_worth_it(response: &Response, bytes_min: u64) -> bool {
    let is_large = response.content_length().is_none_or(|bytes| bytes >= bytes_min.max(1));
    is_large && has_content(response.status()) && may_be_compressed(response)
}

/// Whether its status and fields allow compression.
fn may_be_compressed(response: &Response) -> bool {
    let header = |name: HeaderName| response.header_value(&name);
    response.status() != StatusCode::PARTIAL_CONTENT
        && header(CONTENT_ENCODING).is_none()
        && header(CONTENT_RANGE).is_none()
        && header(CONTENT_TYPE).is_some_and(|value| value.to_str().is_ok_and(is_compressible))
        && !header(CACHE_CONTROL).is_some_and(|value| lists(value.as_bytes(), "no-transform"))
}

/// A response that is not compressed. A 304 has the `Vary` of the 200 (RFC 9110 section 15.4.5), whose size is not
/// known here.
fn pass_on(response: Response) -> Response {
    if response.status() == StatusCode::NOT_MODIFIED && may_be_compressed(&response) {
        return add_vary(response);
    }
    response
}

impl Middleware for Compression {
    fn handle(&self, request: Request, next: Next<'_>) -> Response {
        let coding = negotiate_coding(&request.head(), &self.codings).unwrap_or(Coding::Identity);
        let is_head = *request.method() == Method::HEAD;
        let bytes_min = self.bytes_min;
        next.run(request).map(move |response| {
            if !is_worth_it(&response, bytes_min) {
                return pass_on(response);
            }
            let response = add_vary(response);
            match (coding, is_head) {
                (Coding::Identity, _) => response,
                // The length is not known without compressing the body.
                (_, true) => mark(response, coding).body(Body::source(Nothing, None)),
                (_, false) => compress(response, coding),
            }
        })
    }

    fn inline(&self, head: &HeadRef<'_>, next: Next<'_>) -> Option<Response> {
        if negotiate_coding(head, &self.codings).is_some_and(|coding| coding != Coding::Identity) {
            return None;
        }
        let bytes_min = self.bytes_min;
        Some(next.inline(head)?.map(move |response| {
            if is_worth_it(&response, bytes_min) { add_vary(response) } else { pass_on(response) }
        }))
    }
}

/// Compresses the body of a response if it gets smaller.
fn compress(mut response: Response, coding: Coding) -> Response {
    let body = std::mem::take(response.plain().1);
    let kept = body.kept;
    let mut body = match body.kind {
        BodyKind::Bytes(bytes) if bytes.len() as u64 <= AT_ONCE_MAX => match Encoder::encode(coding, &bytes) {
            Ok(compressed) if compressed.len() < bytes.len() => Body::bytes(compressed),
            // Reading from memory cannot fail. If it did, the uncompressed body is a valid response.
            Ok(_) | Err(_) => return response.body(Body::bytes(bytes)),
        },
        BodyKind::Empty => return response,
        kind => Body::source(CompressedSource::new(coding, Body { kind, kept: None }), None),
    };
    body.kept = kept;
    mark(response, coding).body(body)
}

/// Sets the fields for the coding.
fn mark(mut response: Response, coding: Coding) -> Response {
    let headers = response.plain().0;
    headers.retain(|(name, _)| *name != ACCEPT_RANGES);
    for (_, etag) in headers.iter_mut().filter(|(name, _)| *name == ETAG) {
        // The bytes are another representation (RFC 9110 section 8.8.3.3).
        if etag.as_bytes().starts_with(b"\"")
            && let Ok(weak) = HeaderValue::from_bytes(&[b"W/", etag.as_bytes()].concat())
        {
            *etag = weak;
        }
    }
    response.header(CONTENT_ENCODING, HeaderValue::from_static(coding.name()))
}

/// Adds `Accept-Encoding` to `Vary`.
fn add_vary(response: Response) -> Response {
    match response.header_value(&VARY) {
        Some(value) if lists(value.as_bytes(), "*") || lists(value.as_bytes(), "accept-encoding") => response,
        _ => response.header(VARY, HeaderValue::from(ACCEPT_ENCODING)),
    }
}

/// A body of unknown length that is never sent, for answers to HEAD.
struct Nothing;

impl BodySource for Nothing {
    fn fill(&mut self, _: &mut SegmentBuf) -> std::io::Result<Fill> {
        Ok(Fill::Done)
    }
}
