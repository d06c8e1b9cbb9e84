//! Request heads from header lists (RFC 9113 sections 8.2 and 8.3), parsed as strictly as those of HTTP/1, because
//! request smuggling exploits what two parties parse differently. A head has the same format as in HTTP/1, so handlers
//! see no difference.

use http::{Method, StatusCode, Version};

use crate::http1::ProtoError;
use crate::http1::head::{FIELDS_MAX, Framing, HeadLimits, ParsedHead, Target, content_length, is_host, is_token_byte};
use crate::http1::head_parts::{HandedOver, HeadParts, Span};
use crate::http2::hpack::Field;

/// Why a header list is not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadError {
    /// It is malformed (RFC 9113 section 8.1.1): its stream is reset.
    Malformed(&'static str),
    /// It is answered with this status.
    Answered(ProtoError),
}

/// The pseudo-fields of requests.
#[derive(Clone, Copy, Debug, Default)]
struct Pseudo {
    method: Option<Span>,
    scheme: Option<Span>,
    authority: Option<Span>,
    path: Option<Span>,
    protocol: Option<Span>,
}

/// Builds request heads. It is reused for the next one, with its memory.
#[derive(Debug, Default)]
pub(crate) struct HeadBuilder {
    /// The bytes of all values and names.
    bytes: Vec<u8>,
    fields: Vec<(Span, Span)>,
    pseudo: Pseudo,
    /// Cookie crumbs, joined (RFC 9113 section 8.2.3).
    cookies: Vec<u8>,
    host: Option<Span>,
    length: Option<u64>,
    expect_continue: bool,
    has_fields: bool,
    /// Field lines, including crumbs.
    count: usize,
    fields_max: usize,
    error: Option<HeadError>,
}

const TOO_MANY: HeadError =
    HeadError::Answered(ProtoError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too many field lines"));

impl HeadBuilder {
    /// Starts a head.
    pub(crate) fn begin(&mut self, limits: &HeadLimits) {
        self.bytes.clear();
        self.fields.clear();
        self.cookies.clear();
        self.pseudo = Pseudo::default();
        (self.host, self.length, self.error) = (None, None, None);
        (self.expect_continue, self.has_fields, self.count) = (false, false, 0);
        self.fields_max = limits.fields_max.min(FIELDS_MAX);
    }

    /// Takes the next field of the list.
    pub(crate) fn field(&mut self, field: Field<'_>) {
        if self.error.is_none()
            && let Err(error) = self.take(field.name, field.value)
        {
            self.error = Some(error);
        }
    }

    fn take(&mut self, name: &[u8], value: &[u8]) -> Result<(), HeadError> {
        if !is_field_value(value) {
            return Err(HeadError::Malformed(
                "a field value contains a control character, or starts or ends with a space",
            ));
        }
        if let [b':', pseudo @ ..] = name {
            return self.pseudo_field(pseudo, value);
        }
        self.has_fields = true;
        self.count += 1;
        if self.count > self.fields_max {
            return Err(TOO_MANY);
        }
        if name.is_empty() || !name.iter().all(|&byte| is_token_byte(byte) && !byte.is_ascii_uppercase()) {
            return Err(HeadError::Malformed("a field name is malformed"));
        }
        match name {
            b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding" | b"upgrade" => {
                return Err(HeadError::Malformed("a field of HTTP/1 connections"));
            }
            b"te" if value != b"trailers" => return Err(HeadError::Malformed("TE is not trailers")),
            b"cookie" => {
                if !self.cookies.is_empty() {
                    self.cookies.extend_from_slice(b"; ");
                }
                self.cookies.extend_from_slice(value);
                return Ok(());
            }
            b"content-length" => {
                if self.length.is_some() {
                    return Err(HeadError::Malformed("there is more than one Content-Length field"));
                }
                self.length = Some(content_length(value).map_err(answered_or_malformed)?);
            }
            b"expect" => self.expect(value)?,
            b"host" => {
                if self.host.is_some() {
                    return Err(HeadError::Malformed("there is more than one Host field"));
                }
                let span = self.push(value);
                self.host = Some(span);
                let name = self.push(name);
                self.fields.push((name, span));
                return Ok(());
            }
            _ => {}
        }
        let spans = (self.push(name), self.push(value));
        self.fields.push(spans);
        Ok(())
    }

    fn expect(&mut self, value: &[u8]) -> Result<(), HeadError> {
        if !value.eq_ignore_ascii_case(b"100-continue") {
            let error = ProtoError::new(StatusCode::EXPECTATION_FAILED, "only 100-continue can be expected");
            return Err(HeadError::Answered(error));
        }
        self.expect_continue = true;
        Ok(())
    }

    fn pseudo_field(&mut self, name: &[u8], value: &[u8]) -> Result<(), HeadError> {
        if self.has_fields {
            return Err(HeadError::Malformed("a pseudo-field follows a field"));
        }
        let span = self.push(value);
        let place = match name {
            b"method" => &mut self.pseudo.method,
            b"scheme" => &mut self.pseudo.scheme,
            b"authority" => &mut self.pseudo.authority,
            b"path" => &mut self.pseudo.path,
            b"protocol" => &mut self.pseudo.protocol,
            _ => return Err(HeadError::Malformed("an unknown pseudo-field")),
        };
        if place.replace(span).is_some() {
            return Err(HeadError::Malformed("a pseudo-field is repeated"));
        }
        Ok(())
    }

    fn push(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        Span { start, end: self.bytes.len() as u32 }
    }

    /// Completes a head; `is_last`: no body follows. `websockets`: whether extended CONNECT was offered. The head's spans
    /// are offsets into [`bytes`](Self::bytes).
    ///
    /// # Errors
    /// The first rule that is broken.
    pub(crate) fn finish(
        &mut self,
        is_last: bool,
        websockets: bool,
        limits: &HeadLimits,
    ) -> Result<ParsedHead, HeadError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let Pseudo { method: Some(method), scheme, authority, path, protocol } = self.pseudo else {
            return Err(HeadError::Malformed("the method is missing"));
        };
        let mut method =
            Method::from_bytes(method.of(&self.bytes)).map_err(|_| HeadError::Malformed("the method is malformed"))?;
        if let Some(protocol) = protocol {
            self.check_protocol(protocol, &method, websockets)?;
            // As in HTTP/1.1, so that a handler serves both.
            method = Method::GET;
        }
        let target = self.target(&method, scheme, authority, path, limits)?;
        let host = self.check_host(authority)?;
        let parsed = Target::parse(&method, target.of(&self.bytes), target, limits).map_err(answered_or_malformed)?;
        if !self.cookies.is_empty() {
            let cookies = std::mem::take(&mut self.cookies);
            let spans = (self.push(b"cookie"), self.push(&cookies));
            self.fields.push(spans);
            self.cookies = cookies;
        }
        if is_last && self.length.is_some_and(|length| length > 0) {
            return Err(HeadError::Malformed("the body is shorter than its Content-Length"));
        }
        let framing = match (is_last, self.length) {
            _ if protocol.is_some() => Framing::None,
            (true, _) => Framing::None,
            (false, Some(length)) => Framing::Length(length),
            (false, None) => Framing::Chunked,
        };
        let parts = HeadParts {
            method,
            version: Version::HTTP_2,
            target,
            path: parsed.path,
            query: parsed.query,
            host: Some(host),
            fields: std::mem::take(&mut self.fields),
            handed_over: HandedOver::default(),
        };
        let expect_continue = self.expect_continue && framing != Framing::None;
        Ok(ParsedHead { parts, head_len: self.bytes.len(), framing, keep_alive: true, expect_continue })
    }

    /// Checks extended CONNECT (RFC 8441 section 4), and adds the fields of the corresponding HTTP/1.1 request. A client
    /// cannot send these fields itself: over HTTP/2 they are malformed.
    fn check_protocol(&mut self, protocol: Span, method: &Method, websockets: bool) -> Result<(), HeadError> {
        if !websockets || *method != Method::CONNECT {
            return Err(HeadError::Malformed("a protocol is named that was not offered, or not with CONNECT"));
        }
        if self.length.is_some() {
            return Err(HeadError::Malformed("extended CONNECT has a Content-Length"));
        }
        if protocol.of(&self.bytes) != b"websocket" {
            let error = ProtoError::new(StatusCode::NOT_IMPLEMENTED, "websocket is the only protocol for CONNECT");
            return Err(HeadError::Answered(error));
        }
        for (name, value) in [("upgrade", "websocket"), ("connection", "upgrade")] {
            let spans = (self.push(name.as_bytes()), self.push(value.as_bytes()));
            self.fields.push(spans);
        }
        Ok(())
    }

    /// The request target: the path, or the authority for CONNECT.
    fn target(
        &self,
        method: &Method,
        scheme: Option<Span>,
        authority: Option<Span>,
        path: Option<Span>,
        limits: &HeadLimits,
    ) -> Result<Span, HeadError> {
        let target = match (scheme, path) {
            (None, None) if *method == Method::CONNECT => authority,
            (Some(_), Some(path)) if *method != Method::CONNECT => Some(path),
            _ => None,
        };
        let target = target.ok_or(HeadError::Malformed("a pseudo-field is missing or not allowed"))?;
        let bytes = target.of(&self.bytes);
        if bytes.len() > limits.request_line_bytes_max {
            let error = ProtoError::new(StatusCode::URI_TOO_LONG, "the request target is too long");
            return Err(HeadError::Answered(error));
        }
        let is_path = matches!(bytes, [b'/', ..]) || (bytes == b"*" && *method == Method::OPTIONS);
        if !is_path && *method != Method::CONNECT {
            return Err(HeadError::Malformed("the path does not start with a slash"));
        }
        Ok(target)
    }

    /// The host: the authority, which a Host field must agree with. Handlers find it as a Host field in any case.
    fn check_host(&mut self, authority: Option<Span>) -> Result<Span, HeadError> {
        let host = match (authority, self.host) {
            (Some(authority), Some(host)) => {
                if !authority.of(&self.bytes).eq_ignore_ascii_case(host.of(&self.bytes)) {
                    return Err(HeadError::Malformed("the authority and the Host field differ"));
                }
                host
            }
            (Some(authority), None) => {
                let name = self.push(b"host");
                self.fields.insert(0, (name, authority));
                authority
            }
            (None, Some(host)) => host,
            (None, None) => return Err(HeadError::Malformed("the authority is missing")),
        };
        // RFC 9110 section 4.2.2: a URI of this scheme has a host.
        let text = host.of(&self.bytes);
        if text.is_empty() || !is_host(text) {
            return Err(HeadError::Malformed("the authority is malformed"));
        }
        Ok(host)
    }

    /// The bytes that the spans of the head refer to.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the request is an extended CONNECT, as far as it was parsed.
    pub(crate) fn is_extended_connect(&self) -> bool {
        self.pseudo.protocol.is_some()
    }

    /// Whether the request is a HEAD, as far as it was parsed.
    pub(crate) fn is_head(&self) -> bool {
        self.pseudo.method.is_some_and(|method| method.of(&self.bytes) == b"HEAD")
    }

    /// Returns the memory of a head that is no longer used.
    pub(crate) fn give_back(&mut self, head: ParsedHead) {
        self.fields = head.parts.fields;
    }
}

/// Errors that HTTP/1 answers with 400 make a request malformed here.
fn answered_or_malformed(error: ProtoError) -> HeadError {
    if error.status == StatusCode::BAD_REQUEST {
        HeadError::Malformed(error.reason)
    } else {
        HeadError::Answered(error)
    }
}

/// Whether this is a field value (RFC 9113 section 8.2.1) of bytes that HTTP/1 allows.
pub(crate) fn is_field_value(value: &[u8]) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let has_control = value.iter().fold(false, |bad, &byte| bad | (byte < 0x20 && byte != b'\t') | (byte == 0x7f));
    !has_control && !is_blank(value.first()) && !is_blank(value.last())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Fields<'a> = &'a [(&'a str, &'a str)];

    fn built(fields: Fields<'_>, is_last: bool) -> Result<(ParsedHead, Vec<u8>), HeadError> {
        let limits = HeadLimits::default();
        let mut builder = HeadBuilder::default();
        builder.begin(&limits);
        for (name, value) in fields {
            builder.field(Field { name: name.as_bytes(), value: value.as_bytes(), never_indexed: false });
        }
        builder.finish(is_last, true, &limits).map(|head| (head, builder.bytes().to_vec()))
    }

    const GET: [(&str, &str); 4] = [(":method", "GET"), (":scheme", "https"), (":authority", "h"), (":path", "/a?b")];

    fn with(more: Fields<'_>) -> Result<(ParsedHead, Vec<u8>), HeadError> {
        built(&[&GET[..], more].concat(), true)
    }

    fn is_malformed(fields: Fields<'_>) -> bool {
        matches!(built(fields, true), Err(HeadError::Malformed(_)))
    }

    #[test]
    fn a_request_is_the_head_that_http_1_would_have() {
        let (head, bytes) = with(&[("cookie", "a=1"), ("x-y", "z"), ("cookie", "b=2"), ("te", "trailers")]).unwrap();
        let peer = crate::Peer::Unix.into();
        let view = crate::HeadRef::new(&bytes, &head.parts, &peer);
        assert_eq!((view.target(), view.path(), view.query(), view.host()), ("/a?b", "/a", Some("b"), Some("h")));
        assert_eq!((view.version(), head.framing), (Version::HTTP_2, Framing::None));
        let fields: Vec<_> = view.headers().collect();
        let expected = [("host", "h"), ("x-y", "z"), ("te", "trailers"), ("cookie", "a=1; b=2")];
        assert_eq!(fields, expected.map(|(name, value)| (name, value.as_bytes())));
    }

    #[test]
    fn rfc_9113_8_2_fields() {
        for (name, value) in [
            ("X-Upper", "a"),
            ("", "a"),
            ("x y", "a"),
            ("x:y", "a"),
            ("x", "a\r\nb"),
            ("x", "a\nb"),
            ("x", "a\0b"),
            ("x", " a"),
            ("x", "a\t"),
            ("connection", "close"),
            ("proxy-connection", "close"),
            ("keep-alive", "1"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("te", "gzip"),
            (":path", "/again"),
            ("content-length", "+1"),
            ("content-length", "5"),
        ] {
            assert!(matches!(with(&[(name, value)]), Err(HeadError::Malformed(_))), "{name:?}: {value:?}");
        }
        assert!(matches!(with(&[("content-length", "0"), ("content-length", "0")]), Err(HeadError::Malformed(_))));
        assert!(with(&[("x", "a\tb"), ("x", ""), ("content-length", "0")]).is_ok());
    }

    #[test]
    fn rfc_9113_8_3_pseudo_fields() {
        for left_out in GET {
            let fields: Vec<_> = GET.into_iter().filter(|field| *field != left_out).collect();
            assert!(is_malformed(&fields), "without {}", left_out.0);
        }
        let replaced = |at: usize, value| {
            let mut fields = GET;
            fields[at].1 = value;
            fields
        };
        for (at, value) in
            [(0, "G T"), (2, "user@h"), (2, "h:x"), (3, ""), (3, "a"), (3, "*"), (3, "/\u{e9}"), (3, "/#f")]
        {
            assert!(is_malformed(&replaced(at, value)), "{value:?}");
        }
        assert!(matches!(with(&[(":status", "200")]), Err(HeadError::Malformed(_))));
        assert!(is_malformed(&[&GET[..], &[(":status", "200")]].concat()));
        assert!(is_malformed(&[&GET[..3], &[("x", "y")], &GET[3..]].concat()), "a pseudo-field behind a field");
        assert!(with(&[("host", "H")]).is_ok());
        assert!(matches!(with(&[("host", "other")]), Err(HeadError::Malformed(_))));
        let asterisk = [(":method", "OPTIONS"), GET[1], GET[2], (":path", "*")];
        assert!(built(&asterisk, true).is_ok());
        let connect = built(&[(":method", "CONNECT"), (":authority", "h:1")], true);
        assert!(matches!(connect, Err(HeadError::Answered(error)) if error.status == StatusCode::NOT_IMPLEMENTED));
    }

    const CONNECT: [(&str, &str); 5] = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", "h"),
        (":path", "/a"),
    ];

    #[test]
    fn rfc_8441_4_a_websocket_is_the_get_that_http_1_would_have() {
        let peer = crate::Peer::Unix.into();
        for is_last in [true, false] {
            let (head, bytes) = built(&CONNECT, is_last).unwrap();
            let view = crate::HeadRef::new(&bytes, &head.parts, &peer);
            assert_eq!((view.method(), view.target(), head.framing), (&Method::GET, "/a", Framing::None));
            let fields: Vec<_> = view.headers().collect();
            let expected = [("host", "h"), ("upgrade", "websocket"), ("connection", "upgrade")];
            assert_eq!(fields, expected.map(|(name, value)| (name, value.as_bytes())));
        }
    }

    #[test]
    fn rfc_8441_4_what_extended_connect_must_have() {
        for left_out in &CONNECT[2..] {
            let fields: Vec<_> = CONNECT.into_iter().filter(|field| field != left_out).collect();
            assert!(is_malformed(&fields), "without {}", left_out.0);
        }
        let mut other = CONNECT;
        other[0].1 = "GET";
        assert!(is_malformed(&other), "a protocol with GET");
        assert!(is_malformed(&[&CONNECT[..], &[("content-length", "0")]].concat()));
        other = CONNECT;
        other[1].1 = "connect-udp";
        let unknown = built(&other, false);
        assert!(matches!(unknown, Err(HeadError::Answered(error)) if error.status == StatusCode::NOT_IMPLEMENTED));
        let mut builder = HeadBuilder::default();
        builder.begin(&HeadLimits::default());
        for (name, value) in CONNECT {
            builder.field(Field { name: name.as_bytes(), value: value.as_bytes(), never_indexed: false });
        }
        let not_offered = builder.finish(false, false, &HeadLimits::default());
        assert!(matches!(not_offered, Err(HeadError::Malformed(_))));
    }

    #[test]
    fn what_is_too_large_is_answered() {
        let status = |built: Result<_, HeadError>| match built {
            Err(HeadError::Answered(error)) => error.status.as_u16(),
            Err(other) => panic!("{other:?}"),
            Ok(_) => 0,
        };
        let crumbs = vec![("cookie", "a=b"); 101];
        assert_eq!(status(with(&crumbs)), 431);
        assert_eq!(status(with(&crumbs[..100])), 0);
        let long = format!("/{}", "a".repeat(9000));
        assert_eq!(status(built(&[GET[0], GET[1], GET[2], (":path", &long)], true)), 414);
        assert_eq!(status(with(&[("expect", "what")])), 417);
    }
}
