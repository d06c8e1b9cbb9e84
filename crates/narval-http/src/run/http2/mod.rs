//! What requests on HTTP/2 streams need that HTTP/1.1 requests do not: the right to answer, and bodies that the shard
//! sends frame by frame.

mod body;
mod encode;
mod event;
mod reply;

pub(crate) use self::body::StreamBody;
pub(crate) use self::encode::encode;
pub(crate) use self::event::{StreamEvent, Streamed};
pub(crate) use self::reply::{MakeJob, ReplyTo, StreamCarrier, StreamFeeder, StreamReply, StreamWakes};
