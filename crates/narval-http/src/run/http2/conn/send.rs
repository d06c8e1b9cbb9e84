//! Sends responses frame by frame: small ones first, then the streams in turn.

use std::io;

use http::StatusCode;

use super::stream::{How, Receiving, Sending};
use super::{Conn, Wants};
use crate::http1::ProtoError;
use crate::http2::frame::{self, ErrorCode, HEADER_LENGTH, PAYLOAD_MAX};
use crate::http2::hpack::encode_no_table;
use crate::http2::response::trailers_block;
use crate::io::clock::millis;
use crate::io::progress::Progress;
use crate::limits::{
    HTTP2_COPY_MAX, HTTP2_PREFETCH_BELOW, HTTP2_QUANTUM, HTTP2_QUANTUM_MIN, HTTP2_QUEUED_MAX, HTTP2_SMALL_BODY,
    SOURCE_WAIT_MAX,
};
use crate::message::body::produced::{Made, Produced, Rest};
use crate::message::body::source::BodyWaker;
use crate::run::http2::encode::Answer;
use crate::run::http2::service::Ending;
use crate::run::job::Work;
use crate::run::service::Service;
use crate::tls::layout::Gather;

impl Conn {
    /// Sends the answer to a request.
    pub(super) fn answer(&mut self, id: u32, mut answer: Answer, service: &mut Service<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.is_away = false;
        if stream.is_reset {
            service.over(answer.status, 0, answer.note, Ending::Aborted);
            return self.forget(id, service);
        }
        if let Some(accepted) = answer.accepted.take() {
            return self.accept(id, answer, accepted, service);
        }
        if stream.is_connect && (200..300).contains(&answer.status) {
            // The client would take it for an accepted WebSocket.
            let error = ProtoError::new(StatusCode::NOT_IMPLEMENTED, "this resource is not a WebSocket");
            answer = service.reject_on_stream(error, false);
        }
        let rest = stream.announced_rest();
        match stream.receiving {
            Receiving::Memory(_) | Receiving::Ahead { has_ended: false, .. } => stream.receiving = Receiving::Unread,
            Receiving::Ahead { has_ended: true, .. } => stream.receiving = Receiving::Done,
            _ => {}
        }
        (stream.status, stream.note) = (answer.status, answer.note);
        stream.sent = (HEADER_LENGTH + answer.block.len()) as u64;
        stream.progress = Progress::new(service.now, stream.sent);
        if !stream.is_received() {
            // The unread rest of the request body is received and discarded. The client must learn that before the
            // response ends: some clients then stop reading until everything is sent (curl 7.88).
            let least = service.limits().linger_bytes_max;
            let rest = rest.map_or(least, |rest| usize::try_from(rest).unwrap_or(usize::MAX).max(least));
            let by = stream.receive.grant(rest);
            frame::push_window_update(&mut self.out, id, by);
            if rest > least {
                let by = self.receive.grant(rest);
                frame::push_window_update(&mut self.out, 0, by);
            }
        }
        self.push_block(id, answer.block, answer.body.is_none());
        let Some(body) = answer.body else { return self.finish(id, service) };
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.sending = Sending::Body(Box::new(body));
        }
        self.count_held(id);
        let window = self.window.open();
        let overtakes = self.streams.get(&id).is_some_and(|stream| match &stream.sending {
            Sending::Body(body) => {
                let most = window.min(stream.window.open()).min(HTTP2_COPY_MAX);
                body.ready() <= most as u64 && body.rest() == Rest::End { trailers: false }
            }
            _ => false,
        });
        if overtakes && self.out.len() - self.out_sent < HTTP2_QUEUED_MAX {
            let mut out = std::mem::take(&mut self.out);
            self.turn(id, &mut out, usize::MAX, service);
            // Later frames may have been queued meanwhile.
            out.append(&mut self.out);
            self.out = out;
        } else {
            // A stream whose window is closed has no turn: without this, its deadline would be noticed with the next one of the connection.
            self.look_at(service.now + millis(service.limits().write_stall_timeout));
            self.queue(id);
        }
    }

    /// Sends an informational response, if the response has not started.
    pub(super) fn inform(&mut self, id: u32, block: &[u8]) {
        let is_open = self.streams.get(&id).is_some_and(|s| !s.is_reset && matches!(s.sending, Sending::Nothing));
        if is_open {
            self.push_block(id, block.to_vec(), false);
        }
    }

    pub(super) fn push_block(&mut self, id: u32, mut block: Vec<u8>, is_last: bool) {
        if std::mem::take(&mut self.peer.lowers_table) {
            let mut lowered = Vec::with_capacity(block.len() + 1);
            encode_no_table(&mut lowered);
            lowered.append(&mut block);
            block = lowered;
        }
        frame::push_headers(&mut self.out, id, &block, is_last);
    }

    /// The request was not queued, because the queue is full.
    pub(super) fn refused(&mut self, id: u32, service: &mut Service<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let Receiving::Piped { pipe, .. } = std::mem::replace(&mut stream.receiving, Receiving::Done) {
            pipe.abort(io::ErrorKind::Other);
            stream.receiving = Receiving::Unread;
        }
        let is_head = stream.is_head;
        let answer = service.overloaded(is_head);
        self.answer(id, answer, service);
    }

    /// The job of the request is gone, and there will be no answer, or no more of its body.
    pub(super) fn lost(&mut self, id: u32, service: &mut Service<'_>) {
        self.end_making(id, service);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.is_away = false;
        if stream.is_reset {
            return self.forget(id, service);
        }
        frame::push_reset(&mut self.out, id, ErrorCode::InternalError);
        self.drop_stream(id, How::ByUs, Ending::Aborted, service);
    }

    /// A piece of a body is no longer being produced, if one was.
    fn end_making(&mut self, id: u32, service: &mut Service<'_>) {
        let making = self.streams.get_mut(&id).map_or(0, |stream| std::mem::take(&mut stream.making));
        if making > 0 {
            self.turns.made(making);
            self.feed_hungry(service);
        }
    }

    /// The next piece of a body was produced.
    pub(super) fn made(&mut self, id: u32, made: io::Result<Made>, service: &mut Service<'_>) {
        self.end_making(id, service);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.is_away = false;
        if stream.is_reset {
            return self.forget(id, service);
        }
        let Sending::Body(body) = &mut stream.sending else { return };
        match made.map(|made| body.made(made)) {
            Ok(()) => {
                self.count_held(id);
                self.queue(id);
            }
            Err(error) => self.fail_body(id, &error, service),
        }
    }

    /// The source of a body has more data.
    pub(super) fn body_ready(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        match std::mem::replace(&mut stream.sending, Sending::Done) {
            Sending::Waiting(mut body, _) => {
                body.resume();
                stream.sending = Sending::Body(body);
                self.queue(id);
            }
            other => stream.sending = other,
        }
    }

    /// Gathers up to about `quantum` bytes to send; returns what it waits for after that.
    pub(crate) fn gather(&mut self, into: &mut impl Gather, quantum: usize, service: &mut Service<'_>) -> Wants {
        let before = into.gathered();
        loop {
            self.gather_out(into, quantum);
            if into.gathered() >= quantum || !self.out.is_empty() {
                break;
            }
            let Some(id) = self.turns.pop(!self.window.is_closed()) else { break };
            self.turn(id, into, quantum, service);
        }
        self.gathered += (into.gathered() - before) as u64;
        self.wants()
    }

    fn gather_out(&mut self, into: &mut impl Gather, quantum: usize) {
        let room = quantum.saturating_sub(into.gathered());
        let rest = self.out.get(self.out_sent..).unwrap_or_default();
        let taken = rest.get(..room.min(rest.len())).unwrap_or_default();
        into.push(taken);
        self.out_sent += taken.len();
        if self.out_sent >= self.out.len() {
            self.out.clear();
            self.out_sent = 0;
            if self.streams.is_empty() {
                self.out = Vec::new();
            }
        }
    }

    /// Queues a stream if it has something to send.
    pub(super) fn queue(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let (needs_window, is_small) = match &stream.sending {
            Sending::Body(body) => (body.ready() > 0, is_small(body.as_ref())),
            // With the small bodies, so that messages do not wait for large ones.
            Sending::WebSocket(socket) if socket.ready() > 0 => (true, true),
            _ => return,
        };
        if stream.is_queued || (needs_window && stream.window.is_closed()) {
            return;
        }
        stream.is_queued = true;
        self.turns.push(id, is_small, needs_window && self.window.is_closed());
    }

    pub(super) fn queue_all(&mut self) {
        let ids: Vec<u32> = self.streams.keys().copied().collect();
        ids.into_iter().for_each(|id| self.queue(id));
    }

    /// Produces pieces for the streams that waited for memory, as far as there is some. It is called before any other stream can take
    /// what has become free.
    fn feed_hungry(&mut self, service: &mut Service<'_>) {
        while let Some(id) = self.turns.pop_hungry() {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.is_queued = false;
            match &stream.sending {
                Sending::Body(body) if body.rest() == Rest::Worker => self.make(id, service),
                Sending::Body(body) if body.rest() == Rest::Here => self.make_here(id, service),
                _ => self.queue(id),
            }
        }
    }

    /// One stream's turn: sends a frame, or produces the data for one.
    fn turn(&mut self, id: u32, into: &mut impl Gather, quantum: usize, service: &mut Service<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.is_queued = false;
        if let Sending::WebSocket(_) = stream.sending {
            return self.websocket_turn(id, into, quantum, service);
        }
        let Sending::Body(body) = &mut stream.sending else { return };
        if body.ready() > 0 {
            return self.data(id, into, quantum, service);
        }
        match body.rest() {
            Rest::End { .. } => {
                let trailers = trailers_block(&body.trailers());
                if trailers.is_empty() {
                    into.push(&frame::data_header(id, 0, true));
                } else {
                    let mut frames = Vec::new();
                    frame::push_headers(&mut frames, id, &trailers, true);
                    into.push(&frames);
                }
                self.finish(id, service);
            }
            Rest::Here => self.make_here(id, service),
            Rest::Worker => self.make(id, service),
            Rest::Making => {}
            Rest::Waiting => self.wait(id, service),
        }
    }

    /// Sends one DATA frame of a stream.
    fn data(&mut self, id: u32, into: &mut impl Gather, quantum: usize, service: &mut Service<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Sending::Body(body) = &mut stream.sending else { return };
        let ready = body.ready();
        let window = stream.window.open().min(self.window.open());
        if window == 0 {
            // A WINDOW_UPDATE of the stream queues it again; for one of the connection it is queued now.
            stream.progress = Progress::new(service.now, stream.sent);
            self.look_at(service.now + millis(service.limits().write_stall_timeout));
            return self.queue(id);
        }
        let room = quantum.saturating_sub(into.gathered()).max(HTTP2_QUANTUM_MIN);
        let most = usize::try_from(ready).unwrap_or(usize::MAX).min(window).min(PAYLOAD_MAX).min(room);
        let taken = match put_frame(id, body.as_mut(), most, into) {
            Ok(taken) => taken,
            Err(error) => return self.fail_body(id, &error, service),
        };
        stream.window.sent(taken);
        self.window.sent(taken);
        self.unreturned += taken as u64;
        stream.sent += (taken + HEADER_LENGTH) as u64;
        let is_over = is_at_end(body.as_ref());
        let runs_low = body.ready() < HTTP2_PREFETCH_BELOW && body.rest() == Rest::Worker;
        let is_closed = stream.window.is_closed();
        self.count_held(id);
        if is_over {
            self.finish(id, service);
            return self.feed_hungry(service);
        }
        self.feed_hungry(service);
        if runs_low && taken > 0 && !is_closed && !service.connection.holding().is_tight() {
            self.make(id, service);
        }
        self.queue(id);
    }

    /// Updates what a stream counts for in `held` and `in_memory`.
    fn count_held(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Sending::Body(body) = &stream.sending else { return };
        let held = body.held();
        self.turns.hold(std::mem::replace(&mut stream.held, held), held);
        let in_memory = body.in_memory();
        self.in_memory = (self.in_memory + in_memory).saturating_sub(stream.in_memory);
        stream.in_memory = in_memory;
    }

    /// Nothing of a stream's body is held any longer.
    pub(super) fn let_go(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        self.turns.hold(std::mem::take(&mut stream.held), 0);
        self.in_memory = self.in_memory.saturating_sub(std::mem::take(&mut stream.in_memory));
    }

    /// How much to produce for a body now: no more than the client takes, so that nothing is held for a client that
    /// pauses. `None` if too much is held; a stream without anything to send gets another turn once less is.
    fn quantum(&mut self, id: u32, service: &Service<'_>) -> Option<usize> {
        let stream = self.streams.get_mut(&id)?;
        let Sending::Body(body) = &stream.sending else { return None };
        if !self.turns.may_make() {
            if body.ready() == 0 {
                stream.is_queued = true;
                self.turns.push_hungry(id);
            }
            return None;
        }
        let window = stream.window.open().min(self.window.open());
        Some(window.clamp(HTTP2_QUANTUM_MIN, service.connection.holding().at_once(HTTP2_QUANTUM)))
    }

    /// Produces the next piece of a body that does not block.
    fn make_here(&mut self, id: u32, service: &mut Service<'_>) {
        let Some(quantum) = self.quantum(id, service) else { return };
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Sending::Body(body) = &mut stream.sending else { return };
        match body.make(quantum) {
            Ok(()) => {
                self.count_held(id);
                self.queue(id);
            }
            Err(error) => self.fail_body(id, &error, service),
        }
    }

    /// Has a worker produce the next piece of a body.
    fn make(&mut self, id: u32, service: &mut Service<'_>) {
        let Some(quantum) = self.quantum(id, service) else { return };
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Sending::Body(body) = &mut stream.sending else { return };
        let Some(maker) = body.maker() else { return };
        (stream.is_away, stream.making) = (true, quantum);
        let departure = stream.departure();
        self.turns.making(quantum);
        service.work.push_back(Work::Make { stream: id, maker, quantum, departure });
    }

    /// Makes a body wait for its source.
    fn wait(&mut self, id: u32, service: &mut Service<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Sending::Body(mut body) = std::mem::replace(&mut stream.sending, Sending::Done) else { return };
        let at_most = body.wait(BodyWaker(service.connection.address(id)));
        let until = service.now + millis(at_most.min(SOURCE_WAIT_MAX)).max(1);
        stream.sending = Sending::Waiting(body, until);
        self.look_at(until);
        if service.is_stopping() || self.has_ended {
            self.hang_up(id);
        }
    }

    /// A body cannot be completed: resets the stream, so that it does not end cleanly.
    fn fail_body(&mut self, id: u32, error: &io::Error, service: &mut Service<'_>) {
        frame::push_reset(&mut self.out, id, ErrorCode::InternalError);
        self.drop_stream(id, How::ByUs, Ending::Failed(error), service);
    }

    /// A response is sent.
    fn finish(&mut self, id: u32, service: &mut Service<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        service.over(stream.status, stream.sent, stream.note.take(), Ending::Complete);
        self.all_sent(id, service);
    }

    /// We have ended our side of a stream.
    pub(super) fn all_sent(&mut self, id: u32, service: &mut Service<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.sending = Sending::Done;
        stream.here = None;
        self.let_go(id);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        match std::mem::replace(&mut stream.receiving, Receiving::Done) {
            Receiving::Done => {
                self.closed.push(id, How::Ended, 0);
                self.forget(id, service);
            }
            unread => {
                if let Receiving::Piped { pipe, .. } = unread {
                    pipe.abort(io::ErrorKind::Other);
                }
                // Clients that are still sending treat any reset as a failure, even with NO_ERROR (RFC 9113 section
                // 8.1); curl 7.88 waits for ever. So the rest is received, as with HTTP/1.
                let limits = service.limits();
                let until = if service.is_stopping() { limits.linger_timeout } else { limits.body_stall_timeout };
                let until = service.now + millis(until);
                stream.receiving = Receiving::Discarded { total: 0, left: limits.linger_bytes_max, until };
                self.look_at(until);
            }
        }
    }
}

/// Whether little is left of a body.
fn is_small(body: &Produced) -> bool {
    body.ready() <= HTTP2_SMALL_BODY && matches!(body.rest(), Rest::End { .. })
}

/// Whether nothing is left of a body.
fn is_at_end(body: &Produced) -> bool {
    body.ready() == 0 && body.rest() == Rest::End { trailers: false }
}

/// Appends one frame with at most `most` bytes of a body. Returns the number of bytes of the body; 0 if they must be
/// produced first, and there is no frame.
fn put_frame(id: u32, body: &mut Produced, most: usize, into: &mut impl Gather) -> io::Result<usize> {
    debug_assert!(body.ready() > 0);
    put_data(id, most, into, |place| {
        let taken = body.take(place)?;
        Ok((taken, is_at_end(body)))
    })
}

/// Appends one DATA frame with at most `most` bytes. If it is long enough, it ends with its TLS record. `take` fills it, and
/// returns the number of bytes and whether they are the last; without bytes there is no frame.
pub(super) fn put_data(
    id: u32,
    most: usize,
    into: &mut impl Gather,
    take: impl FnOnce(&mut [u8]) -> io::Result<(usize, bool)>,
) -> io::Result<usize> {
    let left = into.record_left();
    if left <= HEADER_LENGTH {
        // The record ends within the header.
        let mut piece = [0; 512];
        let piece = piece.get_mut(..most.min(512)).unwrap_or_default();
        let (taken, is_last) = take(piece)?;
        if taken > 0 {
            into.push(&frame::data_header(id, taken, is_last));
            into.push(piece.get(..taken).unwrap_or_default());
        }
        return Ok(taken);
    }
    let count = most.min(left - HEADER_LENGTH);
    let place = into.room(HEADER_LENGTH + count);
    let Some((header, data)) = place.split_first_chunk_mut::<HEADER_LENGTH>() else { return Ok(0) };
    let (taken, is_last) = take(data)?;
    *header = frame::data_header(id, taken, is_last);
    let unused = if taken == 0 { HEADER_LENGTH + count } else { count - taken };
    into.give_back(unused);
    Ok(taken)
}
