//! What an HTTP/2 connection needs from its server. None of it blocks.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::encode::{Answer, encode};
use crate::http1::ProtoError;
use crate::http1::head::ParsedHead;
use crate::http2::head::HeadBuilder;
use crate::io::output_memory::Holding;
use crate::message::body::memory::Buffered;
use crate::message::body::pipe::BodyPipe;
use crate::message::body::produced::Produced;
use crate::message::carrier::Carrier;
use crate::message::departure::Departure;
use crate::message::panic_guard;
use crate::observe::access_log::Watch;
use crate::run::answer_context::{AnswerContext, PendingLate};
use crate::run::job::Work;
use crate::run::pool::Pool;
use crate::run::service::{Service, answer_to};
use crate::{BodyWaker, HeadRef, Response};

/// The result of [`Service::inline_on_stream`].
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(super) enum Inline {
    Answer(Answer),
    Later(Box<PendingLate>),
    /// A worker must answer it.
    Job,
}

/// How a response ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending<'a> {
    Complete,
    /// The client does not want it, or does not read it.
    Aborted,
    /// Its body failed.
    Failed(&'a io::Error),
}

impl Service<'_> {
    /// Has another thread do work for a stream, once the event is handled.
    pub(super) fn hand_out(&mut self, work: Work) {
        self.local.work.push_back(work);
    }

    /// A builder for a request head, to be returned afterwards.
    pub(super) fn head(&mut self) -> HeadBuilder {
        std::mem::take(&mut self.local.head)
    }

    /// Takes it back.
    pub(super) fn give_head_back(&mut self, head: HeadBuilder) {
        self.local.head = head;
    }

    /// Answers a request without a body inline, if possible. `for_engine`: it is `OPTIONS *`, which is about the server
    /// as a whole.
    pub(super) fn inline_on_stream(&mut self, head: &ParsedHead, bytes: &[u8], for_engine: bool) -> Inline {
        let local = &mut *self.local;
        let view = HeadRef::new(bytes, &head.parts, self.connection.remote());
        let answer = if for_engine { Some(Response::new(StatusCode::NO_CONTENT)) } else { local.call_inline(&view) };
        let Some(mut response) = answer else { return Inline::Job };
        let entry = local.entry(&view);
        local.counters.requests_inline.add(1);
        let watch = Watch::of(entry);
        let to = answer_to(head);
        if let Some(later) = response.late.take() {
            let context = AnswerContext { watch, ..AnswerContext::new(to, None) };
            return Inline::Later(Box::new(PendingLate { later: *later, context }));
        }
        Inline::Answer(encode(response, to.is_head, watch))
    }

    /// The answer to an invalid request.
    pub(super) fn reject_on_stream(&mut self, error: ProtoError, is_head: bool) -> Answer {
        self.local.counters.rejected.add(1);
        encode(self.local.server.reject(error), is_head, None)
    }

    /// Counts a malformed request that is not answered.
    pub(super) fn count_malformed(&self) {
        self.local.counters.rejected.add(1);
    }

    /// The 503 of an overloaded server.
    pub(super) fn overloaded(&mut self, is_head: bool) -> Answer {
        self.local.counters.overloaded.add(1);
        encode(self.local.server.overloaded.clone().into(), is_head, None)
    }

    /// A pipe that starts with the received bytes. `continue_due`: the client waits for `100 Continue`.
    pub(super) fn pipe_on_stream(&self, stream: u32, begun: Buffered, continue_due: bool) -> Arc<BodyPipe> {
        let window = self.local.server.limits.body_window;
        Arc::new(BodyPipe::new(self.carrier(stream), window, continue_due, begun))
    }

    /// What the connection holds for its client.
    pub(super) fn holding(&self) -> &Arc<Holding> {
        self.connection.holding()
    }

    /// Registers a waker with the source of a response; returns the longest wait.
    pub(super) fn wait(&mut self, stream: u32, body: &mut Produced) -> Duration {
        body.wait(BodyWaker(self.connection.address(stream)))
    }

    /// The threads that run the handlers of WebSockets.
    pub(super) fn websocket_workers(&self) -> &Pool {
        &self.local.server.pool
    }

    /// The stream, for whoever works for its request.
    pub(super) fn carrier(&self, stream: u32) -> Carrier {
        Carrier { address: self.connection.address(stream), link: None }
    }

    /// Records the end of a response of which this many bytes were sent.
    pub(super) fn over(&mut self, status: u16, bytes: u64, note: Option<Box<Watch>>, ending: Ending<'_>) {
        let local = &*self.local;
        local.counters.answers_http2.add(1);
        if let Ending::Failed(error) = ending {
            tracing::debug!(%error, sent = bytes, "a response was aborted");
            local.counters.panics.add(u64::from(panic_guard::is_panic(error)));
        }
        local.server.record(&local.counters, status, bytes, !matches!(ending, Ending::Complete), note);
    }

    /// Tells whoever works for a stream that it was reset.
    pub(super) fn tell_departed(&self, departure: &Departure) {
        self.local.counters.panics.add(departure.tell());
    }

    /// The connection was ended because it broke a limit.
    pub(super) fn count_abuse(&self, what: &'static str) {
        self.local.counters.rejected.add(1);
        let (local, remote) = (&*self.local, self.connection.remote());
        if local.server.complaints.may_name(remote, local.now) {
            tracing::info!(peer = ?remote.peer(), "an HTTP/2 client sends too many {what}: its connection ends");
        }
    }
}
