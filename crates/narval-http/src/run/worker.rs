//! Runs jobs. A worker sends the response itself: handing it to the shard would cost a wake-up.

use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crossbeam_utils::CachePadded;

use crate::io::out_buf::OutBuf;
use crate::io::output_memory::Share;
use crate::io::over::{Next, Over};
use crate::io::unsafe_calls::give_back_freed;
use crate::limits::{BYTES_PER_TURN, COPY_BODY_MAX, SENDFILE_MIN};
use crate::message::body::produced::{Made, Maker};
use crate::message::body::source::FileRange;
use crate::message::response::Response;
use crate::observe::counters::ThreadCounters;
use crate::run::admission::HandshakePermit;
use crate::run::answer_context::AnswerContext;
use crate::run::connection::Connection;
use crate::run::http2;
use crate::run::job::{Call, Job, LateCall};
use crate::run::late;
use crate::run::mailbox::Note;
use crate::run::pool::{Pool, Sleeper};
use crate::run::reply::Reply;
use crate::run::send_piece::send_piece;
use crate::run::server::state::ServerState;
use crate::run::transmit::{Outgoing, Rest, encode};
use crate::ws;
use bytes::Bytes;

/// The status in logs of a request whose client left before its handler ran, as nginx writes it.
const LEFT: u16 = 499;

/// The kind of jobs a thread runs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// All other jobs: the workers.
    Jobs,
    /// Handlers of requests with streamed bodies.
    Streams,
    /// Requests for the paths of checks.
    Checks,
    /// TLS handshakes.
    Handshakes,
}

/// Starts another thread for streamed bodies if one is needed.
pub(crate) fn start_where_wanted(server: &Arc<ServerState>) {
    if let Some(number) = server.streams.wants_thread()
        && let Err(error) = Worker::start(server, Kind::Streams, number)
    {
        tracing::warn!(%error, "cannot start another thread for streamed request bodies");
        server.streams.thread_failed();
    }
}

/// A worker's own state: its counters, and a buffer for encoding responses.
pub(crate) struct Worker {
    server: Arc<ServerState>,
    counters: Arc<CachePadded<ThreadCounters>>,
    out: OutBuf,
    /// The buffer for TLS records, lent to the current response.
    wire: Vec<u8>,
}

impl Worker {
    pub(crate) fn new(server: Arc<ServerState>) -> Self {
        let counters = server.counters.thread();
        Self { server, counters, out: OutBuf::default(), wire: Vec::new() }
    }

    /// Starts a thread that runs jobs of one kind until their queue is closed.
    pub(crate) fn start(server: &Arc<ServerState>, kind: Kind, number: usize) -> io::Result<()> {
        let worker = Self::new(server.clone());
        let (name, run): (_, fn(Self)) = match kind {
            Kind::Jobs => ("worker", Self::run),
            Kind::Streams => ("stream", |worker| worker.run_from(|server| &server.streams)),
            Kind::Checks => ("checks", |worker| worker.run_from(|server| &server.checks)),
            Kind::Handshakes => ("handshake", |worker| worker.run_from(|server| &server.handshakes)),
        };
        thread::Builder::new().name(format!("{name}-{number}")).spawn(move || run(worker))?;
        Ok(())
    }

    fn run(mut self) {
        let me = Sleeper::new();
        while let Some(job) = self.server.pool.take(&me) {
            let started = Instant::now();
            self.counters.busy.begin(started);
            if let Job::Answer(call) = &job
                && let Some(watch) = &call.context.watch
            {
                self.counters.queue_time.add_time(started.saturating_duration_since(watch.started));
            }
            self.run_job(job);
            if self.server.output_memory.wants_trim() {
                give_back_freed();
            }
            let ended = Instant::now();
            self.counters.busy.end(ended);
            self.counters.job_time.add_time(ended.duration_since(started));
        }
    }

    fn run_from(mut self, queue: impl Fn(&ServerState) -> &Pool) {
        let (me, server) = (Sleeper::new(), self.server.clone());
        while let Some(job) = queue(&server).take(&me) {
            self.run_job(job);
        }
    }

    /// Runs one job. A panic ends the connection, and nothing else.
    pub(crate) fn run_job(&mut self, job: Job) {
        let done = catch_unwind(AssertUnwindSafe(|| match job {
            Job::Answer(call) => self.answer(*call),
            Job::Continue { lease, outgoing } => self.go_on(lease, outgoing),
            // A piece for nobody is lost.
            Job::Make { departure, .. } if departure.is_gone() => {}
            Job::Make { reply_to, maker, quantum, .. } => make(reply_to, maker, quantum),
            Job::Late(late) => self.send_late(*late),
            Job::WebSocket(socket) => {
                if socket.run() == ws::Turn::Again {
                    self.server.pool.push_continued(Job::WebSocket(socket));
                }
            }
            Job::Handshake { lease, received, permit } => self.shake_hands(lease, &received, permit),
            Job::GiveBack => {
                self.server.output_memory.trim_begins();
                give_back_freed();
            }
        }));
        if done.is_err() {
            self.counters.panics.add(1);
            tracing::error!("a job panicked: its connection was aborted");
        }
    }

    fn answer(&mut self, call: Call) {
        let Call { reply_to, request, context, had_client } = call;
        if had_client && context.departure.is_gone() {
            // Dropping the right to answer aborts the connection, or resets the stream, which is gone.
            return self.server.record(&self.counters, LEFT, 0, true, context.watch);
        }
        let _entered = request.id().clone().enter();
        self.counters.requests_worker.add(1);
        let server = self.server.clone();
        let response = catch_unwind(AssertUnwindSafe(|| server.handler.handle(request))).unwrap_or_else(|_| {
            self.counters.panics.add(1);
            tracing::error!("a handler panicked: answered 500");
            Response::from(server.failed.clone())
        });
        self.reply(reply_to, response, context);
    }

    /// Sends a late answer.
    fn send_late(&mut self, late: LateCall) {
        let LateCall { reply_to, context, answer } = late;
        let response = catch_unwind(AssertUnwindSafe(|| answer.take())).unwrap_or_else(|_| {
            self.counters.panics.add(1);
            tracing::error!("a middleware panicked at a late answer: answered 500");
            Response::from(self.server.failed.clone())
        });
        self.reply(reply_to, response, context);
    }

    /// Sends the response, or waits for it if it follows later.
    fn reply(&mut self, reply_to: Reply, mut response: Response, context: AnswerContext) {
        if let Some(later) = response.late.take() {
            if let Some(late) = late::wait(*later, reply_to, context, &self.server) {
                self.send_late(late);
            }
            return;
        }
        let held = match reply_to.connection() {
            Some(connection) => self.reserve(connection, &mut response),
            None => Share::default(),
        };
        if reply_to.is_on_stream() {
            Self::send_on_stream(reply_to, response, context, held);
        } else {
            self.send(reply_to, response, context, held);
        }
    }

    /// Reserves the memory that a response holds until its client has read it. If there is no room, the answer is 503.
    fn reserve(&self, connection: &Connection, response: &mut Response) -> Share {
        let bytes = response.bytes_in_memory();
        if bytes <= COPY_BODY_MAX {
            return Share::default();
        }
        Share::reserve(connection.holding(), bytes).unwrap_or_else(|| {
            self.counters.overloaded.add(1);
            tracing::debug!(bytes, "answered 503: no memory is left for answers that wait to be sent");
            *response = self.server.overloaded.clone().into();
            Share::default()
        })
    }

    /// Encodes a response, and posts it to the shard.
    fn send_on_stream(reply: Reply, response: Response, context: AnswerContext, held: Share) {
        if let Some(body) = &context.body {
            // The handler is done: the unread rest is discarded.
            body.answer_begins();
        }
        reply.answer(http2::encode(response, context.to.is_head, context.watch), held);
    }

    /// Encodes and sends a response.
    fn send(&mut self, lease: Reply, mut response: Response, mut context: AnswerContext, held: Share) {
        if let Some(accepted) = ws::Accepted::take(&mut response) {
            return self.upgrade(lease, response, context, accepted);
        }
        let body_received = context.body.as_ref().is_none_or(|body| body.answer_begins());
        context.to.keep_alive &= body_received && !self.server.is_stopping();
        self.out.clear();
        let encoded = encode(response, context.to, &mut self.out);
        let status = encoded.status.as_u16();
        if let (Rest::None, Some(connection)) = (&encoded.rest, lease.connection()) {
            connection.begin();
            // Nobody works for it any longer.
            context.here = None;
        }
        let mut is_blocked = false;
        let mut outgoing = match encoded.rest {
            Rest::None => {
                let length = self.out.len() as u64;
                if let Some(connection) = lease.connection()
                    && connection.seal(&mut self.out).is_ok()
                    && send_whole(&connection.socket, &mut self.out).is_ok()
                {
                    if self.out.is_empty() {
                        self.server.record(&self.counters, status, length, false, context.watch);
                        return self.end(lease, Over::complete(encoded.keep_alive, length));
                    }
                    is_blocked = true;
                    Outgoing::sealed(std::mem::take(&mut self.out), length)
                } else {
                    self.server.record(&self.counters, status, 0, true, context.watch);
                    return self.end(lease, Over::ABORTED);
                }
            }
            // With TLS, it is read into the buffer where it is sealed.
            Rest::File(range) if range.length < SENDFILE_MIN && lease.connection().is_some_and(|c| c.tls.is_none()) => {
                if let Err(error) = read_file(&range, &mut self.out.memory) {
                    tracing::warn!(%error, "cannot read a file of {} bytes: response aborted", range.length);
                    self.server.record(&self.counters, status, 0, true, context.watch);
                    return self.end(lease, Over::ABORTED);
                }
                Outgoing::new(std::mem::take(&mut self.out), Rest::None)
            }
            rest => Outgoing::new(std::mem::take(&mut self.out), rest),
        };
        outgoing.keep_alive = encoded.keep_alive;
        outgoing.status = status;
        outgoing.watch = context.watch;
        outgoing.kept = encoded.kept;
        outgoing.here = context.here;
        outgoing.held = held;
        if is_blocked {
            if let Some(connection) = lease.connection() {
                outgoing.count_held(connection.holding());
            }
            return lease.hand_back(Box::new(outgoing));
        }
        self.go_on(lease, Box::new(outgoing));
    }

    /// Answers 101, and turns the connection into a WebSocket.
    fn upgrade(&mut self, lease: Reply, response: Response, context: AnswerContext, accepted: ws::Accepted) {
        self.out.clear();
        let encoded = encode(response, context.to, &mut self.out);
        if let Some(connection) = lease.connection() {
            connection.begin();
        }
        let head = Bytes::copy_from_slice(self.out.rest());
        self.server.record(&self.counters, encoded.status.as_u16(), head.len() as u64, false, context.watch);
        drop(context.here);
        if let (Some(shared), Some(connection)) = (accepted.into_shared(), lease.upgrade()) {
            ws::start(&shared, connection.carrier(), connection.holding(), Some(head), &self.server.pool);
            connection.post(0, Note::Upgraded(shared));
        }
    }

    /// Continues a response.
    fn go_on(&mut self, lease: Reply, mut outgoing: Box<Outgoing>) {
        let Some(connection) = lease.connection() else { return };
        if connection.tls.is_some() {
            outgoing.lend(&mut self.wire);
        }
        let next = loop {
            match send_piece(&mut outgoing, connection, BYTES_PER_TURN, &self.server, &self.counters) {
                Next::AtOnce if outgoing.is_for_nobody() => {
                    self.server.record_outgoing(&self.counters, &mut outgoing, true);
                    break Next::Over(Over::ABORTED);
                }
                // Nothing is queued: going through the queue would only wake another worker.
                Next::AtOnce if !self.server.pool.has_work() => {}
                next => break next,
            }
        };
        match next {
            Next::Over(over) => {
                outgoing.here = None;
                outgoing.held = Share::default();
                self.end(lease, over);
                self.keep_buffers(*outgoing);
            }
            Next::AtRoom | Next::AtSource => lease.hand_back(outgoing),
            Next::AtOnce => self.server.pool.push_continued(Job::Continue { lease, outgoing }),
        }
    }

    /// Keeps the buffers of a response that is sent, if this worker has none.
    fn keep_buffers(&mut self, outgoing: Outgoing) {
        let (out, wire) = outgoing.into_buffers();
        if self.out.memory.capacity() == 0 {
            self.out = out;
        }
        if self.wire.capacity() == 0 {
            self.wire = wire;
        }
    }

    /// Performs a step of a TLS handshake, and sends its output.
    fn shake_hands(&mut self, lease: Reply, received: &[u8], permit: HandshakePermit) {
        let outcome = match lease.connection() {
            Some(connection) => shake_hands(connection, received, &mut self.out, &self.counters),
            None => Err(io::ErrorKind::NotConnected.into()),
        };
        drop(permit);
        lease.post(Note::Handshaken(outcome));
    }

    /// Returns the lease after a response.
    fn end(&self, lease: Reply, over: Over) {
        match over.close {
            None => lease.finish(self.server.clock.now(), over.large),
            Some(close) => lease.finish_with(close),
        }
    }
}

/// Produces about `quantum` bytes of a body on a stream, and posts them to the shard.
fn make(reply: Reply, maker: Maker, quantum: usize) {
    let Some(connection) = reply.connection() else { return };
    let mut held = Share::of_piece(connection.holding(), quantum);
    let made = maker.make(held.bytes());
    held.set(made.as_ref().map_or(0, Made::memory));
    reply.post(Note::Made(Box::new((made, held))));
}

/// Processes received bytes of a TLS handshake, and sends the reply, using `out` as the buffer. Returns the client's
/// data after the handshake. The caller holds the lease.
pub(crate) fn shake_hands(
    connection: &Connection,
    received: &[u8],
    out: &mut OutBuf,
    counters: &ThreadCounters,
) -> io::Result<Vec<u8>> {
    let Some(tls) = &connection.tls else { return Err(io::ErrorKind::NotConnected.into()) };
    let mut plaintext = Vec::new();
    let opened = tls.open(received, &mut plaintext);
    out.clear();
    // An alert is worth sending too.
    let sent = connection.seal(out).and_then(|()| send_whole(&connection.socket, out));
    match opened.and_then(|opened| sent.map(|_| opened)) {
        Ok(_) if !out.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
        Ok(opened) => {
            counters.handshakes.add(u64::from(!opened.is_handshaking));
            Ok(plaintext)
        }
        Err(error) => {
            counters.handshakes_failed.add(1);
            Err(error)
        }
    }
}

/// Sends until everything is sent or the socket is full; returns the number of bytes.
fn send_whole(socket: &crate::io::socket::Socket, out: &mut OutBuf) -> io::Result<u64> {
    let mut sent = 0;
    while !out.is_empty() {
        match socket.send_buf(out) {
            Ok(n) => sent += n as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}

/// Appends a range of a file to `out`.
fn read_file(range: &FileRange, out: &mut Vec<u8>) -> io::Result<()> {
    let start = out.len();
    out.resize(start + usize::try_from(range.length).unwrap_or(usize::MAX), 0);
    range.file.read_exact_at(out.get_mut(start..).unwrap_or_default(), range.offset)
}
