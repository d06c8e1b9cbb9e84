use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

use crate::http1::head::ParsedHead;
use crate::message::body::memory::Buffered;
use crate::message::body::pipe::BodyPipe;

/// A request for a worker.
pub(crate) struct Request {
    pub(crate) bytes: Bytes,
    pub(crate) head: Box<ParsedHead>,
    pub(crate) body: Body,
}

/// The body of a request for a worker.
pub(crate) enum Body {
    None,
    Buffered(Box<(Buffered, HeaderMap)>),
    Streamed(Arc<BodyPipe>),
}
