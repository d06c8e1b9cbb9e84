//! HTTP/1 connections: the shard passes events to them, and performs the actions they return.

use std::io;

use super::Shard;
use super::send::Sent;
use super::service::{At, Exchanged, answer_to};
use super::slots::{Protocol, Slot};
use crate::RequestBody;
use crate::http1::conn::{Act, Body, Close, Conn, Input, Next, Request};
use crate::http1::response_head::AnswerTo;
use crate::io::driver::{Driver, Op};
use crate::limits::HANDSHAKE_INPUT_MAX;
use crate::message::departure::Here;
use crate::observe::access_log::Watch;
use crate::run::answer_context::AnswerContext;
use crate::run::connection::Connection;
use crate::run::job::Job;
use crate::run::lease::Holder;
use crate::run::reply::Reply;
use crate::run::transmit::{Outgoing, encode};

const _: () = assert!(size_of::<Act<Exchanged>>() <= 64, "it is moved for every request");

impl<D: Driver<Connection>> Shard<D> {
    #[inline(never)]
    pub(super) fn on_received_again(&mut self, slot: &mut Slot, bytes: &[u8]) {
        self.on_received(slot, bytes);
    }

    /// Handles received bytes; none is the end of input.
    #[inline(always)]
    pub(super) fn on_received(&mut self, slot: &mut Slot, bytes: &[u8]) {
        slot.receiving = false;
        if bytes.is_empty() {
            return self.on_input_end(slot);
        }
        self.local.counters.bytes_received.add(bytes.len() as u64);
        if slot.connection.tls.is_some() {
            return self.on_ciphertext(slot, bytes);
        }
        self.on_plaintext(slot, bytes);
    }

    /// Handles decrypted bytes from the client.
    #[inline(always)]
    pub(super) fn on_plaintext(&mut self, slot: &mut Slot, bytes: &[u8]) {
        match &mut slot.protocol {
            Protocol::Http1(conn) => {
                if conn.may_be_answered() && slot.connection.lease.wait_for() == Holder::Shard {
                    conn.answered_quietly(&self.local.at(&slot.connection));
                }
                self.http1(slot, bytes, |conn, input, at| conn.received(input, at));
            }
            Protocol::Http2(_) => self.http2(slot, |conn, at| conn.received(bytes, at)),
            Protocol::ProxyHeader(_) => self.on_proxy_header(slot, bytes),
            // No plaintext arrives before the handshake is complete.
            Protocol::Handshake { .. } => {}
            Protocol::WebSocket { .. } => self.on_websocket_bytes(slot, bytes),
            Protocol::Closing(closing) => slot.is_gone |= !closing.discard(bytes, &self.local.server.limits),
        }
    }

    /// The client has ended its input. It may still read.
    #[inline(never)]
    pub(super) fn on_input_end(&mut self, slot: &mut Slot) {
        self.on_reading_over(slot, io::ErrorKind::UnexpectedEof);
    }

    /// Receiving failed: the connection is gone.
    pub(super) fn on_broken(&mut self, slot: &mut Slot, error: &io::Error) {
        tracing::trace!(%error, "a connection broke");
        slot.receiving = false;
        self.tell_departed(slot);
        self.on_reading_over(slot, io::ErrorKind::ConnectionReset);
    }

    fn on_reading_over(&mut self, slot: &mut Slot, reason: io::ErrorKind) {
        match &mut slot.protocol {
            Protocol::Http1(_) => self.http1(slot, &[], |conn, _, at| conn.input_ended(reason, at)),
            Protocol::Http2(_) => {
                self.http2(slot, |conn, at| conn.input_ended(reason == io::ErrorKind::ConnectionReset, at));
            }
            Protocol::WebSocket { .. } => self.on_websocket_end(slot),
            Protocol::ProxyHeader(_) | Protocol::Closing(_) => slot.is_gone = true,
            Protocol::Handshake { has_ended, .. } => {
                *has_ended = true;
                slot.is_gone |= slot.connection.lease.wait_for() == Holder::Shard;
            }
        }
    }

    /// A job is done, and has returned the lease.
    pub(super) fn on_finished(&mut self, slot: &mut Slot, close: Option<Close>) {
        slot.connection.lease.take_back();
        if let Protocol::Handshake { .. } = slot.protocol {
            // Its job panicked.
            slot.connection.socket.abort();
            slot.is_gone = true;
        }
        self.http1(slot, &[], |conn, input, at| conn.answered(close, input, at));
    }

    /// A job could not send everything, and has returned the lease.
    pub(super) fn on_outgoing(&mut self, slot: &mut Slot, outgoing: Box<Outgoing>) {
        slot.connection.lease.take_back();
        self.http1(slot, &[], |conn, _, at| conn.handed_back(outgoing, at));
    }

    /// The socket is writable again, or (`source`) the source of a response has data again.
    pub(super) fn on_writable(&mut self, slot: &mut Slot, source: bool) {
        match &slot.protocol {
            Protocol::Http1(_) => self.http1(slot, &[], |conn, _, _| conn.writable(source)),
            Protocol::Http2(_) => self.on_http2_writable(slot),
            Protocol::WebSocket { .. } if !source => self.look_at_websocket(slot, true),
            Protocol::WebSocket { .. }
            | Protocol::Handshake { .. }
            | Protocol::ProxyHeader(_)
            | Protocol::Closing(_) => {}
        }
    }

    /// Passes `event` to an HTTP/1 connection, with its unused input and `bytes`, and performs what follows.
    #[inline(always)]
    pub(super) fn http1(
        &mut self,
        slot: &mut Slot,
        bytes: &[u8],
        event: impl FnOnce(&mut Conn<Exchanged>, &mut Input<'_>, &mut At<'_>) -> Act<Exchanged>,
    ) {
        let Protocol::Http1(conn) = &mut slot.protocol else { return };
        if slot.is_gone {
            return;
        }
        let mut kept = conn.take_input();
        if kept.is_empty() {
            let mut input = Input::new(bytes);
            let act = event(conn, &mut input, &mut self.local.at(&slot.connection));
            self.perform(slot, act, &mut input);
            if !input.rest().is_empty() {
                keep(slot, input.rest().to_vec(), 0);
            }
            return;
        }
        kept.extend_from_slice(bytes);
        let mut input = Input::new(&kept);
        let act = event(conn, &mut input, &mut self.local.at(&slot.connection));
        self.perform_again(slot, act, &mut input);
        let used = input.used();
        keep(slot, kept, used);
    }

    #[inline(never)]
    fn perform_again(&mut self, slot: &mut Slot, act: Act<Exchanged>, input: &mut Input<'_>) {
        self.perform(slot, act, input);
    }

    /// Performs a connection's actions until it waits.
    #[inline(always)]
    fn perform(&mut self, slot: &mut Slot, mut act: Act<Exchanged>, input: &mut Input<'_>) {
        let mut files_sent = 0;
        loop {
            act = match act {
                Act::Wait => return,
                Act::Write(then) => {
                    let sent = self.send(slot);
                    let Protocol::Http1(conn) = &mut slot.protocol else { return };
                    let mut at = self.local.at(&slot.connection);
                    match sent {
                        Sent::All => conn.sent(then, input, &mut at),
                        Sent::Later => conn.sending(None, then, &at),
                        Sent::Blocked(rest) => conn.sending(Some(rest), then, &at),
                        Sent::Broken => Act::Drop,
                    }
                }
                other => match self.perform_other(slot, other, input, &mut files_sent) {
                    Act::Wait => return,
                    act => act,
                },
            };
        }
    }

    #[inline(never)]
    fn perform_other(
        &mut self,
        slot: &mut Slot,
        act: Act<Exchanged>,
        input: &mut Input<'_>,
        files_sent: &mut u64,
    ) -> Act<Exchanged> {
        match act {
            Act::Wait | Act::Write(_) => return act,
            Act::Answer(outgoing) => return self.begin_answer(slot, outgoing, input, files_sent),
            Act::Drive => return self.drive(slot, input),
            Act::Job(request) => return self.dispatch(slot, request, input),
            Act::Continue(outgoing) => self.go_on_by_worker(slot, outgoing),
            Act::Later(mut late) => {
                let here = slot.await_answer(late.context.to.version);
                late.context = late.context.with(here);
                // Until it comes, the connection counts as held by a job, although no worker has one.
                self.wait_for_late(Reply::dispatch(&slot.connection), *late);
            }
            Act::AwaitRoom => self.submit(Op::AwaitWritable(slot.token())),
            Act::End(mut end) => {
                end.is_read &= input.rest().is_empty();
                self.end(slot, end);
            }
            Act::Drop => slot.is_gone = true,
        }
        Act::Wait
    }

    /// Registers what a connection waits for, once there are no more actions.
    #[inline(always)]
    pub(super) fn settle(&mut self, slot: &mut Slot) {
        if slot.is_gone {
            return;
        }
        let wants_read = loop {
            match &mut slot.protocol {
                Protocol::Http1(conn) => {
                    let wants = conn.wants(slot.receiving, self.stopping);
                    if wants.answer && slot.connection.lease.wait_for() == Holder::Shard {
                        // The job has ended without a message.
                        self.http1(slot, &[], |conn, input, at| conn.answered(None, input, at));
                        if slot.is_gone {
                            return;
                        }
                        continue;
                    }
                    slot.deadline = wants.deadline;
                    break wants.read;
                }
                Protocol::Http2(http2) => {
                    let wants = http2.conn.wants();
                    slot.deadline = wants.deadline;
                    break wants.read;
                }
                Protocol::ProxyHeader(_) | Protocol::Closing(_) => break true,
                Protocol::Handshake { input, has_ended } => break !*has_ended && input.len() < HANDSHAKE_INPUT_MAX,
                Protocol::WebSocket { stream, .. } => break stream.wants_input(),
            }
        };
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
    fn dispatch(&mut self, slot: &mut Slot, request: Request<Exchanged>, input: &mut Input<'_>) -> Act<Exchanged> {
        let Request { bytes, head, body } = request;
        let connection = slot.connection.clone();
        let to = answer_to(&head);
        let (body, pipe) = match body {
            Body::None => (RequestBody::default(), None),
            Body::Buffered(body) => {
                let (body, trailers) = *body;
                (RequestBody::buffered(body, trailers), None)
            }
            Body::Streamed(pipe) => (RequestBody::streamed(pipe.clone()), Some(pipe)),
        };
        let mut request = crate::Request::new(bytes, head.parts, connection.remote().clone(), body);
        let streamed = pipe.is_some();
        let context = AnswerContext::new(to, pipe).with(slot.await_answer(to.version));
        request.departure = slot.departure.clone();
        let reply_to = Reply::dispatch(&slot.connection);
        match self.queue(reply_to, request, context) {
            Ok(()) => {
                let Protocol::Http1(conn) = &mut slot.protocol else { return Act::Wait };
                conn.dispatched(input, &mut self.local.at(&slot.connection))
            }
            Err(call) => {
                self.local.counters.overloaded.add(1);
                call.reply_to.give_up();
                self.refuse(slot, to, call.context.watch, streamed)
            }
        }
    }

    /// Answers 503 because the queue is full.
    fn refuse(
        &mut self,
        slot: &mut Slot,
        mut to: AnswerTo,
        watch: Option<Box<Watch>>,
        streamed: bool,
    ) -> Act<Exchanged> {
        to.keep_alive &= !streamed;
        let local = &mut self.local;
        let encoded = encode(local.server.overloaded.clone().into(), to, &mut local.out);
        local.server.record(&local.counters, encoded.status.as_u16(), local.out.len() as u64, false, watch);
        let Protocol::Http1(conn) = &mut slot.protocol else { return Act::Wait };
        conn.refused(encoded.keep_alive)
    }

    /// Queues the next piece of a response for a worker.
    pub(super) fn go_on_by_worker(&mut self, slot: &mut Slot, mut outgoing: Box<Outgoing>) {
        if outgoing.here.is_none() {
            // An answer to no request that a job had: it has begun.
            let here = Here::new(false);
            slot.departure = here.departure().clone();
            outgoing.here = Some(here);
        }
        let lease = Reply::dispatch(&slot.connection);
        self.local.server.pool.push_continued(Job::Continue { lease, outgoing });
    }

    /// Starts a response whose body is not in memory.
    ///
    /// `files_sent`: bytes of files that the shard has sent itself for this connection in this turn. A client that
    /// requests many files at once must not delay the others.
    fn begin_answer(
        &mut self,
        slot: &mut Slot,
        mut outgoing: Box<Outgoing>,
        input: &mut Input<'_>,
        files_sent: &mut u64,
    ) -> Act<Exchanged> {
        let next = self.send_at_once(slot, &mut outgoing, files_sent);
        let Protocol::Http1(conn) = &mut slot.protocol else { return Act::Wait };
        let Some(next) = next else {
            let act = conn.handed_over(&self.local.at(&slot.connection));
            self.go_on_by_worker(slot, outgoing);
            return act;
        };
        if let Next::Over(_) = next {
            let (buffer, _) = std::mem::take(&mut *outgoing).into_buffers();
            self.local.reuse(buffer);
        }
        conn.began(next, outgoing, input, &mut self.local.at(&slot.connection))
    }

    /// Sends the next piece of a connection's response: the shard itself if it is in memory, a worker if it may have to
    /// be read.
    fn drive(&mut self, slot: &mut Slot, input: &mut Input<'_>) -> Act<Exchanged> {
        let next = self.send_next(slot);
        let Protocol::Http1(conn) = &mut slot.protocol else { return Act::Wait };
        let mut at = self.local.at(&slot.connection);
        match next {
            Some(next) => conn.drove(next, input, &mut at),
            None => conn.go_on_by_worker(&at),
        }
    }
}

/// Stores the input that an event did not use.
fn keep(slot: &mut Slot, input: Vec<u8>, used: usize) {
    if let Some(conn) = slot.http1() {
        conn.keep(input, used);
    }
}
