//! HTTP/1 connections: the shard passes events to them, and performs the actions they return.

use std::io;

use crate::http1::response_head::AnswerTo;
use crate::io::driver::{Driver, Op};
use crate::io::over::Close;
use crate::limits::HANDSHAKE_INPUT_MAX;
use crate::message::carrier::Nudge;
use crate::run::answer_context::{AnswerContext, PendingLate};
use crate::run::connection::Connection;
use crate::run::event::Event;
use crate::run::http1::{Act, Input, Wants};
use crate::run::intake::Request;
use crate::run::lease::Holder;
use crate::run::mailbox::Note;
use crate::run::reply::Reply;
use crate::run::service::answer_to;
use crate::run::shard::Shard;
use crate::run::shard::send::Sent;
use crate::run::shard::slots::{Delivery, Protocol, Slot};
use crate::run::transmit::encode;

const _: () = assert!(size_of::<Act>() <= 64, "it is moved for every request");

impl<D: Driver<Connection>> Shard<D> {
    #[inline(never)]
    pub(in crate::run::shard) fn on_received_again(&mut self, slot: &mut Slot, bytes: &[u8]) {
        self.on_received(slot, bytes);
    }

    /// Handles received bytes; none is the end of input.
    #[inline(always)]
    pub(in crate::run::shard) fn on_received(&mut self, slot: &mut Slot, bytes: &[u8]) {
        slot.receiving = false;
        if bytes.is_empty() {
            return self.on_input_end(slot, io::ErrorKind::UnexpectedEof);
        }
        self.local.counters.bytes_received.add(bytes.len() as u64);
        if slot.connection.tls.is_some() {
            return self.on_ciphertext(slot, bytes);
        }
        match slot.protocol {
            Protocol::Http1(_) => self.on_http1(slot, Event::Received(bytes)),
            _ => self.on(slot, Event::Received(bytes)),
        }
    }

    /// Receiving failed: the connection is gone.
    pub(in crate::run::shard) fn on_broken(&mut self, slot: &mut Slot, error: &io::Error) {
        tracing::trace!(%error, "a connection broke");
        slot.receiving = false;
        self.tell_departed(slot);
        self.on_input_end(slot, io::ErrorKind::ConnectionReset);
    }

    /// The client has ended its input, or the connection broke.
    #[inline(never)]
    pub(in crate::run::shard) fn on_input_end(&mut self, slot: &mut Slot, reason: io::ErrorKind) {
        slot.has_ended = true;
        self.on(slot, Event::InputEnded(reason));
    }

    /// Tells an HTTP/1 connection, and whoever sends its answer.
    #[inline(always)]
    pub(in crate::run::shard) fn on_http1(&mut self, slot: &mut Slot, event: Event<'_>) {
        match event {
            Event::Received(bytes) => self.http1(slot, bytes, event),
            event => self.on_http1_otherwise(slot, event),
        }
    }

    #[inline(never)]
    fn on_http1_otherwise(&mut self, slot: &mut Slot, event: Event<'_>) {
        match event {
            Event::InputEnded(reason) => {
                self.http1(slot, &[], event);
                self.on_no_more_input(slot, reason == io::ErrorKind::ConnectionReset);
            }
            Event::Writable => self.drive(slot),
            Event::Noted(_, note) => self.on_note(slot, note),
            Event::Tick => {
                self.look_at_delivery(slot);
                self.http1(slot, &[], event);
            }
            Event::Stop => {
                self.http1(slot, &[], event);
                self.hang_up(slot);
            }
            event => self.http1(slot, &[], event),
        }
    }

    /// Handles what another thread says.
    fn on_note(&mut self, slot: &mut Slot, note: Note) {
        match note {
            Note::Finished(close) => self.on_finished(slot, close),
            Note::Lost => self.on_finished(slot, Some(Close::Abort)),
            Note::Handed(outgoing) => self.on_handed(slot, outgoing),
            Note::Upgraded(socket) => self.on_upgraded(slot, socket),
            Note::Nudge(Nudge::Source) if slot.delivery.is_at_source() => self.drive(slot),
            note => self.http1(slot, &[], Event::Noted(0, note)),
        }
    }

    /// Has the driver report when the socket is writable.
    pub(in crate::run::shard) fn await_writable(&mut self, slot: &mut Slot) {
        if !std::mem::replace(&mut slot.awaits_room, true) {
            self.submit(Op::AwaitWritable(slot.token()));
        }
    }

    /// A job is done, and has returned the lease.
    fn on_finished(&mut self, slot: &mut Slot, close: Option<Close>) {
        slot.take_lease_back();
        self.http1(slot, &[], Event::Answered(close));
    }

    /// Finds out whether the job of an HTTP/1 connection has ended without a message. Asked before every event; a connection that
    /// waits for that end [gets](Wants::answer) a message.
    #[inline(always)]
    pub(in crate::run::shard) fn find_quiet_end(&mut self, slot: &mut Slot) {
        if let Protocol::Http1(_) = slot.protocol
            && let Delivery::Away = slot.delivery
            && slot.connection.lease.holder() == Holder::Shard
        {
            slot.delivery = Delivery::Idle;
            let at = slot.connection.idle_since();
            self.tell(slot, Event::AnsweredAt(at), &mut Input::new(&[]));
        }
    }

    /// Tells an HTTP/1 connection; returns its next action.
    #[inline(always)]
    fn tell(&mut self, slot: &mut Slot, event: Event<'_>, input: &mut Input<'_>) -> Act {
        let Protocol::Http1(conn) = &mut slot.protocol else { return Act::Wait };
        let (act, wants) = conn.on(event, input, slot.receiving, &mut self.local.at(&slot.connection));
        Wants { read: slot.wants_read, answer: slot.wants_answer, deadline: slot.deadline } = wants;
        act
    }

    /// The same where little time matters.
    #[inline(never)]
    pub(in crate::run::shard) fn tell_again(
        &mut self,
        slot: &mut Slot,
        event: Event<'_>,
        input: &mut Input<'_>,
    ) -> Act {
        self.tell(slot, event, input)
    }

    /// Passes `event` to an HTTP/1 connection, with its unused input and `bytes`, and performs what follows.
    #[inline(always)]
    fn http1(&mut self, slot: &mut Slot, bytes: &[u8], event: Event<'_>) {
        if slot.is_gone {
            return;
        }
        self.find_quiet_end(slot);
        if slot.input.is_empty() {
            let mut input = Input::new(bytes);
            let act = self.tell(slot, event, &mut input);
            self.perform(slot, act, &mut input);
            if !input.rest().is_empty() {
                slot.input = input.rest().into();
            }
            return;
        }
        let mut kept = std::mem::take(&mut slot.input).into_vec();
        kept.extend_from_slice(bytes);
        let mut input = Input::new(&kept);
        let act = self.tell_again(slot, event, &mut input);
        self.perform_again(slot, act, &mut input);
        let used = input.used();
        kept.drain(..used);
        slot.input = kept.into_boxed_slice();
    }

    #[inline(never)]
    fn perform_again(&mut self, slot: &mut Slot, act: Act, input: &mut Input<'_>) {
        self.perform(slot, act, input);
    }

    /// Performs a connection's actions until it waits. What it has answered is sent before each.
    #[inline(always)]
    fn perform(&mut self, slot: &mut Slot, mut act: Act, input: &mut Input<'_>) {
        let mut files_sent = 0;
        loop {
            if !self.local.out.is_empty() {
                match self.send(slot) {
                    Sent::All => {}
                    unsent => return self.wait_to_send(slot, unsent, act, input),
                }
            }
            act = match act {
                Act::Wait => return,
                other => match self.perform_other(slot, other, input, &mut files_sent) {
                    Some(act) => act,
                    None => return,
                },
            };
        }
    }

    #[inline(never)]
    fn perform_other(&mut self, slot: &mut Slot, act: Act, input: &mut Input<'_>, files_sent: &mut u64) -> Option<Act> {
        match act {
            Act::Wait => {}
            Act::Again => return Some(self.tell_again(slot, Event::Ready, input)),
            Act::Answer(outgoing) => {
                let over = self.begin_answer(slot, outgoing, files_sent)?;
                return Some(self.tell_again(slot, Event::Answered(over.close), input));
            }
            Act::Job(request) => return self.dispatch(slot, request, input),
            Act::Later(late) => self.await_late(slot, *late),
            Act::End(mut end) => {
                end.is_read &= input.rest().is_empty();
                self.end(slot, end);
            }
            Act::Drop => slot.is_gone = true,
        }
        None
    }

    /// The answer to the last request follows later.
    pub(in crate::run::shard) fn await_late(&mut self, slot: &mut Slot, mut late: PendingLate) {
        let here = slot.await_answer(late.context.to.version);
        late.context = late.context.with(here);
        // Until it comes, the connection counts as held by a job, although no worker has one.
        let reply_to = self.give_lease(slot);
        self.wait_for_late(reply_to, late);
    }

    /// Moves the lease into a job.
    pub(in crate::run::shard) fn give_lease(&mut self, slot: &mut Slot) -> Reply {
        debug_assert!(self.local.out.is_empty(), "a job begins before what was answered is sent");
        slot.delivery = Delivery::Away;
        Reply::dispatch(&slot.connection)
    }

    /// Registers what a connection waits for, once there are no more actions.
    #[inline(always)]
    pub(in crate::run::shard) fn settle(&mut self, slot: &mut Slot) {
        if slot.is_gone {
            return;
        }
        while slot.wants_answer && slot.is_away() && slot.connection.lease.wait_for() == Holder::Shard {
            // The job has ended without a message.
            self.http1(slot, &[], Event::Ready);
            if slot.is_gone {
                return;
            }
        }
        let wants_read = match slot.protocol {
            Protocol::Handshake => !slot.has_ended && slot.input.len() < HANDSHAKE_INPUT_MAX,
            _ => slot.wants_read,
        };
        #[cfg(any(test, feature = "sim"))]
        self.check(slot, wants_read);
        if slot.receiving {
            self.watch(slot);
        } else if wants_read {
            self.watch(slot);
            slot.receiving = true;
            slot.look_at = 0;
            self.submit(Op::Receive(slot.token()));
        } else {
            self.look_later(slot);
        }
    }

    /// Queues a request for the workers.
    fn dispatch(&mut self, slot: &mut Slot, request: Request, input: &mut Input<'_>) -> Option<Act> {
        let to = answer_to(&request.head);
        let here = slot.await_answer(to.version);
        let (request, pipe) = Self::to_handle(&slot.connection, 0, request, here.departure().clone());
        let streamed = pipe.is_some();
        let context = AnswerContext::new(to, pipe).with(here);
        let reply_to = self.give_lease(slot);
        match self.queue(reply_to, request, context) {
            Ok(()) => None,
            // The queue is full.
            Err(call) => {
                call.reply_to.give_up();
                slot.delivery = Delivery::Idle;
                let local = &mut self.local;
                local.counters.overloaded.add(1);
                let to = AnswerTo { keep_alive: to.keep_alive && !streamed, ..to };
                let encoded = encode(local.server.overloaded.clone().into(), to, &mut local.out);
                let (status, bytes) = (encoded.status.as_u16(), local.out.len() as u64);
                local.server.record(&local.counters, status, bytes, false, call.context.watch);
                let close = (!encoded.keep_alive).then_some(Close::Clean { large: false });
                Some(self.tell_again(slot, Event::Answered(close), input))
            }
        }
    }
}
