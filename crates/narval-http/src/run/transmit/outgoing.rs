use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use super::{Probes, Rest};
use crate::http1::chunked::{CHUNK_END, encode_end, encode_size};
use crate::io::clock::Millis;
use crate::io::out_buf::OutBuf;
use crate::io::output_memory::{Holding, Share};
use crate::io::over::Next;
use crate::io::progress::Progress;
use crate::io::socket::Socket;
use crate::limits::{
    CORK_MIN, SEAL_IN_PLACE_QUANTUM, SEAL_QUANTUM, SENDFILE_QUANTUM, SENDFILE_QUANTUM_NEAR, SHARD_FILE_MAX,
};
use crate::message::body::feed::Feed;
use crate::message::body::source::{BodyWaker, Fill, SegmentBuf};
use crate::message::departure::Here;
use crate::message::panic_guard::Kept;
use crate::observe::access_log::Watch;
use crate::run::answer_context::PendingLate;
use crate::tls::TlsChannel;
use crate::tls::layout::{Gather, Layout};
use crate::tls::link::Link;

/// A response being sent: encoded bytes that the socket has not taken yet, and the source of the rest.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    /// The head, or the framing of a chunk.
    lead: OutBuf,
    /// Bytes to send before everything else: the rest of a partial send, and sealed pieces.
    wire: OutBuf,
    /// One piece of the body.
    segments: SegmentBuf,
    memory_sent: usize,
    files_sent: usize,
    /// What produces the rest of the body.
    feed: Option<Feed>,
    /// The body is sent in chunks.
    is_chunked: bool,
    /// Bytes that the socket has taken, or that are in `wire`.
    made: u64,
    /// The engine's counters already include it.
    pub(crate) is_recorded: bool,
    /// Whether the connection is kept after it.
    pub(crate) keep_alive: bool,
    /// The status code.
    pub(crate) status: u16,
    /// What to record at its end.
    pub(crate) watch: Option<Box<Watch>>,
    /// What is kept until its end.
    pub(crate) kept: Option<Kept>,
    /// Its client waits for it; kept until its end.
    pub(crate) here: Option<Here>,
    /// What it holds in memory, between two calls of [`drive`](Self::drive).
    pub(crate) held: Share,
    /// The answer that follows later, to the request behind those that it answers.
    pub(crate) late: Option<Box<PendingLate>>,
    /// Something of it was sent, or may have been.
    has_begun: bool,
    /// The current window of the write deadline, while it waits for the socket.
    progress: Option<Progress>,
    /// When its shard looks at it again, while it waits.
    pub(crate) until: Millis,
    /// Everything available is sent, and the source has no data now.
    is_waiting: bool,
    /// How files are sent, once determined.
    pace: Option<Pace>,
}

/// How the files of a large response are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// In full packets: a partial packet waits for more data.
    Corked,
    /// In small pieces, each sent completely: the client runs on this processor, so nothing arrives from it meanwhile,
    /// and it starts earlier.
    Near,
}

impl Outgoing {
    /// The contents of `out`, then `rest`.
    pub(crate) fn new(out: OutBuf, rest: Rest) -> Self {
        let mut outgoing = Self { lead: out, ..Self::default() };
        match rest {
            Rest::None => {}
            Rest::File(range) => outgoing.segments.push_file(range),
            Rest::Feed { feed, is_chunked } => (outgoing.feed, outgoing.is_chunked) = (Some(feed), is_chunked),
        }
        outgoing
    }

    /// The part of `length` bytes (sealed if TLS is used) that the socket did not take.
    pub(crate) fn sealed(out: OutBuf, length: u64) -> Self {
        Self { has_begun: true, wire: out, made: length, ..Self::default() }
    }

    /// Whether its client has left.
    pub(crate) fn is_for_nobody(&self) -> bool {
        self.here.as_ref().is_some_and(|here| here.departure().is_gone())
    }

    /// The buffers of a response that is sent, for reuse: one for heads, one for sealed records.
    pub(crate) fn into_buffers(mut self) -> (OutBuf, Vec<u8>) {
        self.lead.clear();
        (self.lead, self.wire.memory)
    }

    /// Counts what it holds in memory as held by its connection.
    pub(crate) fn count_held(&mut self, holding: &Arc<Holding>) {
        if !self.held.is_attached() {
            self.held.attach(holding);
        }
        holding.fit(&mut self.wire.memory);
        let tail = self.lead.tail.len() + self.wire.tail.len();
        let bytes = tail
            + [&self.lead.memory, &self.wire.memory, &self.segments.memory].map(Vec::capacity).iter().sum::<usize>();
        // A tail is freed as a whole.
        self.held.set(if tail == 0 { bytes } else { bytes.max(self.held.bytes()) });
    }

    /// Lends it a buffer for sealed records if it has none; its contents are discarded.
    pub(crate) fn lend(&mut self, buffer: &mut Vec<u8>) {
        if self.wire.memory.capacity() == 0 {
            self.wire.sent = buffer.len();
            self.wire.memory = std::mem::take(buffer);
        }
    }

    /// Registers `waker` for when the source has more data; returns the longest wait. No buffer is held meanwhile.
    pub(crate) fn wait(&mut self, waker: BodyWaker) -> Duration {
        (self.lead, self.wire, self.segments) = Default::default();
        (self.memory_sent, self.files_sent) = (0, 0);
        self.held.set(0);
        self.progress = None;
        self.feed.as_mut().map_or(Duration::ZERO, |feed| feed.wait(waker))
    }

    /// Whether the rest is in memory and only needs to be sent, so it cannot block.
    pub(crate) fn is_quick(&self, connection: &Link) -> bool {
        let never_blocks = self.feed.as_ref().is_none_or(Feed::never_blocks);
        let is_in_memory = never_blocks && self.files_sent >= self.segments.files.len();
        is_in_memory && (connection.tls.is_none() || (self.lead.is_empty() && self.segments_sent()))
    }

    /// How much of a response (memory and at most one file) the shard may send itself. `None` if that may block.
    pub(crate) fn at_hand(&self, connection: &Link, probes: &mut Probes, now: Millis) -> Option<u64> {
        let is_one_file = self.feed.is_none() && self.segments.files.len() == 1;
        is_one_file.then(|| self.next_at_hand(connection, SHARD_FILE_MAX, probes, now)).flatten()
    }

    /// How many of the next bytes can be sent without blocking: at most `window` bytes of a file, if they seem to be in
    /// the page cache, and the memory around it. `None` if the first byte may block.
    pub(crate) fn next_at_hand(&self, connection: &Link, window: u64, probes: &mut Probes, now: Millis) -> Option<u64> {
        let (_, range) = self.segments.files.get(self.files_sent).filter(|_| connection.tls.is_none())?;
        let next = range.length.min(window);
        let is_cached = connection.socket.is_simulated() || probes.seems_cached(now, &range.file, range.offset, next);
        let memory = self.lead.len() + self.segments.memory.len().saturating_sub(self.memory_sent);
        is_cached.then(|| next + memory as u64)
    }

    /// Produces and sends until everything is sent, the socket is full, the source has produced nothing, or `budget` bytes
    /// were sent. Returns what the next piece waits for; `None` if everything is sent.
    ///
    /// # Errors
    /// The response cannot be completed (the connection broke, a file ended early, a source failed or produced
    /// another length): abort the connection.
    pub(crate) fn drive(&mut self, connection: &Link, holding: &Arc<Holding>, budget: u64) -> io::Result<Option<Next>> {
        let step = self.drive_on(connection, holding, budget);
        if let Some(kept) = &self.kept {
            kept.has_sent(self.sent());
        }
        step
    }

    fn drive_on(&mut self, connection: &Link, holding: &Arc<Holding>, budget: u64) -> io::Result<Option<Next>> {
        let stop_at = self.sent().saturating_add(budget);
        self.is_waiting = false;
        let mut waits = false;
        loop {
            let mut is_more = false;
            // The head and the first piece of the body are sent together.
            if self.segments_sent() && self.feed.is_some() {
                let fill = self.fill()?;
                (waits, is_more) = (fill == Fill::Wait, fill == Fill::More);
            }
            if is_more && self.segments_sent() && self.wire.is_empty() {
                // It works for bytes that come later: whoever waits for this thread has its turn, and the client may
                // leave meanwhile. The head is sent with the first bytes, or when there is none for a while.
                return Ok(Some(Next::AtOnce));
            }
            if !self.send_pieces(connection, holding, stop_at)? {
                return Ok(Some(Next::AtRoom));
            }
            if self.feed.is_none() && self.is_empty() {
                self.uncork(connection);
                return Ok(None);
            }
            if waits && self.is_empty() {
                self.uncork(connection);
                self.is_waiting = true;
                return Ok(Some(Next::AtSource));
            }
            if self.sent() >= stop_at {
                return Ok(Some(Next::AtOnce));
            }
        }
    }

    /// Produces the next piece of the body, with its framing: a size before it, and an end after the last.
    fn fill(&mut self) -> io::Result<Fill> {
        self.segments.memory.clear();
        self.segments.files.clear();
        (self.memory_sent, self.files_sent) = (0, 0);
        let Some(feed) = &mut self.feed else { return Ok(Fill::Done) };
        let fill = feed.fill(&mut self.segments)?;
        let bytes = self.segments.bytes();
        if self.is_chunked && bytes > 0 {
            encode_size(bytes, &mut self.lead.memory);
            self.segments.memory.extend_from_slice(CHUNK_END);
        }
        if fill == Fill::Done {
            if self.is_chunked {
                encode_end(&feed.trailers(), &mut self.segments.memory);
            }
            self.feed = None;
        }
        Ok(fill)
    }

    /// Called when nothing follows for now, except the connection's end.
    fn uncork(&mut self, connection: &Link) {
        if self.pace.take() == Some(Pace::Corked) && self.keep_alive {
            connection.socket.cork(false);
        }
    }

    fn segments_sent(&self) -> bool {
        self.memory_sent >= self.segments.memory.len() && self.files_sent >= self.segments.files.len()
    }

    fn is_empty(&self) -> bool {
        self.wire.is_empty() && self.lead.is_empty() && self.segments_sent()
    }

    /// Sends what is available. Returns `false` if the socket is full.
    fn send_pieces(&mut self, connection: &Link, holding: &Arc<Holding>, stop_at: u64) -> io::Result<bool> {
        let socket = &connection.socket;
        if !std::mem::replace(&mut self.has_begun, true) {
            connection.begin();
        }
        while !self.is_empty() && self.sent() < stop_at {
            let at_file = self.memory_left().is_empty() && self.lead.is_empty();
            let result = match &connection.tls {
                _ if !self.wire.is_empty() => self.send_wire(socket),
                Some(tls) if tls.is_kernels() => self.send_by_kernel(connection, tls, at_file, stop_at - self.sent()),
                Some(tls) if at_file && tls.offload(socket, self.file_left()) => Ok(()),
                Some(tls) => self.seal_piece(&connection.socket, holding, tls),
                None if at_file => self.send_file(connection, stop_at - self.sent()),
                None => self.send_memory(socket),
            };
            match result {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The memory before the next file.
    fn memory_left(&self) -> &[u8] {
        let end = self.segments.files.get(self.files_sent).map_or(self.segments.memory.len(), |(at, _)| *at);
        self.segments.memory.get(self.memory_sent..end).unwrap_or_default()
    }

    /// Bytes left of the current file.
    fn file_left(&self) -> u64 {
        self.segments.files.get(self.files_sent).map_or(0, |(_, range)| range.length)
    }

    /// Sent bytes stay in the buffer; the next piece overwrites them.
    fn send_wire(&mut self, socket: &Socket) -> io::Result<()> {
        socket.send_buf(&mut self.wire)?;
        Ok(())
    }

    /// Seals the next records, up to one quantum.
    fn seal_piece(&mut self, socket: &Socket, holding: &Arc<Holding>, tls: &TlsChannel) -> io::Result<()> {
        let left = self.left();
        let mut wire = std::mem::take(&mut self.wire);
        if tls.seals_in_place(left) {
            let quantum = holding.at_once(SEAL_IN_PLACE_QUANTUM);
            let expected = quantum.min(usize::try_from(left).unwrap_or(usize::MAX));
            let mut layout = Layout::new(&mut wire.memory, expected);
            self.gather(&mut layout, quantum)?;
            layout.finish();
            tls.seal_in_place(socket, &mut wire.memory)?;
            wire.sent = 0;
        } else {
            wire.clear();
            self.gather(&mut wire.memory, holding.at_once(SEAL_QUANTUM))?;
            tls.seal(socket, &mut wire)?;
        }
        self.wire = wire;
        Ok(())
    }

    /// Unsent bytes of the lead and of this piece of the body.
    fn left(&self) -> u64 {
        let files = self.segments.files.get(self.files_sent..).unwrap_or_default();
        let files = files.iter().fold(0u64, |sum, (_, range)| sum.saturating_add(range.length));
        let memory = self.lead.len() + self.segments.memory.len().saturating_sub(self.memory_sent);
        files.saturating_add(memory as u64)
    }

    /// Takes up to `quantum` bytes of the lead and of this piece of the body, which then count as sent.
    fn gather(&mut self, into: &mut impl Gather, quantum: usize) -> io::Result<()> {
        while into.gathered() < quantum && !(self.lead.is_empty() && self.segments_sent()) {
            let room = quantum - into.gathered();
            if !self.lead.is_empty() {
                let from = if self.lead.rest().is_empty() { &self.lead.tail } else { self.lead.rest() };
                let taken = from.get(..room.min(from.len())).unwrap_or_default();
                into.push(taken);
                let taken = taken.len();
                self.lead.advance(taken);
                if self.lead.is_empty() {
                    self.lead.clear();
                }
            } else if !self.memory_left().is_empty() {
                let from = self.memory_left();
                let taken = from.get(..room.min(from.len())).unwrap_or_default();
                into.push(taken);
                self.memory_sent += taken.len();
            } else {
                self.read_file(room, into)?;
            }
        }
        self.made += into.gathered() as u64;
        Ok(())
    }

    /// Takes up to `room` bytes of the current file.
    fn read_file(&mut self, room: usize, into: &mut impl Gather) -> io::Result<()> {
        let Some((_, range)) = self.segments.files.get(self.files_sent) else { return Ok(()) };
        let most = room.min(usize::try_from(range.length).unwrap_or(usize::MAX));
        let place: &mut [u8] = if most > 0 { into.room(most) } else { &mut [] };
        range.file.read_exact_at(place, range.offset)?;
        let read = place.len() as u64;
        self.file_is_sent(read);
        Ok(())
    }

    /// For kernel TLS: each call makes at least one record, however short, and a key may only be used for a limited
    /// number of records.
    fn send_by_kernel(&mut self, connection: &Link, tls: &TlsChannel, at_file: bool, room: u64) -> io::Result<()> {
        let made = self.made;
        let most =
            if at_file { self.file_left().min(room) } else { (self.lead.len() + self.memory_left().len()) as u64 };
        tls.will_send(&connection.socket, most)?;
        if at_file {
            self.send_file(connection, room)?;
        } else {
            self.send_memory(&connection.socket)?;
        }
        tls.has_sent(self.made - made);
        Ok(())
    }

    fn send_memory(&mut self, socket: &Socket) -> io::Result<()> {
        let file_follows = self.files_sent < self.segments.files.len();
        let body = self.memory_left();
        let sent = match (self.lead.rest(), &self.lead.tail) {
            ([], tail) if tail.is_empty() => socket.send(body, file_follows)?,
            (rest, tail) if tail.is_empty() && body.is_empty() => socket.send(rest, file_follows)?,
            (rest, tail) => {
                socket.send_slices(&[IoSlice::new(rest), IoSlice::new(tail), IoSlice::new(body)], file_follows)?
            }
        };
        let of_lead = sent.min(self.lead.len());
        self.lead.advance(of_lead);
        if self.lead.is_empty() {
            self.lead.clear();
        }
        self.memory_sent += sent - of_lead;
        self.made += sent as u64;
        Ok(())
    }

    /// At most `room` bytes: later ones may have to be read from disk, or exceed the limit of a key.
    fn send_file(&mut self, connection: &Link, room: u64) -> io::Result<()> {
        let socket = &connection.socket;
        let Some((_, range)) = self.segments.files.get(self.files_sent) else { return Ok(()) };
        if self.pace.is_none() && self.left().saturating_add(self.feed.as_ref().map_or(0, Feed::left)) > CORK_MIN {
            self.pace = Some(if connection.tls.is_none() && connection.is_near() { Pace::Near } else { Pace::Corked });
            if self.pace == Some(Pace::Corked) {
                socket.cork(true);
            }
        }
        let mut sent = 0;
        if range.length > 0 {
            let quantum = if self.pace == Some(Pace::Near) { SENDFILE_QUANTUM_NEAR } else { SENDFILE_QUANTUM };
            let count = usize::try_from(range.length.min(room)).unwrap_or(usize::MAX).min(quantum);
            sent = socket.send_file(&range.file, range.offset, count)? as u64;
            if sent == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than promised"));
            }
        }
        self.made += sent;
        self.file_is_sent(sent);
        Ok(())
    }

    /// Of the current file, this much more is sent.
    fn file_is_sent(&mut self, bytes: u64) {
        let Some((_, range)) = self.segments.files.get_mut(self.files_sent) else { return };
        range.offset += bytes;
        range.length -= bytes;
        self.files_sent += usize::from(range.length == 0);
    }
}

impl Outgoing {
    /// Bytes that the socket has taken. The TLS overhead of those that it has not taken yet is subtracted.
    pub(crate) fn sent(&self) -> u64 {
        self.made.saturating_sub(self.wire.len() as u64)
    }

    /// The window of the write deadline, which starts now if there is none.
    pub(crate) fn progress(&mut self, now: Millis) -> &mut Progress {
        let sent = self.sent();
        self.progress.get_or_insert(Progress::new(now, sent))
    }

    /// Whether everything available is sent, and the source has no data now.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Asks it to end, for the client or the server; returns whether it does.
    pub(crate) fn hang_up(&mut self) -> bool {
        self.feed.as_mut().is_some_and(Feed::hang_up)
    }
}
