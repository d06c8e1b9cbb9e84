//! Answers of HTTP/1 connections on their way: who sends them, what they wait for, and until when.

use std::io;
use std::mem;

use super::Shard;
use super::send::Sent;
use super::slots::{After, Delivery, Slot};
use crate::io::clock::millis;
use crate::io::driver::Driver;
use crate::io::out_buf::OutBuf;
use crate::io::over::{Close, Next, Over};
use crate::limits::{LAST_TRY, SOURCE_WAIT_MAX};
use crate::message::body::source::BodyWaker;
use crate::message::departure::Here;
use crate::run::closing::End;
use crate::run::connection::Connection;
use crate::run::event::Event;
use crate::run::http1::{Act, Input};
use crate::run::job::Job;
use crate::run::transmit::Outgoing;

impl<D: Driver<Connection>> Shard<D> {
    /// The gathered responses could not be sent at once; `act` follows them.
    #[cold]
    pub(super) fn wait_to_send(&mut self, slot: &mut Slot, unsent: Sent, act: Act, input: &mut Input<'_>) {
        self.tell_again(slot, Event::Unsent, input);
        let after = match act {
            Act::End(end) => After::Close(end.close),
            Act::Later(late) => After::Late(late),
            _ => After::Next,
        };
        self.follow(slot, unsent, after);
    }

    /// The gathered responses are sent, or wait to be; `after` follows them.
    fn follow(&mut self, slot: &mut Slot, sent: Sent, after: After) {
        match (sent, after) {
            (Sent::Broken, _) => slot.is_gone = true,
            (Sent::Later, after) => slot.delivery = Delivery::InFlight(after),
            (Sent::Blocked(mut outgoing), after) => {
                match after {
                    After::Next => {}
                    After::Close(_) => outgoing.keep_alive = false,
                    After::Late(late) => outgoing.late = Some(late),
                }
                self.await_room(slot, outgoing);
            }
            (Sent::All, After::Late(late)) => self.await_late(slot, *late),
            (Sent::All, After::Next) => self.on(slot, Event::Answered(None)),
            (Sent::All, After::Close(close)) => self.on(slot, Event::Answered(Some(close))),
        }
    }

    /// An asynchronous send has completed, wholly or in part.
    pub(super) fn on_sent(&mut self, slot: &mut Slot, result: io::Result<()>, buf: OutBuf) {
        slot.held.set(0);
        let Delivery::InFlight(after) = mem::take(&mut slot.delivery) else { return };
        let sent = match result {
            Ok(()) if buf.is_empty() => {
                self.local.reuse(buf);
                Sent::All
            }
            result => {
                *self.local.out = buf;
                match result {
                    Ok(()) => self.send_sealed(slot),
                    Err(error) => self.unsent(slot, &error),
                }
            }
        };
        self.follow(slot, sent, after);
    }

    /// Starts a response whose body is not in memory. Returns how it ended if it is sent already.
    ///
    /// `files_sent`: bytes of files that the shard has sent itself for this connection in this turn. A client that
    /// requests many files at once must not delay the others.
    pub(super) fn begin_answer(
        &mut self,
        slot: &mut Slot,
        mut outgoing: Box<Outgoing>,
        files_sent: &mut u64,
    ) -> Option<Over> {
        match self.send_at_once(slot, &mut outgoing, files_sent) {
            Some(next) => self.after_piece(slot, outgoing, next),
            None => {
                self.go_on_by_worker(slot, outgoing);
                None
            }
        }
    }

    /// A job could not send everything, and has returned the lease.
    pub(super) fn on_handed(&mut self, slot: &mut Slot, outgoing: Box<Outgoing>) {
        slot.connection.lease.take_back();
        if outgoing.is_waiting() { self.await_source(slot, outgoing) } else { self.await_room(slot, outgoing) }
    }

    /// Sends the next piece of a response: the shard itself if it is in memory, a worker if it may have to be read.
    pub(super) fn drive(&mut self, slot: &mut Slot) {
        let (mut outgoing, was_at_socket) = match mem::take(&mut slot.delivery) {
            Delivery::AtSocket(outgoing) => (outgoing, true),
            Delivery::AtSource(outgoing) => (outgoing, false),
            other => return slot.delivery = other,
        };
        let over = match self.send_next(slot, &mut outgoing) {
            None => return self.go_on_by_worker(slot, outgoing),
            // The deadline stays the same, and the socket may have room: only a full one reports that it is writable again.
            Some(Next::AtRoom | Next::AtOnce) if was_at_socket => {
                slot.delivery = Delivery::AtSocket(outgoing);
                return self.await_writable(slot);
            }
            Some(next) => self.after_piece(slot, outgoing, next),
        };
        if let Some(over) = over {
            self.on(slot, Event::Answered(over.close));
        }
    }

    /// A piece of a response was sent, or failed. Returns how the response ended, unless it or another one follows.
    fn after_piece(&mut self, slot: &mut Slot, mut outgoing: Box<Outgoing>, next: Next) -> Option<Over> {
        match next {
            Next::Over(over) => {
                let late = outgoing.late.take().filter(|_| over.close.is_none());
                let (buffer, _) = mem::take(&mut *outgoing).into_buffers();
                self.local.reuse(buffer);
                match late {
                    Some(late) => self.await_late(slot, *late),
                    None => return Some(over),
                }
            }
            Next::AtSource => self.await_source(slot, outgoing),
            Next::AtRoom | Next::AtOnce => self.await_room(slot, outgoing),
        }
        None
    }

    /// Makes a response wait for the socket.
    fn await_room(&mut self, slot: &mut Slot, mut outgoing: Box<Outgoing>) {
        // It may have passed already; then it is the next event.
        let stall = millis(self.local.server.limits.write_stall_timeout);
        outgoing.until = outgoing.progress(self.local.now).until(stall);
        slot.delivery = Delivery::AtSocket(outgoing);
        self.await_writable(slot);
    }

    /// Makes a response wait for its source.
    fn await_source(&mut self, slot: &mut Slot, mut outgoing: Box<Outgoing>) {
        let at_most = outgoing.wait(BodyWaker(slot.connection.address(0)));
        if at_most.is_zero() {
            // Through the queue: a source that alternates all the time must not occupy the shard.
            return self.go_on_by_worker(slot, outgoing);
        }
        outgoing.until = self.local.now + millis(at_most.min(SOURCE_WAIT_MAX)).max(1);
        slot.delivery = Delivery::AtSource(outgoing);
        if self.stopping || slot.has_ended {
            self.hang_up(slot);
        }
    }

    /// Queues the next piece of a response for a worker.
    fn go_on_by_worker(&mut self, slot: &mut Slot, mut outgoing: Box<Outgoing>) {
        if outgoing.here.is_none() {
            // An answer to no request that a job had: it has begun.
            let here = Here::new(false);
            slot.departure = here.departure().clone();
            outgoing.here = Some(here);
        }
        let lease = self.give_lease(slot);
        self.local.server.pool.push_continued(Job::Continue { lease, outgoing });
    }

    /// The client has ended its input, or the connection is broken.
    pub(super) fn on_no_more_input(&mut self, slot: &mut Slot, is_broken: bool) {
        // A running job gets the error when it sends.
        slot.is_gone |= is_broken && slot.delivery.is_here();
        self.hang_up(slot);
    }

    /// Ends an endless body, because the client has ended its input or the server stops.
    pub(super) fn hang_up(&mut self, slot: &mut Slot) {
        let Delivery::AtSource(outgoing) = &mut slot.delivery else { return };
        if slot.is_gone || !outgoing.hang_up() {
            return;
        }
        if slot.has_ended {
            // Clients of endless streams do not end their side of the connection before they leave.
            slot.is_gone = true;
        } else if let Delivery::AtSource(outgoing) = mem::take(&mut slot.delivery) {
            self.go_on_by_worker(slot, outgoing);
        }
    }

    /// The deadline of an answer may have passed.
    pub(super) fn look_at_delivery(&mut self, slot: &mut Slot) {
        let now = self.local.now;
        match &mut slot.delivery {
            Delivery::InFlight(_) if slot.deadline <= now => self.stalled(slot),
            Delivery::AtSource(outgoing) if outgoing.until <= now => self.drive(slot),
            Delivery::AtSocket(outgoing) if outgoing.until <= now => {
                let limits = &self.local.server.limits;
                let (sent, progress) = (outgoing.sent(), outgoing.progress(now));
                let stall = millis(limits.write_stall_timeout);
                if let Some(next) = progress.check(now, sent, limits.write_progress_min, stall) {
                    outgoing.until = next;
                } else if progress.has_last_try() {
                    // A socket counts as writable only when a third of its buffer is free, which takes a while with a slow
                    // client. Trying to send shows what the client has taken meanwhile.
                    outgoing.until = now + millis(LAST_TRY);
                    self.drive(slot);
                } else {
                    self.stalled(slot);
                }
            }
            _ => {}
        }
    }

    /// The client does not read its response.
    fn stalled(&mut self, slot: &mut Slot) {
        self.local.counters.timeouts.add(1);
        if let Delivery::AtSocket(mut outgoing) = mem::take(&mut slot.delivery) {
            self.local.server.record_outgoing(&self.local.counters, &mut outgoing, true);
        }
        self.end(slot, End { close: Close::Abort, is_read: false, unread: None });
    }

    /// The connection is gone.
    pub(super) fn release_delivery(&mut self, delivery: Delivery) {
        if let Delivery::AtSocket(mut outgoing) | Delivery::AtSource(mut outgoing) = delivery {
            // An endless stream ends when the client leaves: that is no abort.
            let aborted = !outgoing.hang_up();
            self.local.server.record_outgoing(&self.local.counters, &mut outgoing, aborted);
        }
    }
}
