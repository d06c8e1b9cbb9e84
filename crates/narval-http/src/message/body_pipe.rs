//! Request bodies between the shard that receives them and the handler that reads them: in memory, or through a pipe with
//! back-pressure.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;

use crate::http1::ProtoError;
use crate::http1::conn;
use crate::http1::conn::body_memory::{Buffered, Share};
use crate::io::sync;

/// The connection that a body comes from.
pub(crate) trait Feeder: Send + Sync + std::fmt::Debug {
    /// Asks for a body that the client holds back (RFC 9110 section 10.1.1). The caller's job holds the lease, and no answer has
    /// begun.
    fn send_continue(&self);

    /// There is room for more of the body.
    fn want_body(&self);
}

/// A request body between the shard that receives it and the handler that reads it.
#[derive(Debug)]
pub(crate) struct BodyPipe {
    state: Mutex<Pipe>,
    filled: Condvar,
    feeder: Arc<dyn Feeder>,
    window: usize,
}

#[derive(Debug)]
struct Pipe {
    pieces: VecDeque<BytesMut>,
    buffered: usize,
    /// The memory for that.
    share: Share,
    ended: Option<Ended>,
    /// Those of a body that is complete.
    trailers: HeaderMap,
    /// The shard has stopped receiving, and waits for `BodyWanted`.
    paused: bool,
    /// The client waits for `100 Continue`.
    continue_due: bool,
    /// The answer has begun: what is not read now is not wanted.
    answered: bool,
}

/// How a body is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// It is complete.
    Complete,
    /// It was aborted.
    Broken(io::ErrorKind),
    /// It breaks a rule.
    Refused(ProtoError),
}

/// The least memory for a piece of a body, in bytes: chunks of a byte each must not cost many times that.
const PIECE_MIN: usize = 4096;

impl BodyPipe {
    /// A pipe that begins with what was received before.
    pub(crate) fn new(feeder: Arc<dyn Feeder>, window: usize, continue_due: bool, begun: Buffered) -> Self {
        let Buffered { mut bytes, mut share } = begun;
        bytes.shrink_to_fit();
        share.give_back(share.bytes().saturating_sub(bytes.len()));
        let buffered = bytes.len();
        let pieces = Some(BytesMut::from(Bytes::from(bytes))).filter(|piece| !piece.is_empty()).into_iter().collect();
        let pipe = Pipe {
            pieces,
            buffered,
            share,
            ended: None,
            trailers: HeaderMap::new(),
            paused: false,
            continue_due,
            answered: false,
        };
        // A window of nothing would never be open.
        Self { state: Mutex::new(pipe), filled: Condvar::new(), feeder, window: window.max(1) }
    }

    fn lock(&self) -> MutexGuard<'_, Pipe> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handler: the trailer fields; none before the body is complete.
    pub(crate) fn trailers(&self) -> HeaderMap {
        self.lock().trailers.clone()
    }

    fn end(&self, ended: Ended) {
        let mut pipe = self.lock();
        if pipe.ended.is_none() {
            pipe.ended = Some(ended);
            drop(pipe);
            self.filled.notify_one();
        }
    }

    /// Job: the answer begins. True: the body was received completely, and the connection can be used again.
    pub(crate) fn answer_begins(&self) -> bool {
        let mut pipe = self.lock();
        pipe.answered = true;
        pipe.pieces.clear();
        let unread = std::mem::take(&mut pipe.buffered);
        pipe.share.give_back(unread);
        pipe.ended == Some(Ended::Complete)
    }

    /// Handler: the next bytes.
    pub(crate) fn read(&self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let mut pipe = self.lock();
        loop {
            if let Some(piece) = pipe.pieces.front_mut() {
                let n = piece.len().min(out.len());
                if let Some(place) = out.get_mut(..n) {
                    piece.copy_to_slice(place);
                }
                if piece.is_empty() {
                    pipe.pieces.pop_front();
                }
                pipe.buffered -= n;
                pipe.share.give_back(n);
                if pipe.paused && pipe.buffered <= self.window / 2 {
                    pipe.paused = false;
                    self.feeder.want_body();
                }
                return Ok(n);
            }
            match pipe.ended {
                Some(Ended::Complete) => return Ok(0),
                Some(Ended::Broken(kind)) => return Err(io::Error::new(kind, "the request body was aborted")),
                Some(Ended::Refused(error)) => return Err(error.into()),
                None if pipe.answered => return Err(io::Error::other("the request has been answered")),
                None => {}
            }
            if std::mem::take(&mut pipe.continue_due) {
                // The handler's job holds the lease, and no answer has begun: this thread may write.
                self.feeder.send_continue();
                self.feeder.want_body();
            }
            pipe = sync::wait(&self.filled, &self.state, pipe);
        }
    }
}

/// The shard's end of it.
impl conn::Pipe for Arc<BodyPipe> {
    /// They are dropped once the answer has begun.
    fn push(&self, data: &[u8]) {
        let mut pipe = self.lock();
        if !data.is_empty() && !pipe.answered {
            // A client that sends at once does not wait for `100 Continue`.
            pipe.continue_due = false;
            pipe.buffered += data.len();
            pipe.share.add(data.len());
            match pipe.pieces.back_mut() {
                Some(last) if last.capacity() - last.len() >= data.len() => last.extend_from_slice(data),
                _ => {
                    let mut piece = BytesMut::with_capacity(data.len().max(PIECE_MIN));
                    piece.extend_from_slice(data);
                    pipe.pieces.push_back(piece);
                }
            }
            drop(pipe);
            self.filled.notify_one();
        }
    }

    fn complete(&self, trailers: HeaderMap) {
        self.lock().trailers = trailers;
        self.end(Ended::Complete);
    }

    fn abort(&self, reason: io::ErrorKind) {
        self.end(Ended::Broken(reason));
    }

    fn refuse(&self, error: ProtoError) {
        self.end(Ended::Refused(error));
    }

    /// After a `false` comes a `BodyWanted` message when there is room.
    fn has_room(&self) -> bool {
        let mut pipe = self.lock();
        pipe.paused = pipe.buffered >= self.window && !pipe.answered;
        !pipe.paused
    }

    fn is_paused(&self) -> bool {
        let pipe = self.lock();
        pipe.paused || pipe.continue_due
    }
}
