//! A shard's state of a WebSocket: the decoder and its times.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::codec::decoder::{Decoder, Incoming};
use super::codec::frame::{Opcode, ServerHeader};
use super::codec::{CloseCode, Frame, close};
use super::error::WsError;
use super::inbox::Pending;
use super::socket::Shared;
use crate::io::clock::Millis;
use crate::io::output_memory::{Holding, Share};
use crate::io::over::Close;
use crate::message::carrier::Carrier;

/// A WebSocket as its shard sees it. The shard passes in bytes, writability and the time; the stream returns with
/// [`Wants`] what it waits for.
#[derive(Debug)]
pub(crate) struct Stream {
    shared: Arc<Shared>,
    decoder: Decoder,
    /// What the decoder holds of a message.
    held: Share,
    /// When the last bytes were received.
    heard_at: Millis,
    /// A Ping was sent since.
    pinged: bool,
    /// Since when the client has read nothing of the queued data, and how much it had read by then.
    stalled: Option<(Millis, u64)>,
    /// When the closing handshake must be complete.
    close_by: Option<Millis>,
    /// The client has ended its input.
    input_ended: bool,
}

/// What a [`Stream`] is told.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told<'a> {
    /// Bytes came from the client.
    Received(&'a [u8]),
    /// The client has ended its input, or the connection broke.
    Ended,
    /// The server stops.
    Stop,
    /// The socket is writable again.
    Writable,
    /// Something else may have changed: the time, what is queued, what the handler has read.
    Look,
}

/// What a [`Stream`] waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wants {
    /// Bytes from the client.
    pub(crate) read: bool,
    /// The socket becoming writable.
    pub(crate) writable: bool,
    /// The latest time of the next call.
    pub(crate) deadline: Millis,
    /// The connection must be closed.
    pub(crate) end: Option<Close>,
    /// The client sends nothing more. Otherwise, closing the connection with unread input would lose our Close frame to a reset.
    pub(crate) is_read: bool,
}

/// Threads that run the handlers of WebSockets.
pub(crate) trait Runs {
    /// Has a thread handle the events of a socket.
    fn run(&self, socket: Arc<Shared>);
}

/// How many Pings are answered by one system call.
const PINGS_AT_ONCE: usize = 1024;

/// The longest time between two checks of an idle stream.
const LOOK_MAX: Millis = 3_600_000;

impl Stream {
    pub(crate) fn new(shared: Arc<Shared>, now: Millis) -> Self {
        let decoder = Decoder::new(shared.options.limits, shared.deflate.is_some());
        let held = shared.share();
        Self { shared, decoder, held, heard_at: now, pinged: false, stalled: None, close_by: None, input_ended: false }
    }

    /// The number of queued bytes, for a stream of an HTTP/2 connection, whose shard sends them.
    pub(crate) fn ready(&self) -> usize {
        self.shared.out.state().ready()
    }

    /// Takes some of these bytes, and returns how many.
    pub(crate) fn take(&mut self, into: &mut [u8]) -> usize {
        self.shared.out.state().take(into)
    }

    /// Handles what has happened, and checks everything that may have changed.
    pub(crate) fn on(&mut self, told: Told<'_>, now: Millis, pool: &impl Runs) -> Wants {
        match told {
            Told::Received(bytes) => self.receive(bytes, now, pool),
            Told::Ended => {
                self.input_ended = true;
                self.push(Pending::Lost(WsError::Lost), pool);
            }
            Told::Stop => self.shared.out.close_by_shard(close::encode(CloseCode::GOING_AWAY, "")),
            Told::Writable | Told::Look => {}
        }
        self.look(matches!(told, Told::Writable), now, pool)
    }

    fn receive(&mut self, mut bytes: &[u8], now: Millis, pool: &impl Runs) {
        self.heard_at = now;
        self.pinged = false;
        let mut pings = Vec::new();
        loop {
            let event = match self.decoder.next(&mut bytes) {
                Ok(Some(Incoming::Ping(payload))) => {
                    pings.push(payload);
                    if pings.len() >= PINGS_AT_ONCE {
                        self.answer(&mut pings, pool);
                    }
                    continue;
                }
                Ok(Some(Incoming::Message(message))) => Pending::Message(message),
                Ok(Some(Incoming::Compressed(message))) => Pending::Compressed(message),
                Ok(Some(Incoming::Pong(payload))) => Pending::Pong(payload),
                Ok(Some(Incoming::Close(frame))) => Pending::Closed(frame),
                Ok(None) => {
                    self.held.set(self.decoder.buffered());
                    return self.answer(&mut pings, pool);
                }
                Err(error) => Pending::Failed(error),
            };
            self.answer(&mut pings, pool);
            self.push(event, pool);
        }
    }

    /// Answers consecutive Pings with one system call. One call per Ping would cost the server more than the client.
    fn answer(&mut self, pings: &mut Vec<Bytes>, pool: &impl Runs) {
        if pings.is_empty() {
            return;
        }
        if self.shared.options.auto_pong {
            let mut pongs = Vec::new();
            for payload in pings.iter() {
                pongs.extend_from_slice(ServerHeader::new(Opcode::Pong, false, payload.len()).as_bytes());
                pongs.extend_from_slice(payload);
            }
            // Skipped if much is queued: only the latest Ping needs an answer (RFC 6455 section 5.5.3).
            self.shared.out.controls_of_shard(pongs.into(), &self.shared.options);
        }
        for payload in pings.drain(..) {
            self.push(Pending::Ping(payload), pool);
        }
    }

    /// `writable`: the socket is writable again.
    fn look(&mut self, writable: bool, now: Millis, pool: &impl Runs) -> Wants {
        let options = self.shared.options;
        let state = self.shared.out.state().look(writable, &options);
        if state.drained {
            self.push(Pending::Drained, pool);
        }
        self.stalled = match self.stalled {
            _ if !state.blocked => None,
            Some((since, taken)) if state.taken_bytes == taken => Some((since, taken)),
            _ => Some((now, state.taken_bytes)),
        };
        if state.closing {
            self.close_by.get_or_insert(now + millis(options.close_timeout));
        }
        let (paused, ended) = {
            let inbox = self.shared.inbox.lock();
            (inbox.is_paused(), inbox.has_ended())
        };
        let end = if state.broken {
            self.push(Pending::Lost(WsError::Lost), pool);
            Some(Close::Abort)
        } else if state.finished {
            Some(Close::Clean { large: false })
        } else if self.input_ended && !self.decoder.has_ended() {
            // There was no Close frame, and none can be answered.
            Some(Close::Abort)
        } else {
            self.expire(paused, ended, now, pool)
        };
        Wants {
            read: !self.input_ended && !paused,
            writable: state.blocked,
            deadline: self.deadline(paused, now),
            end,
            is_read: self.input_ended || self.decoder.is_closed(),
        }
    }

    /// The connection is about to be closed because it holds too much: drops what its handler has not got yet.
    pub(crate) fn discard(&self, pool: &impl Runs) {
        self.shared.inbox.lock().discard();
        self.push(Pending::Lost(WsError::TooSlow), pool);
    }

    /// Drops the connection, which is gone or about to be closed.
    pub(crate) fn release(self, pool: &impl Runs) {
        self.push(Pending::Lost(WsError::Lost), pool);
        self.shared.out.detach();
    }

    fn push(&self, event: Pending, pool: &impl Runs) {
        if self.shared.inbox.lock().push(event, self.shared.options.receive_queue_bytes) {
            pool.run(self.shared.clone());
        }
    }

    /// Closes the connection, or sends a Ping, when it is time.
    fn expire(&mut self, paused: bool, ended: bool, now: Millis, pool: &impl Runs) -> Option<Close> {
        let options = self.shared.options;
        let too_late = if self.close_by.is_some_and(|by| by <= now) {
            Some(WsError::CloseTimeout)
        } else if self.stalled.is_some_and(|(since, _)| since + millis(options.write_timeout) <= now) {
            Some(WsError::WriteTimeout)
        } else if let Some(interval) = options.ping_interval.map(millis) {
            if paused || ended {
                // Nothing is received that could answer a Ping.
                self.heard_at = now;
                None
            } else if self.pinged && self.heard_at + 2 * interval <= now {
                Some(WsError::PingTimeout)
            } else {
                if !self.pinged && self.heard_at + interval <= now {
                    // If it cannot be sent, the deadline of the queue decides.
                    let ping = Frame::control(Opcode::Ping, &[]).bytes().clone();
                    self.shared.out.controls_of_shard(ping, &options);
                    self.pinged = true;
                }
                None
            }
        } else {
            None
        };
        too_late.map(|error| {
            self.push(Pending::Lost(error), pool);
            Close::Abort
        })
    }

    fn deadline(&self, paused: bool, now: Millis) -> Millis {
        let options = &self.shared.options;
        let stalled = self.stalled.map(|(since, _)| since + millis(options.write_timeout));
        let ping = options
            .ping_interval
            .filter(|_| !paused)
            .map(|interval| self.heard_at + millis(interval) * if self.pinged { 2 } else { 1 });
        [self.close_by, stalled, ping].into_iter().flatten().min().unwrap_or(now + LOOK_MAX)
    }
}

/// A connection whose worker sends the 101 response with this head, or a stream whose head goes out before what is queued,
/// becomes a WebSocket.
pub(crate) fn start(
    shared: &Arc<Shared>,
    carrier: Carrier,
    holding: &Arc<Holding>,
    head: Option<Bytes>,
    pool: &impl Runs,
) {
    shared.inbox.lock().attach(holding);
    let needs_worker = shared.inbox.lock().push(Pending::Open, shared.options.receive_queue_bytes);
    match head {
        Some(head) => shared.out.start(carrier, holding, head),
        None => shared.out.state().attach(carrier, holding),
    }
    if needs_worker {
        pool.run(shared.clone());
    }
}

fn millis(duration: Duration) -> Millis {
    u64::try_from(duration.as_millis()).unwrap_or(LOOK_MAX)
}
