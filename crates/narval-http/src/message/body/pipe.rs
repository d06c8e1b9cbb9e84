//! Request bodies between the shard that receives them and the handler that reads them: in memory, or through a pipe with
//! back-pressure.
//!
//! While a body of announced length arrives fast, its handler receives it directly from the socket into its own buffer:
//! no other thread is woken for each piece, and a copy is saved. When the client pauses, the shard waits for it.
//! Measured with uploads of 235 MB: docs/performance.md.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, MutexGuard};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;

use crate::http1::ProtoError;
use crate::io::sync::{self, Mutex};
use crate::limits::{HANDLER_RECEIVES_MIN, HANDLER_SLOW, HANDLER_WAIT};
use crate::message::body::memory::{Buffered, Share};
use crate::message::carrier::{Carrier, Nudge};

/// A request body between the shard that receives it and the handler that reads it.
#[derive(Debug)]
pub(crate) struct BodyPipe {
    state: Mutex<Pipe>,
    filled: Condvar,
    carrier: Carrier,
    window: usize,
}

/// Who receives more of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// The connection: what it receives is [pushed](BodyPipe::push).
    Connection,
    /// The handler, straight from the socket.
    Handler,
    /// Nobody, until the handler has read the buffered bytes.
    Nobody,
}

#[derive(Debug)]
struct Pipe {
    pieces: VecDeque<BytesMut>,
    buffered: usize,
    /// The memory accounted for them.
    share: Share,
    ended: Option<Ended>,
    /// The trailers of a complete body.
    trailers: HeaderMap,
    /// Who receives. If it is not the connection, the connection waits for `BodyWanted`.
    receiver: Receiver,
    /// Bytes still to come, if the handler may receive them itself.
    rest: Option<u64>,
    /// Bytes that the handler has received itself and not yet reported to the connection.
    received_by_handler: u64,
    /// Bytes that the connection has received since the handler last did.
    pushed: usize,
    /// The handler waits for the connection.
    is_awaited: bool,
    /// The handler has begun to read. Until then the body waits for a thread.
    has_begun: bool,
    /// The client waits for `100 Continue`.
    continue_due: bool,
    /// The response has started: unread bytes are discarded.
    answered: bool,
}

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// It is complete.
    Complete,
    /// It was aborted.
    Broken(io::ErrorKind),
    /// It is malformed.
    Refused(ProtoError),
}

/// The least memory for a piece of a body, in bytes: chunks of one byte each must not cost many times their size.
const PIECE_MIN: usize = 4096;

impl BodyPipe {
    /// A pipe that starts with the bytes received before.
    pub(crate) fn new(carrier: Carrier, window: usize, continue_due: bool, begun: Buffered) -> Self {
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
            receiver: Receiver::Connection,
            rest: None,
            received_by_handler: 0,
            pushed: buffered,
            is_awaited: false,
            has_begun: false,
            continue_due,
            answered: false,
        };
        // An empty window would never open.
        Self { state: Mutex::new(pipe), filled: Condvar::new(), carrier, window: window.max(1) }
    }

    /// The same, but the handler may receive the remaining `rest` bytes itself.
    pub(crate) fn with_rest(self, rest: Option<u64>) -> Self {
        self.state.lock().rest = rest;
        self
    }

    /// Handler: the trailer fields; empty until the body is complete.
    pub(crate) fn trailers(&self) -> HeaderMap {
        self.state.lock().trailers.clone()
    }

    fn end(&self, ended: Ended) {
        let mut pipe = self.state.lock();
        if pipe.ended.is_none() {
            pipe.ended = Some(ended);
            self.wake(pipe);
        }
    }

    /// Wakes the handler if it waits. Otherwise the system call is saved.
    fn wake(&self, mut pipe: MutexGuard<'_, Pipe>) {
        let is_awaited = std::mem::take(&mut pipe.is_awaited);
        drop(pipe);
        if is_awaited {
            self.filled.notify_one();
        }
    }

    /// Job: the response starts. Returns whether the body was received completely, so that the connection can be
    /// reused.
    pub(crate) fn answer_begins(&self) -> bool {
        let mut pipe = self.state.lock();
        pipe.begin();
        pipe.answered = true;
        pipe.pieces.clear();
        let unread = std::mem::take(&mut pipe.buffered);
        pipe.share.give_back(unread);
        if pipe.ended.is_none() {
            self.give_back(&mut pipe);
        }
        let is_complete = pipe.ended == Some(Ended::Complete);
        // Another thread than the handler's may still read.
        self.wake(pipe);
        is_complete
    }

    /// The connection receives from now on.
    fn give_back(&self, pipe: &mut Pipe) {
        if std::mem::replace(&mut pipe.receiver, Receiver::Connection) != Receiver::Connection {
            pipe.pushed = 0;
            self.carrier.address.nudge(Nudge::BodyRead);
        }
    }

    /// Handler: receives from the socket itself. Returns the number of bytes (0 if the connection must wait for the
    /// client or handle an error), and whether they arrived fast.
    fn receive(&self, out: &mut [u8]) -> (usize, bool) {
        let would_block = |received: &io::Result<usize>| {
            received.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        // Only bodies of plain connections are received by their handlers.
        let Some(connection) = &self.carrier.link else { return (0, false) };
        let socket = &connection.link().socket;
        let mut received = socket.receive(out);
        let has_waited = would_block(&received);
        if has_waited && socket.await_readable(HANDLER_WAIT) {
            received = socket.receive(out);
        }
        // An end or an error is left to the connection, which gets the same result.
        let bytes = received.unwrap_or(0);
        (bytes, bytes >= HANDLER_SLOW || (bytes > 0 && !has_waited))
    }

    /// Handler: the next bytes.
    pub(crate) fn read(&self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let mut pipe = self.state.lock();
        if pipe.begin() && pipe.receiver == Receiver::Nobody && pipe.buffered <= self.window / 2 {
            self.give_back(&mut pipe);
        }
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
                if pipe.receiver == Receiver::Nobody && pipe.buffered <= self.window / 2 {
                    self.give_back(&mut pipe);
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
            if pipe.receiver == Receiver::Handler {
                let rest = usize::try_from(pipe.rest.unwrap_or(0)).unwrap_or(usize::MAX).min(out.len());
                drop(pipe);
                let (received, was_fast) = self.receive(out.get_mut(..rest).unwrap_or_default());
                pipe = self.state.lock();
                pipe.count(received as u64);
                if pipe.rest == Some(0) {
                    pipe.ended.get_or_insert(Ended::Complete);
                }
                if !was_fast || pipe.ended.is_some() {
                    self.give_back(&mut pipe);
                }
                if received > 0 {
                    return Ok(received);
                }
                continue;
            }
            if std::mem::take(&mut pipe.continue_due) {
                // The handler's job holds the lease, and no response has started: this thread may write.
                self.carrier.send_continue();
                self.carrier.address.nudge(Nudge::BodyRead);
            }
            pipe.is_awaited = true;
            pipe = sync::wait(&self.filled, &self.state, pipe);
        }
    }
}

/// The shard's end of it.
impl BodyPipe {
    /// Adds bytes. They are discarded once the response has started.
    pub(crate) fn push(&self, data: &[u8]) {
        let mut pipe = self.state.lock();
        if let Some(rest) = &mut pipe.rest {
            *rest = rest.saturating_sub(data.len() as u64);
        }
        if !data.is_empty() && !pipe.answered {
            pipe.pushed += data.len();
            // A client that sends its body already does not wait for `100 Continue`.
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
            self.wake(pipe);
        }
    }

    /// The body is complete.
    pub(crate) fn complete(&self, trailers: HeaderMap) {
        self.state.lock().trailers = trailers;
        self.end(Ended::Complete);
    }

    /// The rest of the body will never arrive.
    pub(crate) fn abort(&self, reason: io::ErrorKind) {
        self.end(Ended::Broken(reason));
    }

    /// The body is malformed, and is not received any further.
    pub(crate) fn refuse(&self, error: ProtoError) {
        self.end(Ended::Refused(error));
    }

    /// Decides who receives next. After anything but [`Receiver::Connection`], the handler must report when that
    /// changes. Only called while the connection does not receive.
    pub(crate) fn receiver(&self) -> Receiver {
        let mut pipe = self.state.lock();
        if pipe.receiver == Receiver::Handler {
            // Until the handler hands it back: it may be receiving right now.
            return Receiver::Handler;
        }
        let is_read = !pipe.answered && pipe.ended.is_none();
        let is_fast = pipe.pushed >= HANDLER_RECEIVES_MIN;
        pipe.receiver = if is_read && is_fast && pipe.rest.is_some_and(|rest| rest >= HANDLER_RECEIVES_MIN as u64) {
            Receiver::Handler
        } else if is_read && (pipe.buffered >= self.window || pipe.waits_for_memory()) {
            Receiver::Nobody
        } else {
            Receiver::Connection
        };
        if pipe.receiver == Receiver::Handler {
            self.wake(pipe);
            return Receiver::Handler;
        }
        pipe.receiver
    }

    /// Whether to continue receiving, for handlers that cannot receive themselves. After `false`, the handler must ask
    /// for more.
    pub(crate) fn has_room(&self) -> bool {
        self.receiver() == Receiver::Connection
    }

    /// Whether the handler has begun to read. Until then the body waits for a thread.
    pub(crate) fn has_begun(&self) -> bool {
        self.state.lock().has_begun
    }

    /// Bytes of the body that the handler has received itself since the last call.
    pub(crate) fn take_received(&self) -> u64 {
        std::mem::take(&mut self.state.lock().received_by_handler)
    }

    /// Whether the connection waits for the handler to read.
    pub(crate) fn is_paused(&self) -> bool {
        let pipe = self.state.lock();
        pipe.receiver != Receiver::Connection || pipe.continue_due
    }
}

impl Pipe {
    /// The handler reads, or answers. Returns whether it is the first time.
    fn begin(&mut self) -> bool {
        self.share.keep_promise();
        !std::mem::replace(&mut self.has_begun, true)
    }

    /// Whether nothing more is received until the handler reads. Once it does, the body never waits for memory.
    fn waits_for_memory(&self) -> bool {
        !self.has_begun && self.share.is_short()
    }

    /// Counts bytes that the handler has received itself.
    fn count(&mut self, received: u64) {
        self.received_by_handler += received;
        self.share.count_received_by_handler(received);
        if let Some(rest) = &mut self.rest {
            *rest = rest.saturating_sub(received);
        }
    }
}
