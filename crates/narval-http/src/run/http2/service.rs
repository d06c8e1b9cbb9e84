//! What an HTTP/2 connection needs from its server. None of it blocks.

use std::io;
use std::sync::Arc;

use http::StatusCode;

use super::encode::{Answer, encode};
use crate::http1::ProtoError;
use crate::http1::head::ParsedHead;
use crate::http1::head_parts::HeadRef;
use crate::message::body::memory::Buffered;
use crate::message::body::pipe::BodyPipe;
use crate::message::carrier::Carrier;
use crate::message::departure::Departure;
use crate::message::panic_guard;
use crate::message::response::Response;
use crate::observe::access_log::Watch;
use crate::run::answer_context::{AnswerContext, PendingLate};
use crate::run::service::{Service, answer_to};

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
    /// Answers a request without a body inline, if possible. `for_engine`: it is `OPTIONS *`, which is about the server
    /// as a whole.
    pub(super) fn inline_on_stream(&mut self, head: &ParsedHead, bytes: &[u8], for_engine: bool) -> Inline {
        let connection = self.connection;
        let local = &mut **self;
        let view = HeadRef::new(bytes, &head.parts, connection.remote());
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
        self.counters.rejected.add(1);
        encode(self.server.reject(error), is_head, None)
    }

    /// The 503 of an overloaded server.
    pub(super) fn overloaded(&mut self, is_head: bool) -> Answer {
        self.counters.overloaded.add(1);
        encode(self.server.overloaded.clone().into(), is_head, None)
    }

    /// A pipe that starts with the received bytes. `continue_due`: the client waits for `100 Continue`.
    pub(super) fn pipe_on_stream(&self, stream: u32, begun: Buffered, continue_due: bool) -> Arc<BodyPipe> {
        let window = self.server.limits.body_window;
        Arc::new(BodyPipe::new(self.carrier(stream), window, continue_due, begun))
    }

    /// The stream, for whoever works for its request.
    pub(super) fn carrier(&self, stream: u32) -> Carrier {
        Carrier { address: self.connection.address(stream), link: None }
    }

    /// Records the end of a response of which this many bytes were sent.
    pub(super) fn over(&mut self, status: u16, bytes: u64, note: Option<Box<Watch>>, ending: Ending<'_>) {
        self.counters.answers_http2.add(1);
        if let Ending::Failed(error) = ending {
            tracing::debug!(%error, sent = bytes, "a response was aborted");
            self.counters.panics.add(u64::from(panic_guard::is_panic(error)));
        }
        self.server.record(&self.counters, status, bytes, !matches!(ending, Ending::Complete), note);
    }

    /// Tells whoever works for a stream that it was reset.
    pub(super) fn tell_departed(&self, departure: &Departure) {
        self.counters.panics.add(departure.tell());
    }

    /// The connection was ended because it broke a limit.
    pub(super) fn count_abuse(&self, what: &'static str) {
        self.counters.rejected.add(1);
        let remote = self.connection.remote();
        if self.server.complaints.may_name(remote, self.now) {
            tracing::info!(peer = ?remote.peer(), "an HTTP/2 client sends too many {what}: its connection ends");
        }
    }
}
