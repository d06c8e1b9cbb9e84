//! Request bodies on their way in: decoded by the shard, buffered up to a limit, and above it streamed to the handler with
//! back-pressure.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;

use crate::http1::ProtoError;
use crate::http1::chunked::ChunkedDecoder;
use crate::http1::head::{Framing, ParsedHead};
use crate::io::clock::{Millis, millis};
use crate::io::sync;
use crate::limits::{BODY_SMALL, Limits};
use crate::run::body_memory::{BodyMemory, Share};
use crate::run::connection::Connection;
use crate::run::mailbox::Message;

/// A request body that is being received.
#[derive(Debug)]
pub(crate) struct IncomingBody {
    decoder: Decoder,
    pub(crate) sink: Sink,
    /// Bytes of the body so far.
    received: u64,
    /// When the present window of the deadline ends.
    window_end: Millis,
    /// Bytes received before it.
    received_before: u64,
    /// Bytes received when the client's progress was last looked at.
    received_at_look: u64,
    /// The body had to wait for its handler since then.
    was_paused: bool,
    /// The same, since the window began.
    was_paused_in_window: bool,
}

#[derive(Debug)]
enum Decoder {
    Length(u64),
    Chunked(Box<ChunkedDecoder>),
}

/// Where the body goes.
#[derive(Debug)]
pub(crate) enum Sink {
    /// Into memory; the request is dispatched when it is complete.
    Buffer { head: Bytes, parsed: Box<ParsedHead>, body: Buffered },
    /// To the handler that runs already.
    Pipe(Arc<BodyPipe>),
    /// Nowhere: the request has been answered. It is received so that the client goes on to read the answer.
    Discard,
}

/// What [`Intake::feed`] did.
pub(crate) struct Fed {
    /// Bytes of the input that belong to the body.
    pub(crate) consumed: usize,
    pub(crate) done: bool,
}

impl IncomingBody {
    pub(crate) fn new(framing: Framing, sink: Sink, window_end: Millis) -> Self {
        let decoder = match framing {
            Framing::Chunked => Decoder::Chunked(Box::default()),
            Framing::Length(length) => Decoder::Length(length),
            Framing::None => Decoder::Length(0),
        };
        Self {
            decoder,
            sink,
            received: 0,
            window_end,
            received_before: 0,
            received_at_look: 0,
            was_paused: false,
            was_paused_in_window: false,
        }
    }

    /// Takes the bytes of the body from the start of `input`.
    ///
    /// # Errors
    /// Broken chunks, or a body longer than `body_max`.
    pub(crate) fn feed(&mut self, input: &[u8], limits: &Limits) -> Result<Fed, ProtoError> {
        let mut consumed = 0;
        let expected = match &self.decoder {
            Decoder::Length(left) => usize::try_from(*left + self.received).unwrap_or(usize::MAX),
            Decoder::Chunked(_) => usize::MAX,
        }
        .min(limits.body_buffer_max);
        loop {
            let rest = input.get(consumed..).unwrap_or_default();
            let (taken, data, done) = match &mut self.decoder {
                Decoder::Length(left) => {
                    let n = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    *left -= n as u64;
                    (n, rest.get(..n).unwrap_or_default(), *left == 0)
                }
                Decoder::Chunked(decoder) => {
                    let decoded = decoder.decode(rest)?;
                    (decoded.consumed, decoded.data, decoded.done)
                }
            };
            consumed += taken;
            self.received += data.len() as u64;
            if self.received > limits.body_max {
                return Err(ProtoError::new(http::StatusCode::PAYLOAD_TOO_LARGE, "the request body is too large"));
            }
            match &mut self.sink {
                Sink::Buffer { body, .. } => body.push(data, expected),
                Sink::Pipe(pipe) => pipe.push(data),
                Sink::Discard => {}
            }
            if done {
                if let Sink::Pipe(pipe) = &self.sink {
                    pipe.complete(self.trailers());
                }
                return Ok(Fed { consumed, done: true });
            }
            if data.is_empty() || consumed >= input.len() {
                return Ok(Fed { consumed, done: false });
            }
        }
    }
}

impl IncomingBody {
    /// Whether to go on receiving.
    pub(crate) fn wants_input(&mut self) -> bool {
        match &self.sink {
            Sink::Buffer { .. } | Sink::Discard => true,
            Sink::Pipe(pipe) => {
                let room = pipe.has_room();
                self.was_paused |= !room;
                room
            }
        }
    }

    /// When the client's progress is to be looked at next.
    pub(crate) fn next_look(&self, now: Millis, limits: &Limits) -> Millis {
        self.window_end.min(now + millis(limits.body_busy_timeout).max(1))
    }

    /// Looks at the client's progress: whether it has sent enough, or the handler held it up. `short`: others want what it holds.
    pub(crate) fn progresses(&mut self, now: Millis, limits: &Limits, short: bool) -> bool {
        let is_paused = match &self.sink {
            Sink::Buffer { .. } | Sink::Discard => false,
            Sink::Pipe(pipe) => pipe.is_paused(),
        };
        let paused = std::mem::replace(&mut self.was_paused, is_paused) || is_paused;
        let since_look = self.received - std::mem::replace(&mut self.received_at_look, self.received);
        self.was_paused_in_window |= paused;
        if short && !paused && self.is_costly() && since_look < limits.body_busy_progress_min {
            return false;
        }
        if now < self.window_end {
            return true;
        }
        let paused = std::mem::take(&mut self.was_paused_in_window);
        let in_window = self.received - std::mem::replace(&mut self.received_before, self.received);
        self.window_end = now + millis(limits.body_stall_timeout);
        paused || in_window >= limits.body_progress_min
    }

    /// Whether it has a thread, or much memory.
    fn is_costly(&self) -> bool {
        match &self.sink {
            Sink::Buffer { body, .. } => body.bytes.len() > BODY_SMALL || !body.share.is_fair(),
            Sink::Pipe(_) => true,
            Sink::Discard => false,
        }
    }

    /// Nobody wants the rest of the body any more.
    pub(crate) fn discard(&mut self) {
        self.break_off(io::ErrorKind::Other);
        self.sink = Sink::Discard;
    }

    /// Whether the request was one of HEAD, as far as that is known here.
    pub(crate) fn is_head(&self) -> bool {
        matches!(&self.sink, Sink::Buffer { parsed, .. } if parsed.parts.method == http::Method::HEAD)
    }

    /// The rest of the body will never come.
    pub(crate) fn break_off(&self, reason: io::ErrorKind) {
        if let Sink::Pipe(pipe) = &self.sink {
            pipe.end(Ended::Broken(reason));
        }
    }

    /// The body breaks a rule, and is received no further.
    pub(crate) fn refuse(&self, error: ProtoError) {
        if let Sink::Pipe(pipe) = &self.sink {
            pipe.end(Ended::Refused(error));
        }
    }

    /// The trailer fields, once the body is done.
    pub(crate) fn trailers(&self) -> HeaderMap {
        match &self.decoder {
            Decoder::Chunked(decoder) => decoder.trailers().clone(),
            Decoder::Length(_) => HeaderMap::new(),
        }
    }
}

/// What was received of a body whose handler does not run yet.
#[derive(Debug)]
pub(crate) struct Buffered {
    pub(crate) bytes: Vec<u8>,
    pub(crate) share: Share,
}

impl Buffered {
    pub(crate) fn new(memory: &Arc<BodyMemory>) -> Self {
        Self { bytes: Vec::new(), share: Share::of(memory) }
    }

    /// Adds bytes of a body of which `expected` are to be kept here, mostly. What is only announced takes no memory.
    fn push(&mut self, data: &[u8], expected: usize) {
        let needed = self.bytes.len() + data.len();
        let had = self.bytes.capacity();
        if needed > had {
            let wanted = needed.max((2 * had).min(expected));
            self.bytes.reserve_exact(wanted - self.bytes.len());
            self.share.add(self.bytes.capacity() - had);
        }
        self.bytes.extend_from_slice(data);
    }
}

/// A request body between the shard that receives it and the handler that reads it.
#[derive(Debug)]
pub(crate) struct BodyPipe {
    state: Mutex<Pipe>,
    filled: Condvar,
    connection: Arc<Connection>,
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
    pub(crate) fn new(connection: Arc<Connection>, window: usize, continue_due: bool, begun: Buffered) -> Self {
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
        Self { state: Mutex::new(pipe), filled: Condvar::new(), connection, window: window.max(1) }
    }

    fn lock(&self) -> MutexGuard<'_, Pipe> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shard: adds bytes; they are dropped once the answer has begun.
    pub(crate) fn push(&self, data: &[u8]) {
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

    /// Shard: the body is complete.
    fn complete(&self, trailers: HeaderMap) {
        self.lock().trailers = trailers;
        self.end(Ended::Complete);
    }

    /// Handler: the trailer fields; none before the body is complete.
    pub(crate) fn trailers(&self) -> HeaderMap {
        self.lock().trailers.clone()
    }

    /// Shard: the body is over.
    fn end(&self, ended: Ended) {
        let mut pipe = self.lock();
        if pipe.ended.is_none() {
            pipe.ended = Some(ended);
            drop(pipe);
            self.filled.notify_one();
        }
    }

    /// Shard: whether to go on receiving. After a `false` comes a `BodyWanted` message when there is room.
    pub(crate) fn has_room(&self) -> bool {
        let mut pipe = self.lock();
        pipe.paused = pipe.buffered >= self.window && !pipe.answered;
        !pipe.paused
    }

    /// Whether the shard waits for the handler to read.
    pub(crate) fn is_paused(&self) -> bool {
        let pipe = self.lock();
        pipe.paused || pipe.continue_due
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
                    self.connection.post(Message::BodyWanted { token: self.connection.token });
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
                self.connection.send_continue();
                self.connection.post(Message::BodyWanted { token: self.connection.token });
            }
            pipe = sync::wait(&self.filled, &self.state, pipe);
        }
    }
}
