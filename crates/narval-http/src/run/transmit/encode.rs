use bytes::Bytes;
use http::StatusCode;

use crate::http1::response_head::{AnswerTo, BodyFraming, encode_head, encode_prepared};
use crate::io::out_buf::OutBuf;
use crate::limits::COPY_BODY_MAX;
use crate::message::body::BodyKind;
use crate::message::body::feed::Feed;
use crate::message::body::source::FileRange;
use crate::message::panic_guard::Kept;
use crate::message::response::{Held, Response, ResponseKind};

/// A response that was encoded into an [`OutBuf`].
pub(crate) struct Encoded {
    pub(crate) status: StatusCode,
    /// Whether the connection is kept after it.
    pub(crate) keep_alive: bool,
    /// What follows the bytes in the buffer.
    pub(crate) rest: Rest,
    /// What was encoded, if it was prepared.
    pub(crate) spent: Option<Held>,
    /// What is kept until the body has ended.
    pub(crate) kept: Option<Kept>,
}

/// The part of a body that is not in memory.
pub(crate) enum Rest {
    None,
    File(FileRange),
    Feed { feed: Feed, is_chunked: bool },
}

/// Appends `response` to `out`, whose tail must be empty: the head, and the body if it is in memory.
#[inline]
pub(crate) fn encode(response: Response, to: AnswerTo, out: &mut OutBuf) -> Encoded {
    debug_assert!(out.tail.is_empty(), "nothing can follow a tail");
    let (status, fields, body) = match response.kind {
        ResponseKind::Prepared(prepared) => {
            let head = encode_prepared(&mut out.memory, &prepared, to);
            if head.framing != BodyFraming::None {
                append(&prepared.body, out);
            }
            let status = prepared.status;
            return Encoded {
                status,
                keep_alive: head.keep_alive,
                rest: Rest::None,
                spent: Some(prepared),
                kept: None,
            };
        }
        ResponseKind::Plain { status, headers, body } => (status, headers, body),
    };
    let head = encode_head(&mut out.memory, status, &fields, body.length(), to);
    let rest = match body.kind {
        _ if head.framing == BodyFraming::None => Rest::None,
        BodyKind::Empty => Rest::None,
        BodyKind::Bytes(bytes) => {
            append(&bytes, out);
            Rest::None
        }
        BodyKind::File(range) => Rest::File(range),
        BodyKind::Source { source, length } => {
            Rest::Feed { feed: Feed::new(source, length), is_chunked: head.framing == BodyFraming::Chunked }
        }
    };
    Encoded { status, keep_alive: head.keep_alive, rest, spent: None, kept: body.kept }
}

fn append(body: &Bytes, out: &mut OutBuf) {
    if body.len() <= COPY_BODY_MAX {
        out.memory.extend_from_slice(body);
    } else {
        out.tail = body.clone();
    }
}
