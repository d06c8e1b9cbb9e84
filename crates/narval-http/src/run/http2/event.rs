use std::io;
use std::sync::Arc;

use super::body::{Made, Maker, StreamBody};
use crate::http2::conn::{Answer, Exchange};
use crate::io::output_memory::Share;
use crate::message::body_pipe::BodyPipe;
use crate::observe::access_log::Watch;
use crate::run::pending_late::PendingLate;

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

/// An event on a stream, for its shard.
pub(crate) enum StreamEvent {
    /// The response to its request, and what it holds until the connection counts it.
    Answer(Box<Answer<Streamed>>, Share),
    /// There will be no response.
    Lost,
    /// The header block of an informational response.
    Inform(Vec<u8>),
    /// The handler wants the body; the client waits for `100 Continue`.
    ContinueWanted,
    /// The buffer of the request body has room again.
    BodyWanted,
    /// A WebSocket has queued a frame, or its handler has caught up.
    WebSocket,
    /// The source of the response body has more data.
    BodyReady,
    /// The next piece of the response body; about `quantum` bytes were requested.
    Made { made: io::Result<Made>, quantum: usize },
}

impl std::fmt::Debug for StreamEvent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Answer(..) => "Answer",
            Self::Lost => "Lost",
            Self::Inform(_) => "Inform",
            Self::ContinueWanted => "ContinueWanted",
            Self::BodyWanted => "BodyWanted",
            Self::WebSocket => "WebSocket",
            Self::BodyReady => "BodyReady",
            Self::Made { .. } => "Made",
        })
    }
}
