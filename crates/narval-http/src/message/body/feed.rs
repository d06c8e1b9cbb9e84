//! A response body that is produced while it is sent.

use std::io;
use std::time::Duration;

use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, SET_COOKIE, TRAILER, TRANSFER_ENCODING,
};
use http::{HeaderName, HeaderValue};

use crate::message::body::source::{BodySource, BodyWaker, Fill, SegmentBuf};
use crate::observe::request_id::RequestId;

/// Fields that a client must know before the body (RFC 9110 section 6.5.1).
const NOT_IN_TRAILERS: [HeaderName; 7] =
    [CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, TRAILER, CONTENT_ENCODING, CONTENT_TYPE, SET_COOKIE];

/// A [`BodySource`] that has to keep what the head of its response promised.
pub(crate) struct Feed {
    source: Box<dyn BodySource>,
    /// Bytes still to be produced, if the length is known.
    left: Option<u64>,
    /// The request that it answers.
    id: Option<RequestId>,
}

impl std::fmt::Debug for Feed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feed").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Feed {
    /// The body of the request that this thread answers; `length` if it is known.
    pub(crate) fn new(source: Box<dyn BodySource>, length: Option<u64>) -> Self {
        Self { source, left: length, id: RequestId::current() }
    }

    /// Bytes still to be produced, if known.
    pub(crate) fn left(&self) -> u64 {
        self.left.unwrap_or(0)
    }

    /// Whether [`fill`](Self::fill) does not block.
    pub(crate) fn never_blocks(&self) -> bool {
        self.source.never_blocks()
    }

    /// Produces one piece into an empty buffer.
    ///
    /// # Errors
    /// The source fails, or produces another length than it promised: the body cannot be completed.
    pub(crate) fn fill(&mut self, segments: &mut SegmentBuf) -> io::Result<Fill> {
        let _entered = self.id.clone().map(RequestId::enter);
        let fill = self.source.fill(segments)?;
        if let Some(left) = &mut self.left {
            let wrong = |what| io::Error::new(io::ErrorKind::InvalidData, what);
            *left = left.checked_sub(segments.bytes()).ok_or_else(|| wrong("the body is longer than promised"))?;
            if fill == Fill::Done && *left > 0 {
                return Err(wrong("the body is shorter than promised"));
            }
        }
        Ok(fill)
    }

    /// The trailer fields, after the last piece. None follow a body of announced length.
    pub(crate) fn trailers(&mut self) -> Vec<(HeaderName, HeaderValue)> {
        if self.left.is_some() {
            return Vec::new();
        }
        let mut trailers = self.source.trailers();
        trailers.retain(|(name, _)| !NOT_IN_TRAILERS.contains(name));
        trailers
    }

    /// Registers `waker` for when the source has more data; returns the longest wait.
    pub(crate) fn wait(&mut self, waker: BodyWaker) -> Duration {
        self.source.wait(waker)
    }

    /// Asks it to end, for the client or the server; returns whether it does.
    pub(crate) fn hang_up(&mut self) -> bool {
        self.source.hang_up()
    }
}
