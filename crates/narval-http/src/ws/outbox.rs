//! The sending half of a WebSocket. Any thread sends at once as much as the socket takes; the connection's shard sends
//! the rest when the socket is writable. On a stream of an HTTP/2 connection only the shard sends: it takes
//! what is queued.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, MutexGuard};

use bytes::{Buf, Bytes};

use super::codec::deflate::{Deflater, Settings};
use super::codec::frame::{Opcode, ServerHeader};
use super::codec::{CloseCode, Frame, close};
use super::options::Options;
use crate::io::out_buf::OutBuf;
use crate::io::output_memory::{Holding, Share};
use crate::io::sync::Mutex;
use crate::limits::SEAL_QUANTUM;
use crate::message::carrier::{Carrier, Nudge};
use crate::tls::link::HasLink;

/// Whether a message was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the message may not have been sent"]
pub enum SendStatus {
    /// Sent, or queued.
    Queued,
    /// Queued, but the queue is above the soft limit: send less, until [`WsHandler::drained`](super::WsHandler::drained).
    Backpressure,
    /// Not sent: the queue is at the hard limit.
    Dropped,
    /// Not sent: the connection is closed, or being closed.
    Closed,
}

impl SendStatus {
    /// Whether the message was sent or queued.
    pub fn is_accepted(self) -> bool {
        matches!(self, Self::Queued | Self::Backpressure)
    }
}

/// Payloads up to this size are copied after their header, so that a frame is one buffer.
const COPY_PAYLOAD_MAX: usize = 4096;
/// The number of buffers passed to one system call.
const SLICES_MAX: usize = 32;

/// One frame as at most two buffers.
pub(super) struct Encoded {
    head: Bytes,
    tail: Bytes,
}

impl Encoded {
    pub(super) fn data(opcode: Opcode, compressed: bool, payload: Bytes) -> Self {
        if payload.len() <= COPY_PAYLOAD_MAX {
            return Frame::data(opcode, compressed, &payload).into();
        }
        let header = ServerHeader::new(opcode, compressed, payload.len());
        Self { head: Bytes::copy_from_slice(header.as_bytes()), tail: payload }
    }

    fn len(&self) -> usize {
        self.head.len() + self.tail.len()
    }
}

impl From<Frame> for Encoded {
    fn from(frame: Frame) -> Self {
        Self { head: frame.bytes().clone(), tail: Bytes::new() }
    }
}

/// The sending half of a WebSocket.
///
/// Frames are compressed and sealed by one thread at a time, which has the turn, in pieces and without the lock of the
/// state: the shard takes that lock for every event of the connection. It takes the turn only if nobody has it, for its
/// Pongs and Close frames; otherwise whoever has the turn sends these as well.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    turn: Mutex<Turn>,
    /// Taken after the turn, and never held while something is compressed, sealed or copied.
    state: Mutex<Sending>,
}

/// The right to compress and seal.
#[derive(Debug, Default)]
struct Turn {
    /// The compressor of this connection, with context takeover.
    deflater: Option<Box<Deflater>>,
}

#[derive(Debug, Default)]
pub(super) struct Sending {
    phase: Phase,
    /// The connection: from when the handshake's response goes out until it is closed.
    carrier: Option<Carrier>,
    /// Bytes that wait for the connection, or to be sealed.
    plain: VecDeque<Bytes>,
    /// Bytes that wait for the socket, or the stream.
    queue: VecDeque<Bytes>,
    /// Bytes in both.
    pub(super) queued_bytes: usize,
    /// Bytes of the first run of `queue` that were sent: it is freed as a whole.
    sent_of_first: usize,
    /// Bytes the socket, or the stream, has taken from the queue.
    taken_bytes: u64,
    /// The shard was notified, and has not looked yet.
    told: bool,
    /// The last send returned backpressure: report when it is over.
    pressed: bool,
    /// Sending failed.
    broken: bool,
    /// The closing handshake is complete, or we failed the connection: close it when everything is sent.
    finishing: bool,
    held: Share,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Before and after the handshake's response is sent: frames are accepted.
    #[default]
    Open,
    /// A Close frame is queued or sent: no frame may follow it.
    Closing,
    /// The connection is gone.
    Closed,
}

/// The state of the outbox, for the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Bytes are queued for the socket.
    pub(super) blocked: bool,
    pub(super) broken: bool,
    /// A Close frame is queued or sent.
    pub(super) closing: bool,
    /// Everything is sent, and the connection is to be closed.
    pub(super) finished: bool,
    /// Backpressure is over.
    pub(super) drained: bool,
    /// Queued bytes that the socket has taken.
    pub(super) taken_bytes: u64,
}

impl Outbox {
    /// Sends the 101 response, whose head is `head`, and everything queued behind it.
    pub(super) fn start(&self, connection: Carrier, holding: &Arc<Holding>, head: Bytes) {
        let turn = self.turn.lock();
        let mut state = self.state.lock();
        state.queued_bytes += head.len();
        state.plain.push_front(head);
        state.attach(connection, holding);
        // The shard sends the rest when it is told of the upgrade.
        drop(self.end(turn, state));
    }

    /// What is queued, and how far it is.
    pub(super) fn state(&self) -> MutexGuard<'_, Sending> {
        self.state.lock()
    }

    /// Sends a message.
    pub(super) fn send(&self, frame: Encoded, options: &Options) -> SendStatus {
        self.in_turn(options, |state| {
            state.admit(frame.len(), options)?;
            state.push(frame);
            Ok(())
        })
    }

    fn in_turn(&self, options: &Options, queue: impl FnOnce(&mut Sending) -> Result<(), SendStatus>) -> SendStatus {
        let turn = self.turn.lock();
        let mut state = self.state.lock();
        let queued = queue(&mut state);
        let mut state = self.end(turn, state);
        queued.map_or_else(|refused| refused, |()| state.status(options))
    }

    /// Compresses and sends a message that may refer to earlier ones.
    pub(super) fn send_compressed(
        &self,
        opcode: Opcode,
        payload: &[u8],
        settings: Settings,
        options: &Options,
    ) -> SendStatus {
        // Messages must be sent in the order in which they are compressed.
        let mut turn = self.turn.lock();
        // A compressed message must be sent: later messages refer to it.
        let admitted = self.state.lock().admit(payload.len(), options);
        let frame = admitted.map(|()| {
            let deflater = turn.deflater.get_or_insert_with(|| Box::new(Deflater::new(settings)));
            Encoded::data(opcode, true, deflater.message(payload))
        });
        let mut state = self.state.lock();
        let sent = frame.and_then(|frame| {
            if !state.is_open() {
                return Err(SendStatus::Closed);
            }
            state.push(frame);
            Ok(())
        });
        let mut state = self.end(turn, state);
        sent.map_or_else(|refused| refused, |()| state.status(options))
    }

    /// Sends a Ping or Pong, unless the queue is above the soft limit.
    pub(super) fn control(&self, frame: Frame, options: &Options) -> SendStatus {
        self.in_turn(options, |state| state.control(frame.bytes().clone(), options))
    }

    /// Shard: the same for several consecutive frames. If they are skipped, the next one is as good.
    pub(super) fn controls_of_shard(&self, frames: Bytes, options: &Options) {
        let mut state = self.state.lock();
        if state.control(frames, options).is_ok() {
            self.end_of_shard(state);
        }
    }

    /// Queues a Close frame after all messages, unless there is one already.
    pub(super) fn close(&self, frame: Frame) {
        let turn = self.turn.lock();
        let mut state = self.state.lock();
        state.close(frame);
        drop(self.end(turn, state));
    }

    /// Shard: the same.
    pub(super) fn close_by_shard(&self, frame: Frame) {
        let mut state = self.state.lock();
        state.close(frame);
        self.end_of_shard(state);
    }

    /// Answers the client's Close frame, unless that is an answer to ours, and lets the connection end.
    pub(super) fn answer_close(&self, code: Option<CloseCode>) {
        self.close(match code {
            Some(code) => close::encode(code, ""),
            None => Frame::control(Opcode::Close, &[]),
        });
        self.state().finish();
    }

    /// Drops the connection.
    pub(super) fn detach(&self) {
        *self.state.lock() = Sending { phase: Phase::Closed, ..Sending::default() };
        // Whoever has the turn drops the compressor.
        if let Some(mut turn) = self.turn.try_lock() {
            turn.deflater = None;
        }
    }

    /// Shard: seals what it has queued, unless somebody has the turn and will do that.
    fn end_of_shard<'a>(&'a self, state: MutexGuard<'a, Sending>) {
        if let Some(turn) = self.turn.try_lock() {
            drop(self.end(turn, state));
        }
    }

    /// Seals and sends everything that is queued, piece by piece, and ends the turn.
    fn end<'a>(
        &'a self,
        mut turn: MutexGuard<'a, Turn>,
        mut state: MutexGuard<'a, Sending>,
    ) -> MutexGuard<'a, Sending> {
        while let Some(piece) = state.next_piece() {
            let connection = state.link().cloned();
            drop(state);
            let length = piece.len();
            let mut out = OutBuf { memory: piece, ..OutBuf::default() };
            let sealed = connection.map_or(Ok(()), |connection| connection.link().seal(&mut out));
            state = self.state.lock();
            match sealed {
                Ok(()) => state.hand_on(Encoded { head: out.memory.into(), tail: Bytes::new() }, length),
                Err(_) => state.fail(),
            }
        }
        if state.phase == Phase::Closed {
            turn.deflater = None;
        }
        if state.finishing {
            state.tell();
        }
        // With the state locked: what is queued later finds the turn free.
        drop(turn);
        state
    }
}

impl Sending {
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open && !self.broken
    }

    /// Shard: bytes that it can [take](Self::take).
    pub(super) fn ready(&self) -> usize {
        if self.plain.is_empty() { self.queued_bytes } else { 0 }
    }

    /// Lets the connection end when everything is sent.
    pub(super) fn finish(&mut self) {
        self.finishing = true;
        self.tell();
    }

    /// The connection, if any thread may send on it. On a stream, only the shard does.
    fn link(&self) -> Option<&Arc<dyn HasLink>> {
        self.carrier.as_ref()?.link.as_ref()
    }

    /// The head of the response is being sent. On a stream, the shard [takes](Self::take) what is queued from now on.
    pub(super) fn attach(&mut self, carrier: Carrier, holding: &Arc<Holding>) {
        if self.phase == Phase::Closed {
            return;
        }
        self.held.attach(holding);
        let is_sealed = carrier.link.as_ref().is_some_and(|connection| connection.link().tls.is_some());
        self.carrier = Some(carrier);
        if !is_sealed {
            self.queue = std::mem::take(&mut self.plain);
            self.flush();
        }
        self.count();
    }

    /// Whether a frame of this length is accepted.
    fn admit(&mut self, length: usize, options: &Options) -> Result<(), SendStatus> {
        if !self.is_open() {
            return Err(SendStatus::Closed);
        }
        // A message larger than the limit is allowed into an empty queue: otherwise it could never be sent.
        if self.queued_bytes > 0 && self.queued_bytes + length > options.send_hard_bytes {
            self.pressed = true;
            return Err(SendStatus::Dropped);
        }
        Ok(())
    }

    fn control(&mut self, frames: Bytes, options: &Options) -> Result<(), SendStatus> {
        if self.queued_bytes > options.send_soft_bytes {
            return Err(SendStatus::Dropped);
        }
        self.admit(frames.len(), options)?;
        self.push(Encoded { head: frames, tail: Bytes::new() });
        Ok(())
    }

    fn close(&mut self, frame: Frame) {
        if self.phase == Phase::Open {
            self.push(frame.into());
            self.phase = Phase::Closing;
            self.tell();
        }
    }

    /// The result of a send.
    fn status(&mut self, options: &Options) -> SendStatus {
        if self.broken {
            SendStatus::Closed
        } else if self.queued_bytes > options.send_soft_bytes {
            self.pressed = true;
            SendStatus::Backpressure
        } else {
            SendStatus::Queued
        }
    }

    /// Shard: returns the state. `writable`: the socket is writable again.
    pub(super) fn look(&mut self, writable: bool, options: &Options) -> State {
        self.told = false;
        if writable {
            self.flush();
            self.count();
        }
        let drained = self.pressed && self.queued_bytes <= options.send_soft_bytes / 2;
        self.pressed &= !drained;
        State {
            // What is to be sealed does not wait for the socket.
            blocked: !self.queue.is_empty(),
            broken: self.broken,
            closing: self.phase == Phase::Closing,
            finished: self.finishing && self.queued_bytes == 0,
            drained,
            taken_bytes: self.taken_bytes,
        }
    }

    /// Any thread: notifies the shard.
    pub(super) fn tell(&mut self) {
        if let Some(carrier) = &self.carrier
            && !self.told
        {
            self.told = true;
            carrier.address.nudge(Nudge::WebSocket);
        }
    }

    /// Queues a frame.
    fn push(&mut self, frame: Encoded) {
        let length = frame.len();
        self.queued_bytes += length;
        match &self.carrier {
            Some(_) if self.link().is_none_or(|connection| connection.link().tls.is_none()) => {
                self.hand_on(frame, length)
            }
            _ => {
                self.plain.extend([frame.head, frame.tail].into_iter().filter(|run| !run.is_empty()));
                self.count();
            }
        }
    }

    /// The next bytes to be sealed.
    fn next_piece(&mut self) -> Option<Vec<u8>> {
        if self.carrier.is_none() || self.plain.is_empty() {
            return None;
        }
        let mut piece = Vec::new();
        while piece.len() < SEAL_QUANTUM
            && let Some(run) = self.plain.front_mut()
        {
            let taken = run.split_to(run.len().min(SEAL_QUANTUM - piece.len()));
            piece.extend_from_slice(&taken);
            if run.is_empty() {
                self.plain.pop_front();
            }
        }
        if self.plain.is_empty() {
            // An idle connection holds no buffer.
            self.plain = VecDeque::new();
        }
        Some(piece)
    }

    /// Sends bytes on the connection as much as it takes, and queues the rest. They counted as `length` queued bytes.
    fn hand_on(&mut self, mut frame: Encoded, length: usize) {
        if self.broken || self.phase == Phase::Closed {
            return;
        }
        let connection = self.link().cloned();
        if self.queue.is_empty()
            && let Some(connection) = &connection
        {
            let slices = [IoSlice::new(&frame.head), IoSlice::new(&frame.tail)];
            let slices = if frame.tail.is_empty() { slices.get(..1) } else { slices.get(..) };
            match sent(connection.link().socket.send_slices(slices.unwrap_or_default(), false)) {
                Ok(n) => {
                    let of_head = n.min(frame.head.len());
                    frame.head.advance(of_head);
                    frame.tail.advance((n - of_head).min(frame.tail.len()));
                    self.sent_of_first = n - of_head;
                }
                Err(_) => return self.fail(),
            }
        }
        self.queued_bytes = (self.queued_bytes + frame.len()).saturating_sub(length);
        if frame.len() > 0 || connection.is_none() {
            self.tell();
        }
        self.queue.extend([frame.head, frame.tail].into_iter().filter(|run| !run.is_empty()));
        self.count();
    }

    /// Shard: takes queued bytes to send them on a stream; returns how many.
    pub(super) fn take(&mut self, into: &mut [u8]) -> usize {
        let mut rest = into;
        let mut taken = 0;
        for run in &self.queue {
            let n = run.len().min(rest.len());
            let (place, behind) = rest.split_at_mut(n);
            place.copy_from_slice(run.get(..n).unwrap_or_default());
            taken += n;
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        self.advance(taken);
        if self.queue.is_empty() {
            // An idle connection holds no buffer.
            self.queue = VecDeque::new();
        }
        self.count();
        taken
    }

    /// Sends as much of the queue as the socket takes.
    fn flush(&mut self) {
        let Some(connection) = self.link().cloned() else { return };
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let runs = slices.iter_mut().zip(&self.queue).map(|(slice, run)| *slice = IoSlice::new(run)).count();
            match sent(connection.link().socket.send_slices(slices.get(..runs).unwrap_or_default(), false)) {
                Ok(0) => return,
                Ok(n) => self.advance(n),
                Err(_) => return self.fail(),
            }
        }
        // An idle connection holds no buffer.
        self.queue = VecDeque::new();
    }

    fn advance(&mut self, mut n: usize) {
        self.queued_bytes = self.queued_bytes.saturating_sub(n);
        self.taken_bytes += n as u64;
        while let Some(run) = self.queue.front_mut() {
            if n < run.len() {
                self.sent_of_first += n;
                return run.advance(n);
            }
            n -= run.len();
            self.sent_of_first = 0;
            self.queue.pop_front();
        }
    }

    /// Fails the connection: it is broken, or about to be closed without a Close frame.
    pub(super) fn fail(&mut self) {
        self.broken = true;
        (self.plain, self.queue) = Default::default();
        self.queued_bytes = 0;
        self.count();
        self.tell();
    }

    /// Counts what is queued as held by the connection.
    fn count(&mut self) {
        let first = if self.queue.is_empty() { 0 } else { self.sent_of_first };
        self.held.set(self.queued_bytes + first);
    }
}

/// How many bytes a system call sent; zero if the socket is full.
fn sent(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}
