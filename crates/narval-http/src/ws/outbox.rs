//! The sending half of a WebSocket. Any thread sends at once, under the outbox's lock, as much as the socket takes; the
//! connection's shard sends the rest when the socket is writable. On a stream of an HTTP/2 connection only the shard sends: it takes
//! what is queued.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::{Buf, Bytes};

use super::SendStatus;
use super::codec::deflate::Deflater;
use super::codec::frame::{Opcode, ServerHeader};
use super::codec::{CloseCode, Frame, close};
use super::options::Options;
use crate::io::out_buf::OutBuf;
use crate::tls::link::Link;

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

/// The connection that carries a WebSocket, or the stream of one.
pub(crate) trait Carrier: Send + Sync + std::fmt::Debug {
    /// The socket that any thread may send on immediately. `None` if only the shard sends.
    fn link(&self) -> Option<&Link>;

    /// Notifies the shard of a change.
    fn tell(&self);
}

/// The sending half of a WebSocket.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    phase: Phase,
    /// The connection: from when the handshake's response goes out until it is closed.
    carrier: Option<Arc<dyn Carrier>>,
    queue: VecDeque<Bytes>,
    queued_bytes: usize,
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
    /// The compressor of this connection, with context takeover.
    pub(super) deflater: Option<Box<Deflater>>,
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
    pub(super) fn start(&mut self, connection: Arc<dyn Carrier>, head: Bytes) {
        self.queued_bytes += head.len();
        self.queue.push_front(head);
        if let Some(link) = connection.link().filter(|link| link.tls.is_some()) {
            // Frames queued before are sealed after the head, in their order.
            let mut out = OutBuf { memory: self.queue.iter().flatten().copied().collect(), ..OutBuf::default() };
            if link.seal(&mut out).is_err() {
                return self.fail();
            }
            self.queued_bytes = out.memory.len();
            self.queue = VecDeque::from([Bytes::from(out.memory)]);
        }
        self.carrier = Some(connection);
        self.flush();
        // The shard sends the rest when it is told of the upgrade.
    }

    /// Called when the head of the response is sent: from now on the shard [takes](Self::take) what is queued.
    pub(super) fn start_on_stream(&mut self, stream: Arc<dyn Carrier>) {
        self.carrier = Some(stream);
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
        taken
    }

    /// Sends a message.
    pub(super) fn send(&mut self, frame: Encoded, options: &Options) -> SendStatus {
        match self.admit(frame.len(), options) {
            Ok(()) => self.send_admitted(frame, options),
            Err(refused) => refused,
        }
    }

    /// Whether a frame of this length is accepted.
    pub(super) fn admit(&mut self, length: usize, options: &Options) -> Result<(), SendStatus> {
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

    /// Sends a frame that was [admitted](Self::admit).
    pub(super) fn send_admitted(&mut self, frame: Encoded, options: &Options) -> SendStatus {
        self.push(frame);
        if self.broken {
            SendStatus::Closed
        } else if self.queued_bytes > options.send_soft_bytes {
            self.pressed = true;
            SendStatus::Backpressure
        } else {
            SendStatus::Queued
        }
    }

    /// Sends a Ping or Pong, unless the queue is above the soft limit.
    pub(super) fn control(&mut self, frame: Frame, options: &Options) -> SendStatus {
        self.controls(frame.bytes().clone(), options)
    }

    /// The same for several consecutive frames.
    pub(super) fn controls(&mut self, frames: Bytes, options: &Options) -> SendStatus {
        if self.queued_bytes > options.send_soft_bytes {
            return SendStatus::Dropped;
        }
        self.send(Encoded { head: frames, tail: Bytes::new() }, options)
    }

    /// Queues a Close frame after all messages. Returns `false` if there is one already.
    pub(super) fn close(&mut self, frame: Frame) -> bool {
        if self.phase != Phase::Open {
            return false;
        }
        self.push(frame.into());
        self.phase = Phase::Closing;
        self.tell();
        true
    }

    /// Answers the client's Close frame, unless that is an answer to ours, and lets the connection end.
    pub(super) fn answer_close(&mut self, code: Option<CloseCode>) {
        self.close(match code {
            Some(code) => close::encode(code, ""),
            None => Frame::control(Opcode::Close, &[]),
        });
        self.finish();
    }

    /// Lets the connection end when everything is sent.
    pub(super) fn finish(&mut self) {
        self.finishing = true;
        self.tell();
    }

    /// Drops the connection.
    pub(super) fn detach(&mut self) {
        *self = Self { phase: Phase::Closed, ..Self::default() };
    }

    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open && !self.broken
    }

    pub(super) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Shard: returns the state. `writable`: the socket is writable again.
    pub(super) fn look(&mut self, writable: bool, options: &Options) -> State {
        self.told = false;
        if writable {
            self.flush();
        }
        let drained = self.pressed && self.queued_bytes <= options.send_soft_bytes / 2;
        self.pressed &= !drained;
        State {
            blocked: self.queued_bytes > 0,
            broken: self.broken,
            closing: self.phase == Phase::Closing,
            finished: self.finishing && self.queued_bytes == 0,
            drained,
            taken_bytes: self.taken_bytes,
        }
    }

    /// Any thread: notifies the shard.
    pub(super) fn tell(&mut self) {
        if let Some(connection) = &self.carrier
            && !self.told
        {
            self.told = true;
            connection.tell();
        }
    }

    fn push(&mut self, mut frame: Encoded) {
        let carrier = self.carrier.clone();
        let link = carrier.as_ref().and_then(|carrier| carrier.link());
        if let Some(link) = link.filter(|link| link.tls.is_some()) {
            let mut out = OutBuf { memory: frame.head.into(), tail: frame.tail, ..OutBuf::default() };
            if link.seal(&mut out).is_err() {
                return self.fail();
            }
            frame = Encoded { head: out.memory.into(), tail: out.tail };
        }
        if self.queue.is_empty()
            && let Some(link) = link
        {
            let slices = [IoSlice::new(&frame.head), IoSlice::new(&frame.tail)];
            let slices = if frame.tail.is_empty() { slices.get(..1) } else { slices.get(..) };
            match sent(link.socket.send_slices(slices.unwrap_or_default(), false)) {
                Ok(n) => {
                    let of_head = n.min(frame.head.len());
                    frame.head.advance(of_head);
                    frame.tail.advance((n - of_head).min(frame.tail.len()));
                }
                Err(_) => return self.fail(),
            }
            if frame.len() > 0 {
                self.tell();
            }
        }
        self.queued_bytes += frame.len();
        self.queue.extend([frame.head, frame.tail].into_iter().filter(|run| !run.is_empty()));
        if link.is_none() {
            self.tell();
        }
    }

    /// Sends as much of the queue as the socket takes.
    fn flush(&mut self) {
        let Some(carrier) = self.carrier.clone() else { return };
        let Some(link) = carrier.link() else { return };
        while self.queued_bytes > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let runs = slices.iter_mut().zip(&self.queue).map(|(slice, run)| *slice = IoSlice::new(run)).count();
            match sent(link.socket.send_slices(slices.get(..runs).unwrap_or_default(), false)) {
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
                return run.advance(n);
            }
            n -= run.len();
            self.queue.pop_front();
        }
    }

    /// Fails the connection: it is broken, or about to be closed without a Close frame.
    pub(super) fn fail(&mut self) {
        self.broken = true;
        self.queue = VecDeque::new();
        self.queued_bytes = 0;
        self.tell();
    }
}

/// How many bytes a system call sent; zero if the socket is full.
fn sent(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}
