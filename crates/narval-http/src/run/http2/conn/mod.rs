//! An HTTP/2 connection without a socket. Its inputs are bytes, answers, writability and the time; its outputs say what
//! it wants: to read, to write, to have other threads do work, to be called at a deadline, to end.
//!
//! Nothing here knows of shards, drivers or threads. What a connection needs from its server is a
//! [`Service`](crate::run::service::Service). Only the
//! connection writes: pieces of responses from workers return to it, and are sent frame by frame, with the streams
//! taking turns.
//!
//! ```text
//!            received          Work::Request         answered            gather
//!   (none) ───────────→ Memory ────────────→ (worker) ────────→ Body ⇄ Making ───→ (closed)
//!     │  inline answer                                           ↑        Waiting      ↑
//!     └──────────────────────────────────────────────────────────┴────────────────────┘
//! ```

mod body;
mod budget;
mod end;
mod receive;
mod request;
mod send;
mod stream;
mod turns;
mod websocket;

use std::collections::BTreeMap;
use std::io;

use self::budget::Budget;
use self::stream::{Closed, Stream};
use self::turns::Turns;
use crate::http2::flow::{ReceiveWindow, SendWindow};
use crate::http2::frame::{self, ErrorCode};
use crate::http2::hpack::Decoder;
use crate::http2::settings::{self, PeerSettings};
use crate::io::clock::{Millis, millis};
use crate::io::over::Close;
use crate::io::progress::Progress;
use crate::limits::{HTTP2_CONNECTION_WINDOW, HTTP2_QUEUED_MAX, Limits, SEAL_IN_PLACE_QUANTUM};
use crate::message::carrier::Nudge;
use crate::run::event::Event;
use crate::run::mailbox::Note;
use crate::run::service::Service;
use crate::ws::Told;

/// The size of the decoder's table: HPACK's initial one, which we do not change.
const HEADER_TABLE_SIZE: usize = 4096;

/// An HTTP/2 connection.
pub(crate) struct Conn {
    /// Received bytes that are not used yet: part of a frame.
    input: Vec<u8>,
    phase: Phase,
    /// Whether WebSockets were offered.
    websockets: bool,
    /// The rest of a DATA frame whose header was parsed.
    data: Option<DataLeft>,
    /// An incomplete header block.
    block: Option<Block>,
    decoder: Decoder,
    streams: BTreeMap<u32, Box<Stream>>,
    closed: Closed,
    /// The last stream that the client has opened.
    last: u32,
    peer: PeerSettings,
    /// What we may send on all streams.
    window: SendWindow,
    /// What the client may send on all streams.
    receive: ReceiveWindow,
    /// By how much the windows of all streams together exceed the initial ones.
    grown: u32,
    /// Frames that wait to be sent, before all DATA.
    out: Vec<u8>,
    /// How much of `out` was sent.
    out_sent: usize,
    /// Streams with something to send.
    turns: Turns,
    /// Bytes of DATA sent whose window the client has not returned.
    unreturned: u64,
    /// Bytes of bodies in memory that are not sent.
    in_memory: usize,
    resets: Budget,
    idle_frames: Budget,
    going: Going,
    /// The client has ended its input.
    has_ended: bool,
    /// How the connection ends, once all queued bytes are sent.
    end: Option<Close>,
    /// When [`tick`](Self::tick) is to be called.
    deadline: Millis,
    /// Since when there was no request.
    idle_since: Millis,
    /// When the current frame or header block must be complete; 0 if none has started.
    frame_until: Millis,
    /// Bytes gathered so far, and the write deadline's window.
    gathered: u64,
    progress: Progress,
    /// The bytes gathered last wait for the socket.
    is_blocked: bool,
}

/// Progress of the connection preface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Preface,
    Settings,
    Open,
}

/// Progress of a graceful shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Going {
    No,
    /// The client was told to open no more streams; those in flight are accepted until then (RFC 9113 section 6.8).
    Warned {
        until: Millis,
    },
    /// The client was told which stream is the last.
    Told,
}

/// The rest of a DATA frame.
#[derive(Clone, Copy, Debug)]
struct DataLeft {
    stream: u32,
    left: usize,
    padding: usize,
    is_last: bool,
}

/// A header block that continues in CONTINUATION frames.
struct Block {
    stream: u32,
    bytes: Vec<u8>,
    is_last: bool,
    frames: usize,
}

/// An error of the connection: it ends.
struct ConnError(ErrorCode, &'static str);

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wants {
    /// Bytes from the client.
    pub(crate) read: bool,
    /// [`Conn::tick`] at this time.
    pub(crate) deadline: Millis,
    /// The connection ends, once there is nothing to write.
    pub(crate) end: Option<Close>,
}

impl Conn {
    /// A new connection. `websockets`: whether they are offered.
    pub(crate) fn new(now: Millis, websockets: bool, limits: &Limits) -> Self {
        let list_max = limits.head.bytes_max;
        let mut out = Vec::new();
        frame::push_settings(&mut out, &settings::ours(list_max, websockets));
        let initial = PeerSettings::default();
        frame::push_window_update(&mut out, 0, HTTP2_CONNECTION_WINDOW - 65_535);
        let until = now + millis(limits.head_timeout);
        Self {
            input: Vec::new(),
            phase: Phase::Preface,
            websockets,
            data: None,
            block: None,
            decoder: Decoder::new(HEADER_TABLE_SIZE, list_max),
            streams: BTreeMap::new(),
            closed: Closed::default(),
            last: 0,
            peer: initial,
            window: SendWindow::new(initial.initial_window),
            receive: ReceiveWindow::new(HTTP2_CONNECTION_WINDOW),
            grown: 0,
            out,
            out_sent: 0,
            turns: Turns::default(),
            unreturned: 0,
            in_memory: 0,
            resets: Budget::of_resets(),
            idle_frames: Budget::of_idle_frames(),
            going: Going::No,
            has_ended: false,
            end: None,
            deadline: until,
            idle_since: now,
            frame_until: until,
            gathered: 0,
            progress: Progress::new(now, 0),
            is_blocked: false,
        }
    }

    /// Handles what has happened; returns what it waits for now.
    pub(crate) fn on(&mut self, event: Event<'_>, service: &mut Service<'_>) -> Wants {
        match event {
            Event::Received(bytes) => self.received(bytes, service),
            Event::InputEnded(reason) => self.input_ended(reason == io::ErrorKind::ConnectionReset, service),
            Event::Undecodable => {
                self.fail(ErrorCode::InternalError, "the layer below cannot decode the client's input", service);
            }
            Event::Tick => self.tick(service),
            Event::Stop => self.stop(service),
            Event::Noted(stream, note) => self.noted(stream, note, service),
            Event::Refused(stream) => self.refused(stream, service),
            Event::GivenUp => self.leave_idle(),
            Event::Unsent => {
                self.is_blocked = true;
                self.progress = Progress::new(service.now, self.gathered);
                self.look_at(service.now + millis(service.limits().write_stall_timeout));
            }
            Event::Ready => self.is_blocked = false,
            // Those are for whoever writes, and for connections that have one request at a time.
            Event::Writable | Event::Answered(_) | Event::AnsweredAt(_) => {}
        }
        self.wants()
    }

    /// Handles a note on a stream from another thread.
    fn noted(&mut self, stream: u32, note: Note, service: &mut Service<'_>) {
        match note {
            // What it holds is counted by the connection from now on.
            Note::Answer(answer, _held) => self.answer(stream, *answer, service),
            Note::Lost => self.lost(stream, service),
            Note::Inform(block) => self.inform(stream, &block),
            Note::Made(made) => {
                let (made, _held) = *made;
                self.made(stream, made, service);
            }
            Note::Nudge(Nudge::Continue) => self.continue_wanted(stream),
            Note::Nudge(Nudge::BodyRead) => self.credit_if_room(stream, 0),
            Note::Nudge(Nudge::WebSocket) => self.websocket(stream, Told::Look, service),
            Note::Nudge(Nudge::Source) => self.body_ready(stream),
            // Those are for whole connections.
            Note::Finished(_) | Note::Handed(_) | Note::Upgraded(_) | Note::Handshaken(_) => {}
        }
    }

    /// What it waits for now.
    pub(crate) fn wants(&self) -> Wants {
        // Nothing more is received from a client that does not read its responses.
        let is_full = self.out.len() - self.out_sent > HTTP2_QUEUED_MAX;
        Wants { read: !self.has_ended && self.end.is_none() && !is_full, deadline: self.deadline, end: self.end }
    }

    /// Since when there was no request; `None` if there is one.
    pub(crate) fn idle_since(&self) -> Option<Millis> {
        (!self.is_busy()).then_some(self.idle_since)
    }

    /// Whether a response is being produced or sent.
    pub(crate) fn is_busy(&self) -> bool {
        !self.streams.is_empty()
    }

    /// A lower estimate of the bytes that the next [`gather`](Self::gather) yields.
    pub(crate) fn output_hint(&self) -> usize {
        let frames = self.out.len() - self.out_sent;
        if self.has_turns() { frames + SEAL_IN_PLACE_QUANTUM } else { frames }
    }

    /// Whether something is queued, or can be produced.
    pub(crate) fn has_output(&self) -> bool {
        self.out_sent < self.out.len() || self.has_turns() || self.turns.is_hungry_alone()
    }

    fn has_turns(&self) -> bool {
        self.turns.has_ready(!self.window.is_closed())
    }

    /// Schedules [`tick`](Self::tick) no later than `at`.
    fn look_at(&mut self, at: Millis) {
        self.deadline = self.deadline.min(at);
    }

    /// Bytes that it holds for its client, without those of WebSockets.
    pub(crate) fn memory(&self) -> usize {
        self.in_memory + self.out.capacity()
    }

    /// Whether it is to be closed.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) const fn is_ending(&self) -> bool {
        self.end.is_some()
    }

    /// The number of streams that count.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn streams_len(&self) -> usize {
        self.streams.len()
    }

    /// Bytes of bodies that are produced or being produced, and not sent.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn held(&self) -> usize {
        self.turns.held()
    }

    /// What holds for each stream that has not been reset: it is queued if it says so.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn check_turns(&self) {
        let streams = self.streams.iter().filter(|(_, stream)| !stream.is_reset);
        streams.for_each(|(id, stream)| self.turns.check(*id, stream.is_queued));
    }

    /// Bytes of bodies in memory that are not sent.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn in_memory(&self) -> usize {
        self.in_memory
    }

    /// Its state, for the log of a simulation.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn describe(&self) -> String {
        format!(
            "HTTP/2 {:?} {:?}, {} streams, {:?}, {} bytes queued, until {}",
            self.phase,
            self.going,
            self.streams.len(),
            self.turns,
            self.out.len() - self.out_sent,
            self.deadline
        )
    }
}
