//! What requests on HTTP/2 streams need that HTTP/1.1 requests do not: bodies that the shard sends frame by frame.

mod body;
mod encode;

use std::sync::Arc;

pub(crate) use self::body::{Made, Maker, StreamBody};
pub(crate) use self::encode::encode;
use crate::http2::conn::Exchange;
use crate::message::body::pipe::BodyPipe;
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
