//! Response heads (RFC 9112 sections 4 and 6, RFC 9110 section 8.6), encoded into bytes.
//!
//! Names and values are [`HeaderName`] and [`HeaderValue`], which cannot contain CR, LF or NUL: nothing that a handler
//! puts into a field can end the line.

use std::sync::OnceLock;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, StatusCode, Version};

use crate::http1::date;
use crate::http1::head_parts::lists;

/// The type of what is made of a Rust string. Without a charset, browsers guess one.
pub(crate) const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// The properties of the request that determine how its response is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerTo {
    /// The request's version.
    pub version: Version,
    /// Whether the request is a HEAD: the response has no body.
    pub is_head: bool,
    /// Whether client and server both want to keep the connection.
    pub keep_alive: bool,
}

/// How the body is to be sent after the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFraming {
    /// Nothing: the request is a HEAD, the status has no body, or the body is empty.
    None,
    /// Exactly this many bytes.
    Length(u64),
    /// In chunks; see [`chunked`](crate::http1::chunked).
    Chunked,
    /// As it is; closing the connection ends it (HTTP/1.0 clients).
    UntilClose,
}

/// How the body and the connection continue after an encoded head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncodedHead {
    /// How to send the body.
    pub framing: BodyFraming,
    /// Whether the connection is kept after this response.
    pub keep_alive: bool,
}

/// Appends the head of a response to `out`, including the empty line.
///
/// The encoder sets `Date`, `Connection`, `Content-Length` and `Transfer-Encoding`. Of the given fields, a `Date`
/// replaces the encoder's, and `Connection` only counts for its `close` (on a 101 it is sent as given).
/// `length` is that of the body, if it is known in advance. `Transfer-Encoding` and `Content-Length` are omitted, except that `Content-Length` is kept in response to a HEAD and
/// on 304, which have no body.
pub(crate) fn encode_head(
    out: &mut Vec<u8>,
    status: StatusCode,
    fields: &[(HeaderName, HeaderValue)],
    length: Option<u64>,
    to: AnswerTo,
) -> EncodedHead {
    let is_upgrade = status == StatusCode::SWITCHING_PROTOCOLS;
    let (mut has_date, mut given_length, mut close) = (false, None, false);
    status_line(out, status);
    for (name, value) in fields {
        if *name == DATE {
            has_date = true;
        } else if *name == CONTENT_LENGTH {
            given_length = Some(value);
            continue;
        } else if *name == TRANSFER_ENCODING {
            continue;
        } else if *name == CONNECTION && !is_upgrade {
            close |= lists(value.as_bytes(), "close");
            continue;
        }
        field_line(out, name.as_str(), value.as_bytes());
    }
    let framing = framing_of(status, length, to);
    let kept_length = given_length.filter(|_| status == StatusCode::NOT_MODIFIED || to.is_head && length == Some(0));
    match kept_length {
        Some(value) if status != StatusCode::NO_CONTENT => field_line(out, CONTENT_LENGTH.as_str(), value.as_bytes()),
        _ => length_fields(out, status, length, to),
    }
    let keep_alive = to.keep_alive && !close && framing != BodyFraming::UntilClose;
    if !has_date {
        date_line(out);
    }
    if !is_upgrade {
        connection_line(out, to.version, keep_alive);
    }
    out.extend_from_slice(b"\r\n");
    EncodedHead { framing, keep_alive }
}

/// Appends the fields for the length of the body, or of the body that a GET would get.
fn length_fields(out: &mut Vec<u8>, status: StatusCode, length: Option<u64>, to: AnswerTo) {
    match length {
        _ if !has_content(status) => {}
        Some(bytes) => content_length(out, bytes),
        None if to.version == Version::HTTP_10 => {}
        None => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
    }
}

/// Appends the head of a [`Prepared`] response, including the empty line.
#[inline]
pub(crate) fn encode_prepared(out: &mut Vec<u8>, prepared: &Prepared, to: AnswerTo) -> EncodedHead {
    out.extend_from_slice(&prepared.head);
    date_line(out);
    connection_line(out, to.version, to.keep_alive);
    out.extend_from_slice(b"\r\n");
    let framing = match prepared.body.len() as u64 {
        _ if to.is_head || !has_content(prepared.status) => BodyFraming::None,
        0 => BodyFraming::None,
        length => BodyFraming::Length(length),
    };
    EncodedHead { framing, keep_alive: to.keep_alive }
}

/// Appends an informational response (`100 Continue`, `103 Early Hints`), which precedes the final response. Not for
/// HTTP/1.0 clients, which do not support them (RFC 9110 section 15.2).
pub(crate) fn encode_informational(out: &mut Vec<u8>, status: StatusCode, fields: &[(HeaderName, HeaderValue)]) {
    debug_assert!(status.is_informational());
    status_line(out, status);
    for (name, value) in fields {
        field_line(out, name.as_str(), value.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the status line.
pub(crate) fn status_line(out: &mut Vec<u8>, status: StatusCode) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Whether a response with this status has content, possibly empty (RFC 9112 section 6.3).
pub(crate) fn has_content(status: StatusCode) -> bool {
    !status.is_informational() && status != StatusCode::NO_CONTENT && status != StatusCode::NOT_MODIFIED
}

fn framing_of(status: StatusCode, length: Option<u64>, to: AnswerTo) -> BodyFraming {
    match length {
        _ if to.is_head || !has_content(status) => BodyFraming::None,
        Some(0) => BodyFraming::None,
        Some(bytes) => BodyFraming::Length(bytes),
        None if to.version == Version::HTTP_10 => BodyFraming::UntilClose,
        None => BodyFraming::Chunked,
    }
}

pub(crate) fn field_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn content_length(out: &mut Vec<u8>, bytes: u64) {
    field_line(out, "content-length", itoa::Buffer::new().format(bytes).as_bytes());
}

fn date_line(out: &mut Vec<u8>) {
    out.extend_from_slice(&date::line());
}

fn connection_line(out: &mut Vec<u8>, version: Version, keep_alive: bool) {
    match (keep_alive, version) {
        (false, _) => out.extend_from_slice(b"connection: close\r\n"),
        (true, Version::HTTP_10) => out.extend_from_slice(b"connection: keep-alive\r\n"),
        (true, _) => {}
    }
}

/// A response encoded once and sent many times: status line, field lines and body as bytes, to which the engine adds
/// only `Date` and `Connection`. For responses from memory ([`Handler::inline`](crate::Handler::inline)).
#[derive(Debug)]
pub struct Prepared {
    pub(crate) status: StatusCode,
    /// Status line and field lines, including `Content-Length`, each ended by CRLF, without the final empty line.
    pub(crate) head: Bytes,
    pub(crate) body: Bytes,
    /// The same head for HTTP/2, encoded on first use.
    block: OnceLock<Box<[u8]>>,
}

impl Prepared {
    /// Encodes a response.
    pub fn new(status: StatusCode, headers: &[(HeaderName, HeaderValue)], body: Bytes) -> Self {
        let mut head = Vec::with_capacity(128);
        status_line(&mut head, status);
        for (name, value) in headers {
            field_line(&mut head, name.as_str(), value.as_bytes());
        }
        if has_content(status) {
            content_length(&mut head, body.len() as u64);
        }
        Self { status, head: head.into(), body, block: OnceLock::new() }
    }

    /// The body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The header block for HTTP/2, without the date. `encode` makes it when it is first asked for.
    #[inline]
    pub(crate) fn block_or_encode(&self, encode: impl FnOnce(&Self) -> Vec<u8>) -> &[u8] {
        self.block.get_or_init(|| encode(self).into())
    }

    /// The field lines, parsed from the encoded head; without `Content-Length`, which follows from the body.
    pub(crate) fn fields(&self) -> Vec<(HeaderName, HeaderValue)> {
        let mut fields = Vec::new();
        for line in self.head.split(|&byte| byte == b'\n').skip(1).map(<[u8]>::trim_ascii_end) {
            let Some((name, value)) =
                line.iter().position(|&byte| byte == b':').and_then(|at| line.split_at_checked(at))
            else {
                continue;
            };
            let value = value.get(1..).unwrap_or_default().trim_ascii();
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
                && name != CONTENT_LENGTH
            {
                fields.push((name, value));
            }
        }
        fields
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::header::{CONTENT_TYPE, ETAG, LOCATION, UPGRADE};

    use super::*;

    const GET: AnswerTo = AnswerTo { version: Version::HTTP_11, is_head: false, keep_alive: true };
    const HEAD: AnswerTo = AnswerTo { is_head: true, ..GET };
    const GET_1_0: AnswerTo = AnswerTo { version: Version::HTTP_10, is_head: false, keep_alive: false };

    fn field(name: HeaderName, value: &'static str) -> (HeaderName, HeaderValue) {
        (name, HeaderValue::from_static(value))
    }

    /// Encodes, with the date replaced by `NOW`.
    fn encode(
        status: u16,
        fields: &[(HeaderName, HeaderValue)],
        length: Option<u64>,
        to: AnswerTo,
    ) -> (String, BodyFraming, bool) {
        let mut out = Vec::new();
        let status = StatusCode::from_u16(status).expect("a status");
        let encoded = encode_head(&mut out, status, fields, length, to);
        (without_date(out), encoded.framing, encoded.keep_alive)
    }

    fn without_date(head: Vec<u8>) -> String {
        let head = String::from_utf8(head).expect("ASCII");
        let Some(at) = head.find("date: ") else { return head };
        let date = &head.as_bytes()[at + 6..at + 6 + date::LENGTH];
        assert!(date::parse(date).is_some());
        format!("{}NOW{}", &head[..at + 6], &head[at + 6 + date::LENGTH..])
    }

    #[test]
    fn known_length() {
        let fields = [field(CONTENT_TYPE, "text/plain")];
        let expected = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\ndate: NOW\r\n\r\n";
        assert_eq!(encode(200, &fields, Some(5), GET), (expected.into(), BodyFraming::Length(5), true));
    }

    #[test]
    fn unknown_length_is_chunked_on_1_1_and_ended_by_close_on_1_0() {
        let expected = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ndate: NOW\r\n\r\n";
        assert_eq!(encode(200, &[], None, GET), (expected.into(), BodyFraming::Chunked, true));
        let expected = "HTTP/1.1 200 OK\r\ndate: NOW\r\nconnection: close\r\n\r\n";
        let keep_alive = AnswerTo { keep_alive: true, ..GET_1_0 };
        assert_eq!(encode(200, &[], None, keep_alive), (expected.into(), BodyFraming::UntilClose, false));
    }

    #[test]
    fn connection_says_what_the_version_does_not_imply() {
        let connection = |to| encode(200, &[], Some(0), to).0;
        assert!(!connection(GET).contains("connection"));
        assert!(connection(AnswerTo { keep_alive: false, ..GET }).contains("connection: close\r\n"));
        assert!(connection(GET_1_0).contains("connection: close\r\n"));
        assert!(connection(AnswerTo { keep_alive: true, ..GET_1_0 }).contains("connection: keep-alive\r\n"));
    }

    #[test]
    fn head_has_the_fields_of_get_and_no_body() {
        let expected = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ndate: NOW\r\n\r\n";
        assert_eq!(encode(200, &[], Some(5), HEAD), (expected.into(), BodyFraming::None, true));
        let expected = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ndate: NOW\r\n\r\n";
        assert_eq!(encode(200, &[], None, HEAD), (expected.into(), BodyFraming::None, true));
        let expected = "HTTP/1.1 200 OK\r\ncontent-length: 77\r\ndate: NOW\r\n\r\n";
        let fields = [field(CONTENT_LENGTH, "77")];
        assert_eq!(encode(200, &fields, Some(0), HEAD), (expected.into(), BodyFraming::None, true));
    }

    #[test]
    fn no_content_and_not_modified_have_no_body() {
        for status in [204, 304] {
            let (head, framing, keep_alive) = encode(status, &[], Some(9), GET);
            assert_eq!((framing, keep_alive), (BodyFraming::None, true));
            assert!(!head.contains("content-length") && !head.contains("transfer-encoding"), "{head}");
            let (_, framing, _) = encode(status, &[], None, GET);
            assert_eq!(framing, BodyFraming::None);
        }
        let fields = [field(ETAG, "\"x\""), field(CONTENT_LENGTH, "77")];
        let expected = "HTTP/1.1 304 Not Modified\r\netag: \"x\"\r\ncontent-length: 77\r\ndate: NOW\r\n\r\n";
        assert_eq!(encode(304, &fields, Some(0), GET).0, expected);
        for to in [GET, HEAD] {
            assert!(!encode(204, &fields, Some(0), to).0.contains("content-length"));
        }
    }

    #[test]
    fn an_empty_body_has_a_length_all_the_same() {
        for status in [200, 205, 302, 404, 500] {
            let (head, framing, _) = encode(status, &[], Some(0), GET);
            assert!(head.contains("content-length: 0\r\n"), "{head}");
            assert_eq!(framing, BodyFraming::None);
        }
    }

    #[test]
    fn framing_fields_of_the_handler_are_left_out() {
        let fields = [
            field(CONTENT_LENGTH, "1"),
            field(TRANSFER_ENCODING, "gzip"),
            field(CONNECTION, "keep-alive, Close"),
            field(DATE, "Sun, 06 Nov 1994 08:49:37 GMT"),
            field(LOCATION, "/x"),
        ];
        let mut out = Vec::new();
        let encoded = encode_head(&mut out, StatusCode::OK, &fields, Some(5), GET);
        let expected = "HTTP/1.1 200 OK\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\nlocation: /x\r\ncontent-length: 5\r\nconnection: close\r\n\r\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
        assert_eq!(encoded, EncodedHead { framing: BodyFraming::Length(5), keep_alive: false });
    }

    #[test]
    fn switching_protocols_keeps_the_connection_field() {
        let fields = [field(CONNECTION, "Upgrade"), field(UPGRADE, "websocket")];
        let expected =
            "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\ndate: NOW\r\n\r\n";
        assert_eq!(encode(101, &fields, Some(0), GET), (expected.into(), BodyFraming::None, true));
    }

    #[test]
    fn informational_responses_have_no_date_and_no_length() {
        let mut out = Vec::new();
        encode_informational(&mut out, StatusCode::CONTINUE, &[]);
        assert_eq!(out, b"HTTP/1.1 100 Continue\r\n\r\n");
        out.clear();
        let link = field(http::header::LINK, "</a.css>; rel=preload");
        encode_informational(&mut out, StatusCode::EARLY_HINTS, &[link]);
        assert_eq!(out, b"HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\n\r\n");
    }

    #[test]
    fn a_status_without_a_known_reason_keeps_the_space() {
        assert!(encode(299, &[], Some(0), GET).0.starts_with("HTTP/1.1 299 \r\n"));
    }

    #[test]
    fn prepared_responses() {
        let fields = [field(CONTENT_TYPE, "text/x-nix-narinfo")];
        let prepared = Prepared::new(StatusCode::OK, &fields, Bytes::from_static(b"hello"));
        let mut out = Vec::new();
        let encoded = encode_prepared(&mut out, &prepared, GET);
        let expected = "HTTP/1.1 200 OK\r\ncontent-type: text/x-nix-narinfo\r\ncontent-length: 5\r\ndate: NOW\r\n\r\n";
        assert_eq!(without_date(out), expected);
        assert_eq!(encoded, EncodedHead { framing: BodyFraming::Length(5), keep_alive: true });
        assert_eq!(encode_prepared(&mut Vec::new(), &prepared, HEAD).framing, BodyFraming::None);
        let not_modified = Prepared::new(StatusCode::NOT_MODIFIED, &[], Bytes::new());
        let mut out = Vec::new();
        encode_prepared(&mut out, &not_modified, AnswerTo { keep_alive: false, ..GET });
        assert_eq!(without_date(out), "HTTP/1.1 304 Not Modified\r\ndate: NOW\r\nconnection: close\r\n\r\n");
    }
}
