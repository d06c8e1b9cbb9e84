//! HTTP/2 connections: the shard passes events to them, and is their only writer.

use std::io;
use std::sync::Arc;

use crate::io::driver::Driver;
use crate::io::out_buf::OutBuf;
use crate::io::over::Close;
use crate::limits::{HTTP2_BYTES_AT_ONCE, HTTP2_BYTES_PER_TURN, SEAL_IN_PLACE_QUANTUM, SEAL_QUANTUM};
use crate::message::departure::Departure;
use crate::run::answer_context::AnswerContext;
use crate::run::closing::End;
use crate::run::connection::Connection;
use crate::run::event::Event;
use crate::run::http2::conn::{Conn, Wants};
use crate::run::intake::Request;
use crate::run::job::{Job, Work};
use crate::run::reply::Reply;
use crate::run::service::{Service, answer_to};
use crate::run::shard::Shard;
use crate::run::shard::slots::{Http2, Protocol, Slot};
use crate::tls::layout::Layout;

/// The result of writing.
enum Written {
    All,
    /// The socket is full.
    Blocked,
    /// Other connections have their turn.
    InTurn,
    Broken,
}

impl<D: Driver<Connection>> Shard<D> {
    /// Tells an HTTP/2 connection, and performs what follows.
    pub(in crate::run::shard) fn on_http2(&mut self, slot: &mut Slot, event: Event<'_>) {
        let Protocol::Http2(http2) = &mut slot.protocol else { return };
        match event {
            _ if slot.is_gone => {}
            Event::Writable => self.await_turn(slot),
            event => {
                http2.wants = http2.conn.on(event, &mut self.local.at(&slot.connection));
                self.look_at_http2(slot, false);
            }
        }
    }

    /// Performs what an HTTP/2 connection wants. `has_control`: TLS has messages to send.
    pub(in crate::run::shard) fn look_at_http2(&mut self, slot: &mut Slot, has_control: bool) {
        let Protocol::Http2(http2) = &slot.protocol else { return };
        // Others have waited for longer.
        let budget = if http2.awaits_turn { 0 } else { HTTP2_BYTES_AT_ONCE };
        self.send_http2(slot, budget, has_control);
    }

    /// Lets the HTTP/2 connections with more to send do so, until the bytes of the turn are used up.
    pub(in crate::run::shard) fn send_http2_in_turn(&mut self) {
        while self.bytes_left > 0
            && let Some(token) = self.http2_turns.pop_front()
        {
            self.with(token, |shard, slot| {
                let Protocol::Http2(http2) = &mut slot.protocol else { return };
                http2.awaits_turn = false;
                shard.send_http2(slot, HTTP2_BYTES_PER_TURN, false);
            });
        }
    }

    /// The socket is writable again, or may be.
    pub(in crate::run::shard) fn await_turn(&mut self, slot: &mut Slot) {
        if let Protocol::Http2(http2) = &mut slot.protocol
            && !std::mem::replace(&mut http2.awaits_turn, true)
        {
            self.http2_turns.push_back(slot.connection.token);
        }
    }

    /// Performs what an HTTP/2 connection wants, and sends up to about `budget` bytes.
    fn send_http2(&mut self, slot: &mut Slot, budget: usize, must_write: bool) {
        self.act_on_http2(slot, budget, must_write);
        let held = match &mut slot.protocol {
            Protocol::Http2(http2) => {
                slot.connection.holding().fit(&mut http2.wire.memory);
                http2.conn.memory() + http2.wire.memory.capacity()
            }
            _ => 0,
        };
        slot.held.set(held);
    }

    fn act_on_http2(&mut self, slot: &mut Slot, mut budget: usize, mut must_write: bool) {
        self.do_stream_work(slot);
        loop {
            let had = budget;
            let written = self.write_http2(slot, &mut budget, must_write);
            self.bytes_left = self.bytes_left.saturating_sub((had - budget) as u64);
            must_write = false;
            // What was sent may have made room for work.
            if self.do_stream_work(slot) {
                continue;
            }
            let Protocol::Http2(http2) = &mut slot.protocol else { return };
            let is_blocked = matches!(written, Written::Blocked);
            if std::mem::replace(&mut http2.is_blocked, is_blocked) != is_blocked {
                let event = if is_blocked { Event::Unsent } else { Event::Ready };
                http2.wants = http2.conn.on(event, &mut self.local.at(&slot.connection));
            }
            let wants = http2.wants;
            (slot.deadline, slot.wants_read) = (wants.deadline, wants.read);
            let aborts = wants.end == Some(Close::Abort);
            match written {
                Written::Broken => slot.is_gone = true,
                Written::Blocked if !aborts => {
                    self.await_writable(slot);
                }
                Written::InTurn if !aborts => self.await_turn(slot),
                Written::All | Written::Blocked | Written::InTurn => {
                    if let Some(close) = wants.end {
                        self.end(slot, End { close, is_read: false, unread: None });
                    }
                }
            }
            return;
        }
    }

    /// Queues the connection's work for other threads; `false` if there is none.
    fn do_stream_work(&mut self, slot: &mut Slot) -> bool {
        let connection = slot.connection.clone();
        let mut has_done = false;
        while let Some(work) = self.local.work.pop_front() {
            has_done = true;
            match work {
                Work::Request { stream, request, departure } => {
                    if !self.dispatch_stream(&connection, stream, request, departure)
                        && let Protocol::Http2(http2) = &mut slot.protocol
                    {
                        http2.wants = http2.conn.on(Event::Refused(stream), &mut self.local.at(&connection));
                    }
                }
                Work::Later { stream, mut later, departure } => {
                    let reply_to = Reply::on_stream(&connection, stream);
                    later.context.departure = departure;
                    self.wait_for_late(reply_to, *later);
                }
                Work::Make { stream, maker, quantum, departure } => {
                    let reply_to = Reply::on_stream(&connection, stream);
                    let make = Job::Make { reply_to, maker, quantum, departure };
                    self.local.server.pool.push_continued(make);
                }
            }
        }
        has_done
    }

    /// Queues a request for the workers; `false` if the queue is full.
    fn dispatch_stream(
        &mut self,
        connection: &Arc<Connection>,
        stream: u32,
        request: Request,
        departure: Departure,
    ) -> bool {
        let to = answer_to(&request.head);
        let (request, pipe) = Self::to_handle(connection, stream, request, departure.clone());
        let reply_to = Reply::on_stream(connection, stream);
        let context = AnswerContext { departure, ..AnswerContext::new(to, pipe) };
        match self.queue(reply_to, request, context) {
            Ok(()) => true,
            Err(call) => {
                call.reply_to.give_up();
                false
            }
        }
    }

    /// Sends as much as the socket takes, within `budget`.
    fn write_http2(&mut self, slot: &mut Slot, budget: &mut usize, mut must_write: bool) -> Written {
        let connection = &slot.connection;
        let Protocol::Http2(http2) = &mut slot.protocol else { return Written::All };
        let Http2 { conn, wants, wire, .. } = &mut **http2;
        if slot.awaits_room {
            return Written::Blocked;
        }
        loop {
            while !wire.is_empty() {
                match connection.socket.send_buf(wire) {
                    Ok(sent) => *budget = budget.saturating_sub(sent),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Written::Blocked,
                    Err(error) => {
                        tracing::trace!(%error, "a connection broke while a response was sent");
                        return Written::Broken;
                    }
                }
            }
            if !conn.has_output() && !must_write {
                // The memory of sent bytes is reused for the next connection.
                if wire.memory.capacity() > self.wire.capacity() {
                    std::mem::swap(&mut wire.memory, &mut self.wire);
                }
                *wire = OutBuf::default();
                return Written::All;
            }
            if *budget == 0 {
                return Written::InTurn;
            }
            must_write = false;
            if wire.memory.capacity() == 0 {
                wire.memory = std::mem::take(&mut self.wire);
            }
            match gather(conn, wire, *budget, &mut self.local.at(connection)) {
                Ok(after) => *wants = after,
                Err(error) => {
                    tracing::debug!(%error, "output could not be encrypted");
                    return Written::Broken;
                }
            }
        }
    }
}

/// Produces the next records, of no more than about `most` bytes. Each holds one full DATA frame if there is enough data.
fn gather(conn: &mut Conn, wire: &mut OutBuf, most: usize, at: &mut Service<'_>) -> io::Result<Wants> {
    let connection = at.connection;
    let expected = conn.output_hint();
    let most = most.min(connection.holding().at_once(SEAL_IN_PLACE_QUANTUM));
    match &connection.tls {
        Some(tls) if tls.seals_in_place(expected as u64) => {
            let mut layout = Layout::new(&mut wire.memory, expected.min(most));
            let wants = conn.gather(&mut layout, most, at);
            layout.finish();
            tls.seal_in_place(&connection.socket, &mut wire.memory)?;
            wire.sent = 0;
            Ok(wants)
        }
        _ => {
            wire.clear();
            let wants = conn.gather(&mut wire.memory, most.min(SEAL_QUANTUM), at);
            connection.seal(wire)?;
            Ok(wants)
        }
    }
}
