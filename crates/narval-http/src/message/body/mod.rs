pub(crate) mod feed;
pub(crate) mod memory;
pub(crate) mod pipe;
pub(crate) mod produced;
pub(crate) mod reader;
pub(crate) mod source;
pub(crate) mod writer;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;

use crate::message::body::source::{BodySource, FileRange};
use crate::message::body::writer::BodyWriter;
use crate::message::panic_guard::{Guarded, Kept};

/// The body of a [`Response`](crate::Response).
#[derive(Debug, Default)]
pub struct Body {
    pub(crate) kind: BodyKind,
    /// Dropped when the body has ended.
    pub(crate) kept: Option<Kept>,
}

#[derive(Default)]
pub(crate) enum BodyKind {
    #[default]
    Empty,
    Bytes(Bytes),
    File(FileRange),
    Source {
        source: Box<dyn BodySource>,
        length: Option<u64>,
    },
}

impl Body {
    fn of(kind: BodyKind) -> Self {
        Self { kind, kept: None }
    }

    /// An empty body: `Content-Length: 0`.
    pub fn empty() -> Self {
        Self::default()
    }

    /// A body from memory.
    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        Self::of(BodyKind::Bytes(bytes.into()))
    }

    /// A range of an open file, sent with `sendfile(2)` if that pays. If the file turns out to be shorter, the
    /// connection is aborted.
    pub fn file(range: FileRange) -> Self {
        Self::of(BodyKind::File(range))
    }

    /// A body produced piece by piece as the client reads it. With `length`, it is sent with `Content-Length`; without,
    /// chunked. If the source fails, panics, or produces another length, the connection is aborted.
    pub fn source(source: impl BodySource + 'static, length: Option<u64>) -> Self {
        Self::of(BodyKind::Source { source: Box::new(Guarded::new(source)), length })
    }

    /// A body that any thread writes, with the returned [`BodyWriter`], while it is sent. With `length`, it is sent
    /// with `Content-Length`, and writing less or more aborts the connection; without, it is sent chunked.
    ///
    /// ```
    /// use std::io::Write;
    ///
    /// use narval_http::{Body, Request, Response, StatusCode};
    ///
    /// fn count(_: Request) -> Response {
    ///     let (body, mut writer) = Body::writer(None);
    ///     std::thread::spawn(move || {
    ///         for n in 0..1_000_000 {
    ///             writeln!(writer, "{n}")?; // waits while the client is slow
    ///         }
    ///         writer.finish()
    ///     });
    ///     Response::new(StatusCode::OK).body(body)
    /// }
    /// ```
    pub fn writer(length: Option<u64>) -> (Self, BodyWriter) {
        let (writer, source) = writer::pair();
        (Self::source(source, length), writer)
    }

    /// Keeps a value until the body is sent, or discarded because the response was aborted: a guard that counts what is
    /// being sent, for example. A body from memory counts as sent once it is encoded.
    #[must_use]
    pub fn keep(mut self, value: impl Send + 'static) -> Self {
        self.kept = Some(Kept::new(value));
        self
    }

    /// The same, and keeps in `sent` how many bytes the socket has taken so far: about, because the head of the response and what TLS adds
    /// count, too.
    #[must_use]
    pub fn keep_counted(mut self, value: impl Send + 'static, sent: Arc<AtomicU64>) -> Self {
        self.kept = Some(Kept::counted(value, sent));
        self
    }

    /// The length in bytes, if it is known in advance.
    pub fn length(&self) -> Option<u64> {
        match &self.kind {
            BodyKind::Empty => Some(0),
            BodyKind::Bytes(bytes) => u64::try_from(bytes.len()).ok(),
            BodyKind::File(range) => Some(range.length),
            BodyKind::Source { length, .. } => *length,
        }
    }
}

impl fmt::Debug for BodyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::File(range) => write!(f, "{range:?}"),
            Self::Source { length, .. } => write!(f, "Source({length:?})"),
        }
    }
}
