//! What requests on streams of an HTTP/2 connection need beside those on connections of their own: who may answer them, and bodies that
//! the shard sends frame by frame.

mod body;
mod encode;
mod reply;

use std::io;
use std::sync::Arc;

pub(crate) use self::body::{Made, Maker, StreamBody};
pub(crate) use self::encode::encode;
pub(crate) use self::reply::{MakeJob, ReplyTo, StreamFeeder, StreamReply, StreamWakes};
use crate::http2::conn::{Answer, Exchange};
use crate::message::body_pipe::BodyPipe;
use crate::observe::access_log::Watch;
use crate::run::late::PendingLate;

/// What HTTP/2 connections carry for a shard.
pub(crate) enum Streamed {}

impl Exchange for Streamed {
    type Body = StreamBody;
    type Maker = Maker;
    type Made = Made;
    type Later = Box<PendingLate>;
    type Pipe = Arc<BodyPipe>;
    type Note = Box<Watch>;
}

/// What a shard is told about a stream.
pub(crate) enum StreamEvent {
    /// The answer to its request.
    Answer(Box<Answer<Streamed>>),
    /// There will be none.
    Lost,
    /// The header block of an informational response.
    Inform(Vec<u8>),
    /// The handler wants the body that the client holds back.
    ContinueWanted,
    /// The reader of the request body has room again.
    BodyWanted,
    /// The source of the answer's body has more.
    BodyReady,
    /// The next piece of the answer's body, for which about `quantum` bytes were asked.
    Made { made: io::Result<Made>, quantum: usize },
}

impl std::fmt::Debug for StreamEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Answer(_) => "Answer",
            Self::Lost => "Lost",
            Self::Inform(_) => "Inform",
            Self::ContinueWanted => "ContinueWanted",
            Self::BodyWanted => "BodyWanted",
            Self::BodyReady => "BodyReady",
            Self::Made { .. } => "Made",
        })
    }
}
