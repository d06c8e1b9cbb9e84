use std::error::Error;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header};

use crate::message::responder::Later;
use crate::{Body, http1, ws};

/// An answer: a status, field lines and a [`Body`].
///
/// The engine adds `Date`, `Content-Length` or `Transfer-Encoding`, and `Connection`; it leaves the body out where
/// RFC 9110 does (HEAD, 204, 304).
#[derive(Debug)]
pub struct Response {
    pub(crate) kind: ResponseKind,
    /// With a 101: what the connection becomes.
    pub(crate) upgrade: Option<ws::Accepted>,
    /// The answer is still to come.
    pub(crate) late: Option<Box<Later>>,
    /// The error that a handler answered with, until an error handler takes it.
    pub(crate) failure: Option<Box<dyn Error + Send + Sync>>,
}

#[derive(Debug)]
pub(crate) enum ResponseKind {
    Plain { status: StatusCode, headers: Vec<(HeaderName, HeaderValue)>, body: Body },
    Prepared(Held),
}

/// How an answer has what was prepared.
#[derive(Debug)]
pub(crate) enum Held {
    Shared(Arc<Prepared>),
    Within(Arc<dyn HoldsPrepared>),
    Forever(&'static Prepared),
}

impl Deref for Held {
    type Target = Prepared;

    fn deref(&self) -> &Prepared {
        match self {
            Self::Shared(prepared) => prepared,
            Self::Within(holder) => (**holder).as_ref(),
            Self::Forever(prepared) => prepared,
        }
    }
}

impl Response {
    /// An answer that is kept within something larger: one count for both.
    pub fn within<T>(holder: Arc<T>) -> Self
    where
        T: AsRef<Prepared> + std::fmt::Debug + Send + Sync + 'static,
    {
        Self { kind: ResponseKind::Prepared(Held::Within(holder)), upgrade: None, late: None, failure: None }
    }

    /// An answer with this status, no field lines and no body.
    pub fn new(status: StatusCode) -> Self {
        Self {
            kind: ResponseKind::Plain { status, headers: Vec::new(), body: Body::empty() },
            upgrade: None,
            late: None,
            failure: None,
        }
    }

    /// A `text/plain` answer.
    pub fn text(status: StatusCode, text: impl Into<String>) -> Self {
        Self::new(status)
            .header(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"))
            .body(Body::bytes(text.into()))
    }

    /// Adds a field line. A field that is there already is kept beside it.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        if self.late.is_some() {
            return self.map(|answer| answer.header(name, value));
        }
        self.plain().0.push((name, value));
        self
    }

    /// Sets a field line, in place of those with this name.
    #[must_use]
    pub fn replace_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        if self.late.is_some() {
            return self.map(|answer| answer.replace_header(name, value));
        }
        let headers = self.plain().0;
        headers.retain(|(have, _)| *have != name);
        headers.push((name, value));
        self
    }

    /// The value of the first field line with this name.
    pub fn header_value(&self, name: &HeaderName) -> Option<HeaderValue> {
        let first = |headers: &[(HeaderName, HeaderValue)]| {
            headers.iter().find(|(have, _)| have == name).map(|(_, value)| value.clone())
        };
        match &self.kind {
            ResponseKind::Plain { headers, .. } => first(headers),
            ResponseKind::Prepared(prepared) => first(&prepared.fields()),
        }
    }

    /// Sets the body.
    #[must_use]
    pub fn body(mut self, new: Body) -> Self {
        if self.late.is_some() {
            return self.map(|answer| answer.body(new));
        }
        *self.plain().1 = new;
        self
    }

    /// Field lines and body, to be changed; a [`Prepared`] answer is taken apart for that.
    pub(crate) fn plain(&mut self) -> (&mut Vec<(HeaderName, HeaderValue)>, &mut Body) {
        if let ResponseKind::Prepared(prepared) = &self.kind {
            let (status, headers) = (prepared.status, prepared.fields());
            self.kind = ResponseKind::Plain { status, headers, body: Body::bytes(prepared.body.clone()) };
        }
        match &mut self.kind {
            ResponseKind::Plain { headers, body, .. } => (headers, body),
            ResponseKind::Prepared(_) => unreachable!("taken apart above"),
        }
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        match &self.kind {
            ResponseKind::Plain { status, .. } => *status,
            ResponseKind::Prepared(prepared) => prepared.status,
        }
    }

    /// The length of the body in bytes, as far as it is known beforehand.
    pub fn content_length(&self) -> Option<u64> {
        match &self.kind {
            ResponseKind::Plain { body, .. } => body.length(),
            ResponseKind::Prepared(prepared) => u64::try_from(prepared.body.len()).ok(),
        }
    }
}

impl From<Arc<Prepared>> for Response {
    fn from(prepared: Arc<Prepared>) -> Self {
        Self { kind: ResponseKind::Prepared(Held::Shared(prepared)), upgrade: None, late: None, failure: None }
    }
}

/// Something that a [`Prepared`] answer is kept in.
pub(crate) trait HoldsPrepared: AsRef<Prepared> + std::fmt::Debug + Send + Sync {}

impl<T: AsRef<Prepared> + std::fmt::Debug + Send + Sync> HoldsPrepared for T {}

/// For answers that never change: nothing is counted each time one is sent.
impl From<&'static Prepared> for Response {
    fn from(prepared: &'static Prepared) -> Self {
        Self { kind: ResponseKind::Prepared(Held::Forever(prepared)), upgrade: None, late: None, failure: None }
    }
}

/// An answer encoded once and sent many times: status line, field lines and body as bytes, to which the engine adds
/// only `Date` and `Connection`. For answers from memory ([`Handler::inline`](crate::Handler::inline)).
#[derive(Debug)]
pub struct Prepared {
    pub(crate) status: StatusCode,
    /// Status line and field lines, each ended by CRLF, `Content-Length` included, without the empty line.
    pub(crate) head: Bytes,
    pub(crate) body: Bytes,
}

impl Prepared {
    /// Encodes an answer from memory.
    pub fn new(status: StatusCode, headers: &[(HeaderName, HeaderValue)], body: Bytes) -> Self {
        let mut head = Vec::with_capacity(128);
        http1::response_head::status_line(&mut head, status);
        for (name, value) in headers {
            http1::response_head::field_line(&mut head, name.as_str(), value.as_bytes());
        }
        if http1::response_head::has_content(status) {
            http1::response_head::content_length(&mut head, body.len() as u64);
        }
        Self { status, head: head.into(), body }
    }

    /// The body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The field lines, read back from the encoded head; without `Content-Length`, which follows from the body.
    fn fields(&self) -> Vec<(HeaderName, HeaderValue)> {
        let mut fields = Vec::new();
        for line in self.head.split(|&byte| byte == b'\n').skip(1).map(<[u8]>::trim_ascii_end) {
            let Some((name, value)) =
                line.iter().position(|&byte| byte == b':').and_then(|at| line.split_at_checked(at))
            else {
                continue;
            };
            let value = value.get(1..).unwrap_or_default().trim_ascii();
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
                && name != header::CONTENT_LENGTH
            {
                fields.push((name, value));
            }
        }
        fields
    }
}

/// An answer that says in one line what is wrong with a request, and closes the connection.
pub(crate) fn reason_response(status: StatusCode, reason: &str) -> Response {
    Response::new(status)
        .header(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"))
        .header(header::CONNECTION, HeaderValue::from_static("close"))
        .body(Body::bytes(format!("{reason}\n")))
}

#[cfg(test)]
mod tests {
    use http::header::{CONTENT_TYPE, ETAG};

    use super::*;

    impl Response {
        /// The body of an answer from memory.
        pub(crate) fn body_bytes(&self) -> Bytes {
            match &self.kind {
                ResponseKind::Plain { body, .. } => match &body.kind {
                    crate::message::body::BodyKind::Empty => Bytes::new(),
                    crate::message::body::BodyKind::Bytes(bytes) => bytes.clone(),
                    other => panic!("not from memory: {other:?}"),
                },
                ResponseKind::Prepared(prepared) => prepared.body.clone(),
            }
        }
    }

    #[test]
    fn a_prepared_answer_can_be_changed() {
        let fields = [(CONTENT_TYPE, HeaderValue::from_static("text/plain; a=b:c"))];
        let prepared = Arc::new(Prepared::new(StatusCode::OK, &fields, Bytes::from_static(b"hello")));
        let response = Response::from(prepared);
        assert_eq!(response.header_value(&CONTENT_TYPE).expect("has one"), "text/plain; a=b:c");
        let mut response = response.header(ETAG, HeaderValue::from_static("\"x\""));
        assert_eq!(response.plain().0.len(), 2);
        assert_eq!((response.status(), response.body_bytes()), (StatusCode::OK, Bytes::from_static(b"hello")));
        let response = response.replace_header(ETAG, HeaderValue::from_static("\"y\""));
        assert_eq!(response.header_value(&ETAG).expect("has one"), "\"y\"");
    }
}
