use std::any::Any;
use std::fmt;
use std::sync::OnceLock;

use bytes::Bytes;
use http::{Method, Version};

use crate::peer::{Peer, Remote};

/// A range of bytes in the buffer that holds a request's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// The bytes of `buf` that the span covers.
    pub fn of(self, buf: &[u8]) -> &[u8] {
        buf.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

/// A parsed request head as offsets into the bytes it was parsed from; see `http1::head`.
#[derive(Clone, Debug)]
pub struct HeadParts {
    /// The request method.
    pub method: Method,
    /// HTTP/1.0 or HTTP/1.1.
    pub version: Version,
    /// The request target as sent.
    pub target: Span,
    /// The path of the target: percent-encoded as sent, without the query.
    pub path: Span,
    /// The query of the target, without its `?`.
    pub query: Option<Span>,
    /// The host the request is for: the authority of the target, or else the Host field (RFC 9112 section 3.2.2).
    pub host: Option<Span>,
    /// The field lines in the order sent: name (as sent) and value (outer white space removed).
    pub fields: Vec<(Span, Span)>,
    /// What `inline` found out about the request; see [`HeadRef::hand_over`].
    pub handed_over: HandedOver,
}

/// What a handler's `inline` leaves for its `handle`; at first nothing.
#[derive(Default)]
pub struct HandedOver(OnceLock<Box<dyn Any + Send + Sync>>);

impl HandedOver {
    pub(crate) fn take<T: Any>(&mut self) -> Option<Box<T>> {
        self.0.take()?.downcast().ok()
    }

    /// Drops what an earlier request has left in a head that is used again.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        if self.0.get().is_some() {
            self.0 = OnceLock::new();
        }
    }
}

/// A copy of a head has nothing to hand over: one party gets it.
impl Clone for HandedOver {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for HandedOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandedOver").finish_non_exhaustive()
    }
}

/// A borrowed view of a request's head.
#[derive(Clone, Copy, Debug)]
pub struct HeadRef<'a> {
    buf: &'a [u8],
    pub(super) parts: &'a HeadParts,
    pub(super) remote: &'a Remote,
}

impl<'a> HeadRef<'a> {
    /// A view of `parts`, which were parsed from `buf`. The target and the field names must have been checked to be ASCII.
    pub fn new(buf: &'a [u8], parts: &'a HeadParts, remote: &'a Remote) -> Self {
        Self { buf, parts, remote }
    }

    /// Leaves a value for the worker that answers this request, which [takes](crate::Request::handed_over) it. For
    /// [`inline`](crate::Handler::inline): what it has found out need not be found out again. Only the first value is kept.
    pub fn hand_over<T: Any + Send + Sync>(&self, value: T) {
        // The first one stays: that is what the documentation says.
        let _ = self.parts.handed_over.0.set(Box::new(value));
    }

    /// The request method.
    pub fn method(&self) -> &'a Method {
        &self.parts.method
    }

    /// HTTP/1.0 or HTTP/1.1.
    pub fn version(&self) -> Version {
        self.parts.version
    }

    /// The request target as sent.
    pub fn target(&self) -> &'a str {
        self.text(self.parts.target)
    }

    /// The path, percent-encoded as sent, without the query. It starts with `/`, except for `OPTIONS *`.
    pub fn path(&self) -> &'a str {
        self.text(self.parts.path)
    }

    /// The query, percent-encoded as sent, without its `?`.
    pub fn query(&self) -> Option<&'a str> {
        self.parts.query.map(|span| self.text(span))
    }

    /// The value of the first field line with this name, in any case; `None` if there is none, or if it is not UTF-8.
    pub fn header(&self, name: &str) -> Option<&'a str> {
        std::str::from_utf8(self.header_bytes(name)?).ok()
    }

    /// The value of the first field line with this name, in any case, as it was sent: any bytes but control characters.
    pub fn header_bytes(&self, name: &str) -> Option<&'a [u8]> {
        self.header_all(name).next()
    }

    /// The values of all field lines with this name, in the order sent.
    pub fn header_all<'n>(&self, name: &'n str) -> impl DoubleEndedIterator<Item = &'a [u8]> + Clone + use<'a, 'n> {
        let buf = self.buf;
        let named =
            self.parts.fields.iter().filter(move |(have, _)| have.of(buf).eq_ignore_ascii_case(name.as_bytes()));
        named.map(move |(_, value)| value.of(buf))
    }

    /// The value of a field that must not be repeated; `None` if it is.
    pub(crate) fn header_once(&self, name: &str) -> Option<&'a [u8]> {
        let mut values = self.header_all(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// Whether any field's name starts like those of conditional requests; few requests have one.
    pub(crate) fn may_have_conditions(&self) -> bool {
        self.parts.fields.iter().any(|(name, _)| matches!(name.of(self.buf), [b'i' | b'I', b'f' | b'F', b'-', ..]))
    }

    /// All field lines, in the order sent: name as sent, and value.
    pub fn headers(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + Clone + use<'a> {
        let view = *self;
        self.parts.fields.iter().map(move |(name, value)| (view.text(*name), value.of(view.buf)))
    }

    /// The other side of the connection: the client, or a proxy; see [`client_ip`](Self::client_ip).
    pub fn peer(&self) -> &'a Peer {
        self.remote.peer()
    }

    /// The certificate that the [peer](Self::peer) has presented, as DER, and behind it those that it sent to lead to an authority;
    /// empty without TLS, without a certificate, and unless the server asks for one
    /// (`ClientAuth`). The TLS library has verified it:
    /// one of the server's authorities has issued it, it is valid now, and the peer has its key.
    pub fn peer_certificates(&self) -> &'a [Bytes] {
        self.remote.certificates()
    }

    pub(super) fn text(&self, span: Span) -> &'a str {
        std::str::from_utf8(span.of(self.buf)).unwrap_or_default()
    }
}

/// Whether a list of tokens has this one, in any case.
pub(crate) fn lists(list: &[u8], token: &str) -> bool {
    list.split(|&byte| byte == b',').any(|have| have.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}
