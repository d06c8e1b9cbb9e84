//! Request bodies: received into memory up to a limit, and streamed to their handler above it.

use std::io;

use http::HeaderMap;

use super::Conn;
use super::stream::{How, Receiving};
use crate::http2::frame::{self, ErrorCode};
use crate::http2::response;
use crate::io::clock::{Millis, millis};
use crate::limits::{
    HTTP2_BODY_WINDOW, HTTP2_STREAM_WINDOW_MAX, HTTP2_WINDOW_FACTOR_MAX, HTTP2_WINDOW_GROWTH_MAX, HTTP2_WINDOW_HALF,
};
use crate::message::body::memory::NextStep;
use crate::run::http2::service::Ending;
use crate::run::intake::{InMemory, Look, look_at_piped, too_slow};
use crate::run::service::Service;

impl Conn {
    /// Handles a received part of a request body.
    pub(super) fn body_data(&mut self, id: u32, data: &[u8], service: &mut Service<'_>) {
        // A stream's buffer is bounded by its own window: a slow handler does not stop the other streams.
        self.credit_connection(data.len());
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.is_reset) else { return };
        let fed = match &mut stream.receiving {
            Receiving::Done => return,
            Receiving::Ahead { .. } => return self.keep_ahead(id, data, service),
            Receiving::WebSocket => return self.websocket_data(id, data, service),
            Receiving::Unread => {
                self.credit_stream(id, data.len());
                return;
            }
            Receiving::Discarded { total, left, until } => {
                *total = total.saturating_add(data.len() as u64);
                *left = left.saturating_sub(data.len());
                let limits = service.limits();
                if *total > limits.body_max || (*left == 0 && service.is_stopping()) {
                    return self.stop_discarding(id, service);
                }
                if *left == 0 {
                    *left = limits.linger_bytes_max;
                    *until = service.now + millis(limits.body_stall_timeout);
                }
                self.credit_stream(id, data.len());
                return;
            }
            Receiving::Memory(memory) => {
                // Whether it is whole shows at the end of the stream.
                memory.feed(data, service.limits(), false).map(|(consumed, next)| (consumed, next, true))
            }
            Receiving::Piped { incoming, pipe } => {
                let fed = incoming.feed(data, service.limits(), |data| pipe.push(data));
                if let Err(error) = fed {
                    // The handler gets the error, and may answer as it likes.
                    pipe.refuse(error);
                    stream.receiving = Receiving::Unread;
                    return;
                }
                let has_room = pipe.has_room();
                if !has_room {
                    incoming.pause();
                }
                fed.map(|fed| (fed.consumed, NextStep::Receive, has_room))
            }
        };
        match fed {
            Ok((consumed, ..)) if consumed < data.len() => self.break_body(id, service),
            // Plus what was withheld before: the handler has read since, but not enough to report it.
            Ok((_, NextStep::Receive | NextStep::Answer, true)) => {
                let withheld = self.streams.get_mut(&id).map_or(0, |stream| std::mem::take(&mut stream.withheld));
                if withheld == 0 {
                    self.credit_and_grow(id, data.len(), service.now);
                } else {
                    self.credit_stream(id, data.len() + withheld);
                }
            }
            // The client may send more once the handler has read.
            Ok((_, NextStep::Receive | NextStep::Answer, false)) => {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.withheld += data.len();
                }
            }
            Ok((_, NextStep::Stream, _)) => {
                self.stream_body(id, service);
                self.credit_if_room(id, data.len());
            }
            Ok((_, NextStep::Refuse, _)) => {
                let answer = service.overloaded(false);
                self.set_receiving(id, Receiving::Unread);
                self.answer(id, answer, service);
            }
            Err(error) => {
                let is_head = self.streams.get(&id).is_some_and(|stream| stream.is_head);
                let answer = service.reject_on_stream(error, is_head);
                self.set_receiving(id, Receiving::Unread);
                self.answer(id, answer, service);
            }
        }
    }

    /// The client has sent all of a request body.
    pub(super) fn body_end(&mut self, id: u32, trailers: Option<HeaderMap>, service: &mut Service<'_>) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.is_reset) else { return };
        let is_whole = match &mut stream.receiving {
            Receiving::Ahead { has_ended, .. } => {
                *has_ended = true;
                return;
            }
            Receiving::WebSocket => return self.websocket_end(id, service),
            Receiving::Memory(memory) => memory.incoming.is_whole(),
            Receiving::Piped { incoming, .. } => incoming.is_whole(),
            Receiving::Done | Receiving::Unread | Receiving::Discarded { .. } => true,
        };
        if !is_whole {
            return self.break_body(id, service);
        }
        if let Receiving::Discarded { .. } = stream.receiving {
            self.closed.push(id, How::Ended, 0);
            return self.forget(id, service);
        }
        let trailers = trailers.unwrap_or_default();
        if let Some(request) = stream.take_memory() {
            self.ask(id, request.whole(trailers), service);
        } else if let Receiving::Piped { pipe, .. } = std::mem::replace(&mut stream.receiving, Receiving::Done) {
            pipe.complete(trailers);
        }
    }

    /// The response is sent, and the client continues for too long, or too slowly, with a body that nobody reads (RFC 9113
    /// section 8.1).
    fn stop_discarding(&mut self, id: u32, service: &mut Service<'_>) {
        frame::push_reset(&mut self.out, id, ErrorCode::NoError);
        self.drop_stream(id, How::ByUs, Ending::Complete, service);
    }

    /// A body does not have the announced length: the request is malformed (RFC 9113 section 8.1.1).
    fn break_body(&mut self, id: u32, service: &mut Service<'_>) {
        service.counters.rejected.add(1);
        if let Err(error) = self.reset(id, ErrorCode::ProtocolError, service) {
            self.fail(error.0, error.1, service);
        }
    }

    /// Lets the client send [`HTTP2_BODY_WINDOW`] of a body whose head has arrived, if memory for bodies is not short.
    pub(super) fn enlarge_window(&mut self, id: u32) {
        let room = HTTP2_WINDOW_GROWTH_MAX.saturating_sub(self.grown);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let (length, share) = match &mut stream.receiving {
            Receiving::Memory(memory) => (memory.incoming.length(), Some(&mut memory.body.share)),
            // What it holds is limited by its queue of messages.
            Receiving::WebSocket => (None, None),
            _ => return,
        };
        let length = length.and_then(|length| u32::try_from(length).ok()).unwrap_or(u32::MAX);
        let by = HTTP2_BODY_WINDOW.min(length).saturating_sub(stream.receive.size());
        if by == 0 || by > room || share.is_some_and(|share| !share.promise(by as usize)) {
            return;
        }
        self.grown += stream.receive.grow(stream.receive.size() + by);
        frame::push_window_update(&mut self.out, id, by);
    }

    /// Streams the rest of a body to a handler.
    fn stream_body(&mut self, id: u32, service: &mut Service<'_>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let Some(request) = stream.take_memory() else { return };
        if request.is_awaited {
            // That was no check of its progress.
            stream.body_check = request.incoming.next_check(service.now, service.limits());
        }
        self.stream(id, request, false, service);
    }

    /// Streams a body to a handler. `continue_due`: the client waits for `100 Continue`.
    pub(super) fn stream(&mut self, id: u32, request: InMemory, continue_due: bool, service: &mut Service<'_>) {
        let (request, incoming, pipe) = request.streamed(|body, _| service.pipe_on_stream(id, body, continue_due));
        self.set_receiving(id, Receiving::Piped { incoming, pipe });
        self.ask(id, request, service);
    }

    /// Returns used bytes to a stream's window, and those withheld before, unless the handler must read first. It may have read.
    pub(super) fn credit_if_room(&mut self, id: u32, bytes: usize) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.withheld += bytes;
        let Receiving::Piped { incoming, pipe } = &mut stream.receiving else { return };
        if pipe.has_room() {
            let withheld = std::mem::take(&mut stream.withheld);
            self.credit_stream(id, withheld);
        } else {
            incoming.pause();
        }
    }

    /// The handler wants the body; the client waits for `100 Continue`.
    pub(super) fn continue_wanted(&mut self, id: u32) {
        let is_open = self.streams.get(&id).is_some_and(|stream| !stream.is_reset && !stream.is_received());
        if is_open {
            self.inform(id, &response::continue_block());
        }
    }

    /// Returns used bytes to the connection's window.
    pub(super) fn credit_connection(&mut self, bytes: usize) {
        if let Some(by) = self.receive.use_up(bytes) {
            frame::push_window_update(&mut self.out, 0, by);
        }
    }

    /// Returns used bytes to a stream's window.
    pub(super) fn credit_stream(&mut self, id: u32, bytes: usize) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.is_received()) else { return };
        if let Some(by) = stream.receive.use_up(bytes) {
            frame::push_window_update(&mut self.out, id, by);
        }
    }

    /// The same for a stream whose handler keeps up. If half of the window was used in a short time, the window is too
    /// small for the round trip to the client, and grows.
    fn credit_and_grow(&mut self, id: u32, bytes: usize, now: Millis) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.is_received()) else { return };
        let Some(by) = stream.receive.use_up(bytes) else { return };
        let took = now.saturating_sub(std::mem::replace(&mut stream.credited, now));
        let factor = millis(HTTP2_WINDOW_HALF) / took.max(1);
        let factor = u32::try_from(factor).unwrap_or(u32::MAX).clamp(1, HTTP2_WINDOW_FACTOR_MAX);
        let size = stream.receive.size();
        let room = HTTP2_WINDOW_GROWTH_MAX.saturating_sub(self.grown);
        let size_max = HTTP2_STREAM_WINDOW_MAX.min(size.saturating_add(room));
        let wanted = size.saturating_mul(factor).min(size_max);
        let may_grow = match &mut stream.receiving {
            Receiving::Memory(memory) => memory.body.share.promise(wanted.saturating_sub(size) as usize),
            // While it waits for a thread, the client sends no more than it was allowed.
            Receiving::Piped { pipe, .. } => pipe.has_begun(),
            _ => false,
        };
        let grown = if may_grow { stream.receive.grow(wanted) } else { 0 };
        self.grown += grown;
        frame::push_window_update(&mut self.out, id, by + grown);
    }

    /// Checks the progress of a body; returns when to do so again.
    pub(super) fn check_body(&mut self, id: u32, service: &mut Service<'_>) -> Option<Millis> {
        let now = service.now;
        let stream = self.streams.get_mut(&id)?;
        // The connection ticks for other streams, too. What a client must send between two checks is for the time between them.
        let is_due = stream.body_check <= now;
        let looked = match &mut stream.receiving {
            Receiving::Done | Receiving::Unread | Receiving::Ahead { .. } | Receiving::WebSocket => return None,
            Receiving::Discarded { until, .. } if *until <= now => {
                self.stop_discarding(id, service);
                return None;
            }
            Receiving::Discarded { until, .. } => return Some(*until),
            Receiving::Memory(memory) if is_due || !memory.body.share.is_fair() => memory.look(service),
            Receiving::Piped { incoming, pipe } if is_due => look_at_piped(incoming, pipe, service),
            Receiving::Memory(_) | Receiving::Piped { .. } => return Some(stream.body_check),
        };
        match looked {
            Look::Again(at) => {
                stream.body_check = at;
                return Some(at);
            }
            Look::Stream => {
                self.stream_body(id, service);
                self.credit_if_room(id, 0);
                return self.streams.get(&id).map(|stream| stream.body_check.max(now + 1));
            }
            Look::TooSlow => service.counters.timeouts.add(1),
        }
        match std::mem::replace(&mut stream.receiving, Receiving::Unread) {
            Receiving::Piped { pipe, .. } => pipe.abort(io::ErrorKind::TimedOut),
            _ => {
                let is_head = stream.is_head;
                let answer = service.reject_on_stream(too_slow(), is_head);
                self.answer(id, answer, service);
            }
        }
        None
    }
}
