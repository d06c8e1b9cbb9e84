//! Handing requests to the workers, whichever protocol they came by.

use std::sync::Arc;
use std::time::Instant;

use super::Shard;
use crate::io::driver::Driver;
use crate::message::body::pipe::BodyPipe;
use crate::message::departure::Departure;
use crate::message::request::{Request, RequestBody};
use crate::observe::access_log::Watch;
use crate::peer::network;
use crate::run::answer_context::{AnswerContext, PendingLate};
use crate::run::connection::Connection;
use crate::run::intake;
use crate::run::job::{Call, Job};
use crate::run::reply::Reply;
use crate::run::{late, worker};

/// One in this many requests that are not answered inline is timed.
const REQUEST_SAMPLE: u64 = 16;

impl<D: Driver<Connection>> Shard<D> {
    /// Queues a request for the workers; one with a streamed body for the threads that read those, and a check for the thread
    /// of its own. Gives it back if the queue is full.
    #[inline]
    pub(super) fn queue(
        &mut self,
        reply_to: Reply,
        mut request: Request,
        mut context: AnswerContext,
    ) -> Result<(), Box<Call>> {
        self.dispatched = self.dispatched.wrapping_add(1);
        let is_sampled = self.dispatched.is_multiple_of(REQUEST_SAMPLE);
        request.id = self.local.request_ids.next(&request.head());
        let server = &self.local.server;
        let entry = server.entry(&request.head(), || request.id.clone());
        context.watch = (is_sampled || entry.is_some()).then(|| Box::new(Watch { started: Instant::now(), entry }));
        let streamed = context.body.is_some();
        let queue = match streamed {
            true => &server.streams,
            false if server.is_check(request.path()) => &server.checks,
            false => &server.pool,
        };
        let had_client = !context.departure.is_gone();
        let client = request.client_ip().map(network);
        let depth = queue.push(client, Box::new(Call { reply_to, request, context, had_client }))?;
        if streamed {
            worker::start_where_wanted(server);
        }
        if is_sampled {
            self.local.counters.queue_depth.add_count(depth as u64);
        }
        Ok(())
    }

    /// A request as its handler gets it, and the pipe of its body if that is streamed.
    pub(super) fn to_handle(
        connection: &Arc<Connection>,
        stream: u32,
        request: intake::Request,
        departure: Departure,
    ) -> (Request, Option<Arc<BodyPipe>>) {
        let intake::Request { bytes, head, body } = request;
        let pipe = body.as_ref().and_then(|body| body.pipe().cloned());
        let body = body.map_or_else(RequestBody::default, |body| *body);
        let mut request = Request::new(bytes, head.parts, connection.remote().clone(), body);
        request.departure = departure;
        request.informer = Some(connection.informer(stream));
        (request, pipe)
    }

    /// Leaves the right to answer with an inline answer that follows later.
    pub(super) fn wait_for_late(&mut self, reply_to: Reply, late: PendingLate) {
        let PendingLate { later, context } = late;
        if let Some(late) = late::wait(later, reply_to, context, &self.local.server) {
            self.local.server.pool.push_continued(Job::Late(Box::new(late)));
        }
    }
}
