//! Request heads (RFC 9112 sections 2 to 7), parsed strictly.
//!
//! `httparse` parses the syntax; this module adds the rules that it leaves out. Each rule is a test in `head/tests.rs`.
//! Request smuggling exploits what a lenient server and a lenient proxy parse differently, so whatever is ambiguous is
//! an error.

use std::mem::MaybeUninit;

use http::{Method, StatusCode, Version};
use memchr::{memchr, memchr_iter};

use super::ProtoError;
use super::head_parts::{HandedOver, HeadParts, Span};

pub use crate::limits::{FIELDS_MAX, HeadLimits};

mod again;

/// Whether a malformed request is a HEAD, whose response must have no body (RFC 9110 section 9.3.2).
pub(crate) fn begins_with_head(input: &[u8]) -> bool {
    input.strip_prefix(b"\r\n").unwrap_or(input).starts_with(b"HEAD ")
}

#[cfg(test)]
mod tests;

pub(crate) use again::LastHead;

/// The largest `Content-Length` accepted: 2^53, the limit of exact integers in JSON numbers and JavaScript.
pub const CONTENT_LENGTH_MAX: u64 = 1 << 53;

/// The longest method in bytes.
const METHOD_LENGTH_MAX: usize = 32;

/// How a request's body is delimited (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// No body.
    None,
    /// `Content-Length`, more than zero.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
}

/// A parsed request head.
#[derive(Clone, Debug)]
pub struct ParsedHead {
    /// Method, version, target and field lines.
    pub parts: HeadParts,
    /// Length of the head in bytes, including the empty line; the body (or the next request) starts there.
    pub head_len: usize,
    /// How the body is delimited.
    pub framing: Framing,
    /// Whether the client wants to use the connection again.
    pub keep_alive: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    pub expect_continue: bool,
}

/// Parses a request head at the start of `buf`; `None` if it is not complete yet.
///
/// If a head arrives in several pieces, use a [`HeadScan`], which does not scan the same bytes twice.
///
/// # Errors
/// The first rule that is broken, reported as early as the bytes allow.
pub fn parse_head(buf: &[u8], limits: &HeadLimits) -> Result<Option<ParsedHead>, ProtoError> {
    HeadScan::default().parse(buf, limits)
}

/// How far a head has been scanned for its end. A client that sends byte by byte costs no more than one that sends
/// everything at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadScan {
    /// Bytes scanned.
    scanned: u32,
    /// Start of the current, incomplete line.
    line_start: u32,
    /// Complete lines, including the request line, but not a leading empty one.
    lines: u32,
    /// Whether an empty line came before the request line.
    leading_crlf: bool,
}

impl HeadScan {
    /// Like [`parse_head`]. `buf` holds the bytes of the previous call, and more after them. The scan is reset when it
    /// returns a head.
    ///
    /// # Errors
    /// As [`parse_head`].
    pub fn parse(&mut self, buf: &[u8], limits: &HeadLimits) -> Result<Option<ParsedHead>, ProtoError> {
        self.parse_into(buf, limits, &mut Vec::new())
    }

    /// Like [`parse`](Self::parse); the returned head reuses the memory of `fields`.
    ///
    /// # Errors
    /// As [`parse_head`].
    pub fn parse_into(
        &mut self,
        buf: &[u8],
        limits: &HeadLimits,
        fields: &mut Vec<(Span, Span)>,
    ) -> Result<Option<ParsedHead>, ProtoError> {
        let Some(head_len) = self.find_end(buf, limits)? else {
            return Ok(None);
        };
        let skip = if self.leading_crlf { 2 } else { 0 };
        *self = Self::default();
        let head = buf.get(..head_len).unwrap_or_default();
        parse_complete(head, skip, limits, std::mem::take(fields)).map(Some)
    }

    /// Whether nothing was scanned yet.
    pub(crate) fn is_fresh(&self) -> bool {
        *self == Self::default()
    }

    /// Finds the empty line that ends the head; checks line ends and sizes on the way.
    fn find_end(&mut self, buf: &[u8], limits: &HeadLimits) -> Result<Option<usize>, ProtoError> {
        let bytes_max = limits.bytes_max.min(u32::MAX as usize - 1);
        let looked_at = buf.get(..buf.len().min(bytes_max)).unwrap_or_default();
        if let Some(&first) = looked_at.first()
            && first != b'\r'
            && !is_token_byte(first)
        {
            return Err(ProtoError::bad_request("a request starts with a method"));
        }
        let fresh = looked_at.get(self.scanned as usize..).unwrap_or_default();
        let base = self.scanned as usize;
        for at in memchr_iter(b'\n', fresh) {
            let lf = base + at;
            let line_start = self.line_start as usize;
            if lf == line_start || looked_at.get(lf - 1) != Some(&b'\r') {
                return Err(ProtoError::bad_request("a line ends with LF alone"));
            }
            self.line_start = lf as u32 + 1;
            if lf - 1 > line_start {
                self.lines += 1;
                self.check_line(lf + 1 - line_start, limits)?;
            } else if self.lines > 0 {
                return Ok(Some(lf + 1));
            } else if self.leading_crlf {
                return Err(ProtoError::bad_request("more than one empty line before a request"));
            } else {
                self.leading_crlf = true;
            }
        }
        self.scanned = looked_at.len() as u32;
        if self.lines == 0 && looked_at.len() - self.line_start as usize > limits.request_line_bytes_max {
            return Err(REQUEST_LINE_TOO_LONG);
        }
        if buf.len() >= bytes_max {
            return Err(if self.lines == 0 { REQUEST_LINE_TOO_LONG } else { HEAD_TOO_LARGE });
        }
        Ok(None)
    }

    fn check_line(&self, length: usize, limits: &HeadLimits) -> Result<(), ProtoError> {
        if self.lines == 1 && length > limits.request_line_bytes_max {
            return Err(REQUEST_LINE_TOO_LONG);
        }
        if self.lines as usize > limits.fields_max.min(FIELDS_MAX) + 1 {
            return Err(ProtoError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too many field lines"));
        }
        Ok(())
    }
}

const REQUEST_LINE_TOO_LONG: ProtoError = ProtoError::new(StatusCode::URI_TOO_LONG, "the request line is too long");
const HEAD_TOO_LARGE: ProtoError =
    ProtoError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "the request head is too large");

/// Parses a complete head whose lines are known to end with CRLF; it starts `skip` bytes into `head`.
fn parse_complete(
    head: &[u8],
    skip: usize,
    limits: &HeadLimits,
    mut fields: Vec<(Span, Span)>,
) -> Result<ParsedHead, ProtoError> {
    let message = head.get(skip..).unwrap_or_default();
    let mut storage = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut []);
    match request.parse_with_uninit_headers(message, &mut storage) {
        Ok(httparse::Status::Complete(length)) if length == message.len() => {}
        Ok(_) => return Err(ProtoError::bad_request("the request head is malformed")),
        Err(httparse::Error::Version) => {
            // Later minor versions are treated as the highest known one (RFC 9110 section 2.5). Spans are offsets, so
            // those of a copy are valid.
            return match as_http11(head, skip) {
                Some(known) => parse_complete(&known, skip, limits, fields),
                None => Err(syntax_error(httparse::Error::Version, message)),
            };
        }
        Err(error) => return Err(syntax_error(error, message)),
    }
    let (Some(method), Some(target), Some(minor)) = (request.method, request.path, request.version) else {
        return Err(ProtoError::bad_request("the request line is malformed"));
    };
    let version = if minor == 0 { Version::HTTP_10 } else { Version::HTTP_11 };
    if method.len() > METHOD_LENGTH_MAX {
        return Err(ProtoError::new(StatusCode::NOT_IMPLEMENTED, "the method is too long"));
    }
    let method =
        Method::from_bytes(method.as_bytes()).map_err(|_| ProtoError::bad_request("the method is malformed"))?;
    let target_span = span_in(head, target.as_bytes());
    let Target { path, query, authority } = Target::parse(&method, target.as_bytes(), target_span, limits)?;

    fields.clear();
    fields.reserve(request.headers.len());
    let mut seen = Seen::default();
    for header in request.headers.iter() {
        seen.field(header.name, header.value)?;
        fields.push((span_in(head, header.name.as_bytes()), span_in(head, header.value)));
    }
    let host = match seen.host {
        Some(value) => Some(authority.unwrap_or(span_in(head, value))),
        None if version == Version::HTTP_11 => return Err(ProtoError::bad_request("the Host field is missing")),
        None => authority,
    };
    let parts = HeadParts {
        method,
        version,
        target: target_span,
        path,
        query,
        host,
        fields,
        handed_over: HandedOver::default(),
    };
    Ok(ParsedHead {
        framing: seen.framing(version)?,
        keep_alive: !seen.close && (version == Version::HTTP_11 || seen.keep_alive),
        expect_continue: seen.expect_continue && version == Version::HTTP_11,
        head_len: head.len(),
        parts,
    })
}

/// A copy of a head of HTTP/1.2 to 1.9 that says HTTP/1.1.
fn as_http11(head: &[u8], skip: usize) -> Option<Vec<u8>> {
    let line_end = skip + memchr(b'\r', head.get(skip..)?)?;
    let line = head.get(skip..line_end)?;
    if !matches!(line, [.., b' ', b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'2'..=b'9']) {
        return None;
    }
    let mut known = head.to_vec();
    *known.get_mut(line_end - 1)? = b'1';
    Some(known)
}

/// The error for what `httparse` rejects.
fn syntax_error(error: httparse::Error, message: &[u8]) -> ProtoError {
    use httparse::Error;
    let reason = match error {
        Error::Version => {
            let line = message.get(..memchr(b'\r', message).unwrap_or(message.len())).unwrap_or_default();
            let word = line.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
            if let [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] = word
                && major.is_ascii_digit()
                && minor.is_ascii_digit()
                && *major != b'1'
            {
                return ProtoError::new(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1 is spoken");
            }
            "the protocol version is malformed"
        }
        Error::HeaderName => "a field name is malformed",
        Error::HeaderValue => "a field value holds a control character",
        Error::NewLine => "a line does not end with CRLF",
        Error::TooManyHeaders => {
            return ProtoError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too many field lines");
        }
        Error::Token | Error::Status => "the request line is malformed",
    };
    ProtoError::bad_request(reason)
}

/// The span of `part`, a slice of `buf`.
fn span_in(buf: &[u8], part: &[u8]) -> Span {
    if part.is_empty() {
        return Span::default();
    }
    let start = (part.as_ptr() as usize).wrapping_sub(buf.as_ptr() as usize);
    debug_assert!(start + part.len() <= buf.len());
    Span { start: start as u32, end: (start + part.len()) as u32 }
}

/// A parsed request target (RFC 9112 section 3.2).
pub(crate) struct Target {
    pub(crate) path: Span,
    pub(crate) query: Option<Span>,
    /// The authority of a target in absolute-form or authority-form.
    authority: Option<Span>,
}

/// Whether this byte is not allowed in a request target.
fn is_bad(byte: u8) -> bool {
    !(0x21..=0x7e).contains(&byte) || byte == b'#'
}

/// All bytes are checked first, many at a time; a bad byte is rare.
fn has_bad_byte(target: &[u8]) -> bool {
    target.iter().fold(false, |bad, &byte| bad | is_bad(byte))
}

#[inline]
fn path_and_query(target: &[u8], span: Span) -> (Span, Option<Span>) {
    match memchr(b'?', target) {
        Some(at) => {
            let mark = span.start + at as u32;
            (Span { start: span.start, end: mark }, Some(Span { start: mark + 1, end: span.end }))
        }
        None => (span, None),
    }
}

impl Target {
    pub(crate) fn parse(method: &Method, target: &[u8], span: Span, limits: &HeadLimits) -> Result<Self, ProtoError> {
        if has_bad_byte(target)
            && let Some(byte) = target.iter().find(|&&byte| is_bad(byte))
        {
            return Err(ProtoError::bad_request(match byte {
                b'#' => "the request target has a fragment",
                0x80.. => "the request target is not ASCII",
                _ => "the request target holds a control character",
            }));
        }
        if *method == Method::CONNECT {
            return Self::connect(target, span, limits);
        }
        match target {
            [b'/', ..] => Ok(Self::origin(target, span)),
            b"*" if *method == Method::OPTIONS => Ok(Self { path: span, query: None, authority: None }),
            b"*" => Err(ProtoError::bad_request("the request target * is for OPTIONS alone")),
            _ => Self::absolute(target, span),
        }
    }

    fn origin(target: &[u8], span: Span) -> Self {
        let (path, query) = path_and_query(target, span);
        Self { path, query, authority: None }
    }

    fn absolute(target: &[u8], span: Span) -> Result<Self, ProtoError> {
        let malformed = ProtoError::bad_request("the request target is neither a path nor an http URL");
        let colon = memchr(b':', target).ok_or(malformed)?;
        let (scheme, rest) = target.split_at(colon);
        if !scheme.eq_ignore_ascii_case(b"http") && !scheme.eq_ignore_ascii_case(b"https") {
            return Err(malformed);
        }
        let rest = rest.strip_prefix(b"://").ok_or(malformed)?;
        let length = rest.iter().position(|&byte| byte == b'/' || byte == b'?').unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(length);
        if authority.is_empty() || !is_host(authority) {
            return Err(ProtoError::bad_request("the authority of the request target is malformed"));
        }
        let start = span.start + (colon + 3) as u32;
        let end = start + length as u32;
        let authority = Some(Span { start, end });
        let Self { mut path, query, .. } = Self::origin(rest, Span { start: end, end: span.end });
        if path.start == path.end {
            // "http://host" and "http://host?query" mean the path "/" (RFC 9110 section 4.2.3): borrow the scheme's second slash.
            path = Span { start: start - 1, end: start };
        }
        Ok(Self { path, query, authority })
    }

    fn connect(target: &[u8], span: Span, limits: &HeadLimits) -> Result<Self, ProtoError> {
        if !limits.connect_allowed {
            return Err(ProtoError::new(StatusCode::NOT_IMPLEMENTED, "CONNECT is not served"));
        }
        let has_port = target.iter().rposition(|&byte| byte == b':').is_some_and(|at| {
            target.get(at + 1..).is_some_and(|port| !port.is_empty() && port.iter().all(u8::is_ascii_digit))
        });
        if !has_port || target.first() == Some(&b':') || !is_host(target) {
            return Err(ProtoError::bad_request("the target of CONNECT is not host:port"));
        }
        Ok(Self { path: span, query: None, authority: Some(span) })
    }
}

/// The elements of a list; empty ones are ignored (RFC 9110 section 5.6.1.2).
fn elements(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// The end of the body cannot be determined (RFC 9112 section 6.3).
const NOT_CHUNKED_LAST: ProtoError =
    ProtoError::bad_request("the last transfer coding is not chunked, or not it alone");

/// The field lines that affect the connection and the body.
#[derive(Default)]
struct Seen<'a> {
    host: Option<&'a [u8]>,
    content_length: Option<u64>,
    chunked: bool,
    close: bool,
    keep_alive: bool,
    expect_continue: bool,
}

impl<'a> Seen<'a> {
    fn field(&mut self, name: &str, value: &'a [u8]) -> Result<(), ProtoError> {
        // Length first: it distinguishes nearly all fields from the five that matter here.
        match name.len() {
            4 if name.eq_ignore_ascii_case("host") => self.host(value),
            6 if name.eq_ignore_ascii_case("expect") => self.expect(value),
            10 if name.eq_ignore_ascii_case("connection") => {
                self.connection(value);
                Ok(())
            }
            14 if name.eq_ignore_ascii_case("content-length") => self.content_length(value),
            17 if name.eq_ignore_ascii_case("transfer-encoding") => self.transfer_encoding(value),
            _ => Ok(()),
        }
    }

    fn host(&mut self, value: &'a [u8]) -> Result<(), ProtoError> {
        if self.host.replace(value).is_some() {
            return Err(ProtoError::bad_request("there is more than one Host field"));
        }
        if !is_host(value) {
            return Err(ProtoError::bad_request("the Host field is malformed"));
        }
        Ok(())
    }

    fn expect(&mut self, value: &[u8]) -> Result<(), ProtoError> {
        for expectation in elements(value) {
            if !expectation.eq_ignore_ascii_case(b"100-continue") {
                return Err(ProtoError::new(StatusCode::EXPECTATION_FAILED, "only 100-continue can be expected"));
            }
            self.expect_continue = true;
        }
        Ok(())
    }

    fn connection(&mut self, value: &[u8]) {
        for token in elements(value) {
            self.close |= token.eq_ignore_ascii_case(b"close");
            self.keep_alive |= token.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    fn content_length(&mut self, value: &[u8]) -> Result<(), ProtoError> {
        if self.content_length.is_some() {
            return Err(ProtoError::bad_request("there is more than one Content-Length field"));
        }
        self.content_length = Some(content_length(value)?);
        Ok(())
    }

    fn transfer_encoding(&mut self, value: &[u8]) -> Result<(), ProtoError> {
        if self.chunked {
            return Err(ProtoError::bad_request("there is more than one Transfer-Encoding field"));
        }
        let mut others = false;
        for coding in elements(value) {
            if self.chunked {
                return Err(NOT_CHUNKED_LAST);
            }
            self.chunked = coding.eq_ignore_ascii_case(b"chunked");
            others |= !self.chunked;
        }
        match (self.chunked, others) {
            (false, _) => Err(NOT_CHUNKED_LAST),
            (true, false) => Ok(()),
            (true, true) => {
                Err(ProtoError::new(StatusCode::NOT_IMPLEMENTED, "the only transfer coding understood is chunked"))
            }
        }
    }

    fn framing(&self, version: Version) -> Result<Framing, ProtoError> {
        match (self.chunked, self.content_length) {
            (true, Some(_)) => Err(ProtoError::bad_request("Transfer-Encoding and Content-Length exclude each other")),
            (true, None) if version == Version::HTTP_10 => {
                Err(ProtoError::bad_request("HTTP/1.0 has no Transfer-Encoding"))
            }
            (true, None) => Ok(Framing::Chunked),
            (false, None | Some(0)) => Ok(Framing::None),
            (false, Some(length)) => Ok(Framing::Length(length)),
        }
    }
}

/// The value of a `Content-Length` field. Stricter than `1*DIGIT` of RFC 9110 section 8.6, on purpose: a number with leading
/// zeros is refused, because other software reads it as octal or differently from the same number without them, and two
/// lengths for one message are how requests are smuggled. No client sends one.
pub(crate) fn content_length(value: &[u8]) -> Result<u64, ProtoError> {
    let canonical = value == b"0" || matches!(value, [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit));
    if !canonical {
        return Err(ProtoError::bad_request("the Content-Length field is not a plain decimal number"));
    }
    let length = std::str::from_utf8(value).ok().and_then(|digits| digits.parse::<u64>().ok());
    length
        .filter(|&length| length <= CONTENT_LENGTH_MAX)
        .ok_or(ProtoError::new(StatusCode::PAYLOAD_TOO_LARGE, "the Content-Length is absurd"))
}

/// Whether `value` is `uri-host [ ":" port ]` (RFC 9110 section 7.2), which may be empty.
pub(crate) fn is_host(value: &[u8]) -> bool {
    let (host_ok, rest) = if let Some(literal) = value.strip_prefix(b"[") {
        let Some(end) = memchr(b']', literal) else {
            return false;
        };
        let (address, rest) = literal.split_at(end);
        let address_ok = std::str::from_utf8(address).is_ok_and(|text| text.parse::<std::net::Ipv6Addr>().is_ok());
        (address_ok, rest.get(1..).unwrap_or_default())
    } else {
        let end = memchr(b':', value).unwrap_or(value.len());
        let (name, rest) = value.split_at(end);
        (name.iter().all(|&byte| is_reg_name_byte(byte)), rest)
    };
    let port_ok = match rest {
        [] => true,
        [b':', port @ ..] => port.len() <= 5 && port.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    host_ok && port_ok
}

/// `reg-name` of RFC 3986: unreserved, sub-delims, and the percent sign of an encoded byte.
fn is_reg_name_byte(byte: u8) -> bool {
    const BYTES: [bool; 256] = table(b"-._~!$&'()*+,;=%");
    BYTES[usize::from(byte)]
}

/// `tchar` of RFC 9110 section 5.6.2.
pub(crate) fn is_token_byte(byte: u8) -> bool {
    const BYTES: [bool; 256] = table(b"!#$%&'*+-.^_`|~");
    BYTES[usize::from(byte)]
}

/// Letters, digits and `others`.
const fn table(others: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < others.len() {
        table[others[at] as usize] = true;
        at += 1;
    }
    table
}
