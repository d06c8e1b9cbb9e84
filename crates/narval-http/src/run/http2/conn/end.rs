//! How streams and the connection end: resets, GOAWAY, deadlines.

use std::io;

use super::stream::{How, Receiving, Sending};
use super::{Conn, ConnError, Going};
use crate::http2::frame::{self, ErrorCode, STREAM_MAX};
use crate::io::clock::{Millis, millis};
use crate::io::over::Close;
use crate::io::progress::Progress;
use crate::limits::{HTTP2_GOAWAY_GRACE, HTTP2_STREAM_WINDOW};
use crate::run::http2::service::Ending;
use crate::run::service::Service;
use crate::ws::Told;

impl Conn {
    /// Resets a stream because of what the client did.
    pub(super) fn reset(&mut self, id: u32, code: ErrorCode, service: &mut Service<'_>) -> Result<(), ConnError> {
        // The client can provoke that as cheaply as it can reset streams itself (CVE-2025-8671).
        self.spend_reset(service)?;
        frame::push_reset(&mut self.out, id, code);
        self.drop_stream(id, How::ByUs, Ending::Aborted, service);
        Ok(())
    }

    pub(super) fn spend_reset(&mut self, service: &Service<'_>) -> Result<(), ConnError> {
        if self.resets.spend(service.now) {
            return Ok(());
        }
        service.count_abuse("streams that are reset");
        Err(ConnError(ErrorCode::EnhanceYourCalm, "too many streams are reset"))
    }

    /// A stream was reset. It counts until everything that is away is back.
    pub(super) fn drop_stream(&mut self, id: u32, how: How, ending: Ending<'_>, service: &mut Service<'_>) {
        let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.is_reset) else { return };
        stream.is_reset = true;
        if let Some(here) = stream.here.take() {
            service.tell_departed(here.departure());
        }
        self.let_go(id);
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let Receiving::Piped { pipe, .. } = std::mem::replace(&mut stream.receiving, Receiving::Done) {
            pipe.abort(io::ErrorKind::ConnectionReset);
        }
        match std::mem::replace(&mut stream.sending, Sending::Done) {
            Sending::Body(_) | Sending::Waiting(..) => {
                service.over(stream.status, stream.sent, stream.note.take(), ending);
            }
            Sending::WebSocket(socket) => socket.release(&service.server.pool),
            Sending::Nothing | Sending::Done => {}
        }
        self.closed.push(id, how, stream.receive.open());
        if !stream.is_away {
            self.forget(id, service);
        }
    }

    /// Nothing of a stream is left.
    pub(super) fn forget(&mut self, id: u32, service: &Service<'_>) {
        if let Some(stream) = self.streams.remove(&id) {
            self.grown -= stream.receive.size() - HTTP2_STREAM_WINDOW;
            if stream.is_queued {
                self.turns.remove(id);
            }
        }
        if self.streams.is_empty() {
            self.idle_since = service.now;
            self.look_at(self.idle_since + millis(service.limits().keep_alive_timeout));
            self.look_for_end();
        }
    }

    /// Ends the connection once nothing is left to do.
    pub(super) fn look_for_end(&mut self) {
        if self.streams.is_empty() && (self.has_ended || self.going == Going::Told) && self.end.is_none() {
            self.end = Some(Close::Clean { large: true });
        }
    }

    /// A connection error: sends a GOAWAY with the reason, and ends the connection.
    pub(super) fn fail(&mut self, code: ErrorCode, reason: &'static str, service: &mut Service<'_>) {
        if self.end.is_some() {
            return;
        }
        tracing::debug!(?code, reason, "an HTTP/2 connection ends");
        frame::push_go_away(&mut self.out, self.last, code);
        self.end = Some(Close::Clean { large: false });
        self.abandon_all(service);
        self.look_at(service.now + millis(service.limits().linger_timeout));
    }

    fn abandon_all(&mut self, service: &mut Service<'_>) {
        let streams: Vec<u32> = self.streams.keys().copied().collect();
        for stream in streams {
            self.drop_stream(stream, How::ByUs, Ending::Aborted, service);
        }
        self.turns.clear();
    }

    /// The server stops: tells the client not to open streams. Those that it opens before it has received that are
    /// handled.
    pub(super) fn stop(&mut self, service: &mut Service<'_>) {
        if self.going != Going::No || self.end.is_some() {
            return;
        }
        frame::push_go_away(&mut self.out, STREAM_MAX, ErrorCode::NoError);
        frame::push_ping(&mut self.out, false, *b"goodbye.");
        let until = service.now + millis(HTTP2_GOAWAY_GRACE);
        self.going = Going::Warned { until };
        self.look_at(until);
        self.hang_up_all();
        self.stop_websockets(service);
    }

    /// Tells the client which stream is the last one.
    pub(super) fn tell_last(&mut self) {
        self.going = Going::Told;
        frame::push_go_away(&mut self.out, self.last, ErrorCode::NoError);
        self.look_for_end();
    }

    /// Ends all endless bodies whose sources have no data.
    pub(super) fn hang_up_all(&mut self) {
        let ids: Vec<u32> = self.streams.keys().copied().collect();
        ids.into_iter().for_each(|id| self.hang_up(id));
    }

    /// Ends an endless body after the data it still has.
    pub(super) fn hang_up(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if let Sending::Waiting(body, _) = &mut stream.sending
            && body.hang_up()
        {
            self.body_ready(id);
        }
    }

    /// The deadline has passed.
    pub(super) fn tick(&mut self, service: &mut Service<'_>) {
        let (now, limits) = (service.now, service.limits().clone());
        // The next deadline is determined below. If only a job is waited for, it is checked periodically.
        self.deadline = now + millis(limits.keep_alive_timeout);
        if self.end.is_some() {
            // The client did not take the last frames.
            self.end = Some(Close::Abort);
            self.out.clear();
            self.out_sent = 0;
            return;
        }
        if self.frame_until != 0 {
            if self.frame_until <= now {
                service.counters.timeouts.add(1);
                return self.fail(ErrorCode::SettingsTimeout, "a frame was not complete in time", service);
            }
            self.look_at(self.frame_until);
        }
        if let Going::Warned { until } = self.going {
            if until <= now {
                self.tell_last();
            } else {
                self.look_at(until);
            }
        }
        if self.streams.is_empty() && self.end.is_none() {
            let until = self.idle_since + millis(limits.keep_alive_timeout);
            if until <= now {
                return self.leave_idle();
            }
            self.look_at(until);
        }
        self.check_streams(now, service);
        self.check_writing(now, service);
    }

    /// Ends the connection, which has no request.
    pub(super) fn leave_idle(&mut self) {
        if self.end.is_none() {
            self.tell_last();
        }
    }

    fn check_streams(&mut self, now: Millis, service: &mut Service<'_>) {
        let stall = millis(service.limits().write_stall_timeout);
        let ids: Vec<u32> = self.streams.keys().copied().collect();
        for id in ids {
            if let Some(next) = self.check_body(id, service) {
                self.look_at(next);
            }
            let Some(stream) = self.streams.get_mut(&id).filter(|stream| !stream.is_reset) else { continue };
            match &stream.sending {
                Sending::Waiting(_, until) if *until <= now => self.body_ready(id),
                Sending::Waiting(_, until) => self.deadline = self.deadline.min(*until),
                // The client keeps this stream's window closed.
                Sending::Body(_) if stream.window.is_closed() => {
                    let least = service.limits().write_progress_min;
                    if let Some(next) = stream.progress.check(now, stream.sent, least, stall) {
                        self.look_at(next);
                    } else {
                        service.counters.timeouts.add(1);
                        frame::push_reset(&mut self.out, id, ErrorCode::Cancel);
                        self.drop_stream(id, How::ByUs, Ending::Aborted, service);
                    }
                }
                Sending::Body(_) => {
                    stream.progress = Progress::new(now, stream.sent);
                    self.look_at(now + stall);
                }
                Sending::WebSocket(_) => self.websocket(id, Told::Look, service),
                Sending::Nothing | Sending::Done => {}
            }
        }
    }

    /// A client that reads nothing of what is queued for it is disconnected.
    fn check_writing(&mut self, now: Millis, service: &mut Service<'_>) {
        let limits = service.limits();
        let waits = self.is_blocked
            || (self.window.is_closed() && self.streams.values().any(|s| matches!(s.sending, Sending::Body(_))));
        let stall = millis(limits.write_stall_timeout);
        if !waits {
            self.progress = Progress::new(now, self.gathered);
        } else if let Some(next) = self.progress.check(now, self.gathered, limits.write_progress_min, stall) {
            self.look_at(next);
        } else {
            service.counters.timeouts.add(1);
            self.abandon_all(service);
            self.end = Some(Close::Abort);
        }
    }

    /// The connection is gone: notifies whoever waits for it.
    pub(crate) fn release(&mut self, service: &mut Service<'_>) {
        let ids: Vec<u32> = self.streams.keys().copied().collect();
        for id in ids {
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            // An endless stream ends when the client leaves: that is no abort.
            let is_endless = match &mut stream.sending {
                Sending::Waiting(body, _) | Sending::Body(body) => body.hang_up(),
                _ => false,
            };
            let ending = if is_endless { Ending::Complete } else { Ending::Aborted };
            self.drop_stream(id, How::ByClient, ending, service);
        }
    }
}
