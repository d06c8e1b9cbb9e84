//! What an HTTP/1 connection needs from its server.

use std::sync::Arc;

use http::StatusCode;

use crate::http1::ProtoError;
use crate::http1::head::ParsedHead;
use crate::http1::head_parts::HeadRef;
use crate::io::out_buf::OutBuf;
use crate::io::over::Close;
use crate::limits::INLINE_BATCH_MAX;
use crate::message::body::memory::Buffered;
use crate::message::body::pipe::BodyPipe;
use crate::message::response::Response;
use crate::observe::access_log::{Entry, Watch};
use crate::run::answer_context::{AnswerContext, PendingLate};
use crate::run::service::{Service, answer_to};
use crate::run::transmit::{Encoded, Outgoing, Rest, encode};

/// The result of [`Service::inline`].
pub(super) enum Inline {
    /// Answered; the response is gathered after the previous ones.
    Answered,
    /// Answered; enough is gathered.
    Enough,
    /// Answered; nothing follows on this connection.
    Last(Close),
    /// Answered with more than bytes in memory. Includes the gathered responses before it.
    Answer(Box<Outgoing>),
    /// The answer follows later.
    Later(Box<PendingLate>),
    /// A worker must answer it.
    Job(Box<ParsedHead>),
}

impl Service<'_> {
    /// Answers a request without a body inline, if possible. `for_engine`: it is `OPTIONS *`, which is about the server
    /// as a whole.
    #[inline(always)]
    pub(super) fn inline(&mut self, head: Box<ParsedHead>, bytes: &[u8], for_engine: bool) -> Inline {
        let connection = self.connection;
        let local = &mut **self;
        let view = HeadRef::new(bytes, &head.parts, connection.remote());
        let answer = if for_engine { Some(Response::new(StatusCode::NO_CONTENT)) } else { local.call_inline(&view) };
        let Some(response) = answer else { return Inline::Job(head) };
        let entry = local.entry(&view);
        local.counters.requests_inline.add(1);
        if response.late.is_some() {
            return late(response, &head, entry);
        }
        let before = local.out.len();
        let mut encoded = encode(response, answer_to(&head), &mut local.out);
        local.last_head.give_back(head);
        local.spent = encoded.spent.take();
        let status = encoded.status.as_u16();
        if !matches!(encoded.rest, Rest::None) {
            return more(std::mem::take(&mut *local.out), encoded, entry);
        }
        let bytes = (local.out.len() - before) as u64;
        local.server.record(&local.counters, status, bytes, false, None);
        if let Some(entry) = entry {
            local.server.log(entry, status, bytes, false);
        }
        if !encoded.keep_alive {
            local.out.ends = true;
            return Inline::Last(Close::after(local.out.len() as u64));
        }
        if !local.out.tail.is_empty() || local.out.len() > INLINE_BATCH_MAX { Inline::Enough } else { Inline::Answered }
    }

    /// Answers a malformed request.
    pub(super) fn reject(&mut self, error: ProtoError, is_head: bool) {
        self.counters.rejected.add(1);
        let response = self.server.reject(error);
        self.answer_last(response, is_head);
    }

    /// Answers 503 because there is no memory for the request's body.
    pub(super) fn refuse(&mut self, is_head: bool) {
        self.counters.overloaded.add(1);
        let overloaded = self.server.overloaded.clone();
        self.answer_last(overloaded.into(), is_head);
    }

    /// A pipe that starts with the received bytes. `rest`: bytes still to come, if the body's length was announced;
    /// `continue_due`: the client waits for `100 Continue`.
    pub(super) fn pipe(&self, begun: Buffered, rest: Option<u64>, continue_due: bool) -> Arc<BodyPipe> {
        let window = self.server.limits.body_window;
        // On a TLS connection only the shard may receive: other records may arrive between those of the body.
        let rest = rest.filter(|_| self.connection.tls.is_none());
        Arc::new(BodyPipe::new(self.connection.carrier(), window, continue_due, begun).with_rest(rest))
    }
}

/// An inline response that is not only memory, after the gathered ones.
#[cold]
#[inline(never)]
fn more(collected: OutBuf, encoded: Encoded, entry: Option<Box<Entry>>) -> Inline {
    let mut outgoing = Outgoing::new(collected, encoded.rest);
    (outgoing.keep_alive, outgoing.status) = (encoded.keep_alive, encoded.status.as_u16());
    outgoing.kept = encoded.kept;
    outgoing.watch = Watch::of(entry);
    Inline::Answer(Box::new(outgoing))
}

/// An inline answer that follows later.
#[cold]
#[inline(never)]
fn late(response: Response, head: &ParsedHead, entry: Option<Box<Entry>>) -> Inline {
    let watch = Watch::of(entry);
    let context = AnswerContext { watch, ..AnswerContext::new(answer_to(head), None) };
    let late = response.late.map(|later| Box::new(PendingLate { later: *later, context }));
    late.map_or(Inline::Answered, Inline::Later)
}
