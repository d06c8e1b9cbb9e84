use std::any::Any;
use std::error::Error;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use http::{HeaderName, HeaderValue, StatusCode, header};

use crate::http1::response_head::{Prepared, TEXT};
use crate::message::body::{Body, BodyKind};
use crate::message::invalid_header::{InvalidHeader, header_field};
use crate::message::late::Later;
use crate::message::panic_guard::Kept;

/// A response: a status, field lines and a [`Body`].
///
/// The engine adds `Date`, `Content-Length` or `Transfer-Encoding`, and `Connection`, and omits the body where RFC 9110
/// requires it (HEAD, 204, 304).
#[derive(Debug)]
pub struct Response {
    pub(crate) kind: ResponseKind,
    /// With a 101, or the 200 to an extended CONNECT: the new protocol of the connection or stream, as `ws::Accepted`, which knows responses.
    pub(crate) upgrade: Option<Box<dyn Any + Send + Sync>>,
    /// The answer follows later.
    pub(crate) late: Option<Box<Later<Self>>>,
    /// The error that a handler returned, until an error handler takes it.
    pub(crate) failure: Option<Box<dyn Error + Send + Sync>>,
}

#[derive(Debug)]
pub(crate) enum ResponseKind {
    Plain { status: StatusCode, headers: Vec<(HeaderName, HeaderValue)>, body: Body },
    Prepared(Held),
}

/// How a response holds a prepared one.
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
    fn of(kind: ResponseKind) -> Self {
        Self { kind, upgrade: None, late: None, failure: None }
    }

    /// A prepared response inside a larger value: one reference count for both.
    pub fn within<T>(holder: Arc<T>) -> Self
    where
        T: AsRef<Prepared> + std::fmt::Debug + Send + Sync + 'static,
    {
        Self::of(ResponseKind::Prepared(Held::Within(holder)))
    }

    /// Bytes of its body, if that is in memory.
    pub(crate) fn bytes_in_memory(&self) -> usize {
        match &self.kind {
            ResponseKind::Prepared(prepared) => prepared.body.len(),
            ResponseKind::Plain { body, .. } => match &body.kind {
                BodyKind::Bytes(bytes) => bytes.len(),
                BodyKind::Empty | BodyKind::File(_) | BodyKind::Source { .. } => 0,
            },
        }
    }

    /// A response with this status, without field lines or body.
    pub fn new(status: StatusCode) -> Self {
        Self::of(ResponseKind::Plain { status, headers: Vec::new(), body: Body::empty() })
    }

    /// A `text/plain; charset=utf-8` response.
    pub fn text(status: StatusCode, text: impl Into<String>) -> Self {
        Self::new(status).header(header::CONTENT_TYPE, TEXT).body(Body::bytes(text.into()))
    }

    /// Adds a field line. Others with this name are kept.
    ///
    /// Names and values are strings, bytes, or typed ([`HeaderName`], [`HeaderValue`]). An invalid string turns the
    /// response into a 500 ([`failure`](Self::failure) with an [`InvalidHeader`]), and the place of the call is logged.
    ///
    /// ```
    /// use narval_http::{Response, StatusCode, header};
    ///
    /// let response = Response::text(StatusCode::OK, "{}")
    ///     .replace_header("content-type", "application/json")
    ///     .header(header::VARY, "accept")
    ///     .header("x-request-id", format!("{:x}", 4711))
    ///     .header("age", 60);
    /// assert_eq!(response.header_value(&header::AGE).unwrap(), "60");
    ///
    /// let wrong = Response::new(StatusCode::OK).header("x-user", "line one\nline two");
    /// assert_eq!(wrong.status(), StatusCode::INTERNAL_SERVER_ERROR);
    /// ```
    #[must_use]
    #[track_caller]
    pub fn header<N, V>(self, name: N, value: V) -> Self
    where
        N: TryInto<HeaderName, Error: Into<http::Error>>,
        V: TryInto<HeaderValue, Error: Into<http::Error>>,
    {
        self.with_field(header_field(name, value), false)
    }

    /// Sets a field line, replacing all with this name; see [`header`](Self::header) for the arguments.
    #[must_use]
    #[track_caller]
    pub fn replace_header<N, V>(self, name: N, value: V) -> Self
    where
        N: TryInto<HeaderName, Error: Into<http::Error>>,
        V: TryInto<HeaderValue, Error: Into<http::Error>>,
    {
        self.with_field(header_field(name, value), true)
    }

    /// An invalid field turns the response into a 500 that ignores further changes, until [`settle`](Self::settle).
    fn with_field(mut self, field: Result<(HeaderName, HeaderValue), InvalidHeader>, replace: bool) -> Self {
        if self.is_being_failed() {
            return self;
        }
        let field = match field {
            Ok(field) => field,
            Err(error) => return Self::failure(error),
        };
        if self.late.is_some() {
            return self.map(move |answer| answer.with_field(Ok(field), replace));
        }
        let headers = self.plain().0;
        if replace {
            headers.retain(|(have, _)| *have != field.0);
        }
        headers.push(field);
        self
    }

    fn is_being_failed(&self) -> bool {
        let invalid = self.failure.as_ref().and_then(|failure| failure.downcast_ref::<InvalidHeader>());
        invalid.is_some_and(|invalid| invalid.is_ignoring_changes)
    }

    /// Called when the handler has returned the response: middlewares may change it again.
    pub(crate) fn settle(mut self) -> Self {
        if let Some(invalid) = self.failure.as_mut().and_then(|failure| failure.downcast_mut::<InvalidHeader>()) {
            invalid.is_ignoring_changes = false;
        }
        self
    }

    /// Sets the status. The response for an error keeps its own.
    #[must_use]
    pub fn with_status(self, new: StatusCode) -> Self {
        self.map(move |mut answer| {
            if answer.failure.is_none() {
                answer.plain();
                if let ResponseKind::Plain { status, .. } = &mut answer.kind {
                    *status = new;
                }
            }
            answer
        })
    }

    /// All field lines, without those that the engine adds.
    pub fn headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        match &self.kind {
            ResponseKind::Plain { headers, .. } => headers.clone(),
            ResponseKind::Prepared(prepared) => prepared.fields(),
        }
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
    pub fn body(self, new: Body) -> Self {
        self.map(|mut answer| {
            if !answer.is_being_failed() {
                *answer.plain().1 = new;
            }
            answer
        })
    }

    /// Keeps a value until the body has been sent or is discarded; see [`Body::keep`].
    #[must_use]
    pub fn keep(self, value: impl Send + 'static) -> Self {
        self.keeping(Kept::new(value))
    }

    /// The same, and says how much has been sent; see [`Body::keep_counted`].
    #[must_use]
    pub fn keep_counted(self, value: impl Send + 'static, sent: Arc<AtomicU64>) -> Self {
        self.keeping(Kept::counted(value, sent))
    }

    fn keeping(self, kept: Kept) -> Self {
        self.map(|mut answer| {
            if let ResponseKind::Plain { body, .. } = &mut answer.kind {
                body.kept = Some(kept);
            }
            answer
        })
    }

    /// Mutable field lines and body; a [`Prepared`] response is taken apart for that.
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

    /// The length of the body in bytes, if it is known in advance.
    pub fn content_length(&self) -> Option<u64> {
        match &self.kind {
            ResponseKind::Plain { body, .. } => body.length(),
            ResponseKind::Prepared(prepared) => u64::try_from(prepared.body.len()).ok(),
        }
    }
}

impl From<Arc<Prepared>> for Response {
    fn from(prepared: Arc<Prepared>) -> Self {
        Self::of(ResponseKind::Prepared(Held::Shared(prepared)))
    }
}

/// A value that contains a [`Prepared`] response.
pub(crate) trait HoldsPrepared: AsRef<Prepared> + std::fmt::Debug + Send + Sync {}

impl<T: AsRef<Prepared> + std::fmt::Debug + Send + Sync> HoldsPrepared for T {}

/// For responses that live as long as the program: no reference count.
impl From<&'static Prepared> for Response {
    fn from(prepared: &'static Prepared) -> Self {
        Self::of(ResponseKind::Prepared(Held::Forever(prepared)))
    }
}

#[cfg(test)]
mod tests {
    use http::header::{CONTENT_TYPE, ETAG};

    use bytes::Bytes;

    use super::*;

    impl Response {
        /// The body of an answer from memory.
        pub(crate) fn body_bytes(&self) -> Bytes {
            match &self.kind {
                ResponseKind::Plain { body, .. } => match &body.kind {
                    BodyKind::Empty => Bytes::new(),
                    BodyKind::Bytes(bytes) => bytes.clone(),
                    other => panic!("not from memory: {other:?}"),
                },
                ResponseKind::Prepared(prepared) => prepared.body.clone(),
            }
        }
    }

    #[test]
    fn an_invalid_header_is_a_500_with_nothing_of_the_response_that_was_meant() {
        for (name, value) in [("x user", "ada"), ("x-user", "a\r\nSet-Cookie: b"), ("", "ada"), ("x-user", "\0")] {
            let line = line!() + 1;
            let meant = Response::text(StatusCode::OK, "secret").header(name, value);
            let meant = meant.header("content-encoding", "gzip").body(Body::bytes("more"));
            assert_eq!(meant.status(), StatusCode::INTERNAL_SERVER_ERROR, "{name:?} {value:?}");
            assert_eq!(meant.body_bytes(), "internal server error\n");
            assert_eq!(meant.header_value(&header::CONTENT_ENCODING), None);
            // Middlewares may say more.
            let mut response = meant.settle().header("vary", "origin");
            assert_eq!(response.header_value(&header::VARY).expect("set"), "origin");
            let error = response.take_failure().expect("kept for the error handler").to_string();
            assert!(error.contains(&format!("response.rs:{line}")), "{error}");
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
