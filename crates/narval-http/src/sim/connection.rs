//! Runs an HTTP/1 connection without a server: the shard's part is played at random, and the connection is checked.
//!
//! Input arrives in random pieces, the socket accepts random amounts, jobs end at random, with or without a message,
//! and time passes. Whatever the client sends, there is at most one job, responses are in the order of their requests,
//! nothing more is read while input is waiting to be used, there is always a deadline, deadlines are honoured, and an
//! end is final.

mod piped;
mod world;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

pub(crate) use self::piped::Piped;
use self::piped::{PIECE_MAX, lock};
pub(crate) use self::world::Carried;
use self::world::World;
use crate::http1::conn::{Act, Close, Closing, Conn, Input, Wants};
use crate::http1::head::{Framing, HeadLimits, LastHead, parse_head};
use crate::intake::body_memory::BodyMemory;
use crate::intake::incoming_body::IncomingBody;
use crate::intake::{Body, Request};
use crate::io::clock::Millis;
use crate::io::sim::Random;
use crate::limits::Limits;

/// The maximum number of events in a run, and of acts that follow an event.
const EVENTS_MAX: usize = 200_000;
/// The upper bound of a connection's deadlines: longer than every timeout.
const WAIT_MAX: Millis = 24 * 3_600_000;

/// Runs one connection whose client sends `input`, with choices drawn from `seed`.
///
/// # Panics
/// The connection violated one of its invariants.
pub fn connection(seed: u64, input: &[u8]) {
    let mut run = Run::new(seed, input);
    while !run.is_over() {
        run.step();
    }
    run.check_end();
}

/// Whoever answers the last request.
enum Job {
    /// A handler, with the body if that is streamed.
    Request { pipe: Option<Arc<Mutex<Piped>>>, is_quick: bool },
    /// A response is being sent: by the shard, by a job, or by one after the other.
    Send { is_job: bool, close: Option<Close> },
    /// The same for gathered responses, and what follows them.
    Flush(After),
}

/// What follows gathered responses.
enum After {
    Next(Option<Close>),
    Late,
}

/// A connection, and the shard's state of it.
struct Run {
    conn: Option<Conn<Carried>>,
    /// What it becomes once its output has ended.
    closing: Option<Closing>,
    world: World,
    /// What the client has yet to send.
    input: VecDeque<u8>,
    has_ended: bool,
    expected: Vec<Expected>,
    wants: Wants,
    /// Received bytes that the connection has not used.
    held: Vec<u8>,
    is_reading: bool,
    job: Option<Job>,
    /// The connection has asked to be notified when the job ends.
    is_awaited: bool,
    /// When the last job ended.
    idle_since: Millis,
    bodies: Vec<(usize, Vec<u8>, bool)>,
    events: usize,
}

/// A request in the input.
struct Expected {
    target: Vec<u8>,
    body: Vec<u8>,
}

impl Run {
    fn new(seed: u64, input: &[u8]) -> Self {
        let mut random = Random::new(seed);
        let limits = Limits {
            body_buffer_max: [1 << 20, 1000, 10, 0][random.below(4)],
            body_window: [1, 100, 10_000][random.below(3)],
            body_max: 50_000,
            head: HeadLimits { bytes_max: 2000, ..HeadLimits::default() },
            linger_bytes_max: 10_000,
            ..Limits::default()
        };
        let expected = requests(input, &limits);
        let memory = BodyMemory::new(if random.one_in(3) { 20_000 } else { 1 << 20 });
        let world = World {
            random,
            limits,
            memory,
            last_head: LastHead::default(),
            now: 1000,
            stopping: false,
            collected: 0,
            served: Vec::new(),
            is_busy: false,
            has_rejected: false,
        };
        let mut run = Self {
            conn: Some(Conn::new(11_000)),
            closing: None,
            world,
            input: input.iter().copied().collect(),
            has_ended: false,
            expected,
            wants: Wants { read: false, answer: false, deadline: 11_000 },
            held: Vec::new(),
            is_reading: false,
            job: None,
            is_awaited: false,
            idle_since: 0,
            bodies: Vec::new(),
            events: 0,
        };
        run.settle();
        run
    }

    fn is_over(&self) -> bool {
        self.conn.is_none() && self.closing.is_none() && self.job.is_none()
    }

    /// Triggers one of the possible events.
    fn step(&mut self) {
        self.events += 1;
        assert!(self.events < EVENTS_MAX, "the connection never ends");
        match self.world.random.below(if self.input.is_empty() { 9 } else { 40 }) {
            0 => self.pass(),
            1 if self.world.random.one_in(40) => self.stop(),
            2 => self.work(),
            3 | 4 => self.send(),
            5 if self.world.random.one_in(100) => self.receive_end(io::ErrorKind::ConnectionReset),
            6 => self.event(|conn, input, world| conn.tick(input, world)),
            _ => self.receive(),
        }
    }

    fn pass(&mut self) {
        let deadline = self.wants.deadline;
        let ahead = [1, 60, 3000, 40_000][self.world.random.below(4)];
        // Right to the deadline if nothing else can happen.
        let is_idle = self.input.is_empty() && self.has_ended && self.job.is_none();
        self.world.now = if is_idle { deadline.max(self.world.now + 1) } else { self.world.now + ahead };
        if let Some(closing) = &mut self.closing
            && self.wants.deadline <= self.world.now
        {
            let has_in_flight = self.world.now.is_multiple_of(4);
            match closing.look(self.world.now, &self.world.limits, || has_in_flight) {
                Some(deadline) => self.wants.deadline = deadline,
                None => self.closing = None,
            }
        }
        let mut ticks = 0;
        while self.conn.is_some() && self.wants.deadline <= self.world.now {
            ticks += 1;
            assert!(ticks <= 4, "an expired deadline does not move");
            self.event(|conn, input, world| conn.tick(input, world));
        }
    }

    fn stop(&mut self) {
        self.world.stopping = true;
        self.event(|conn, input, world| conn.stop(input, world));
    }

    /// The client sends something, or ends its side.
    fn receive(&mut self) {
        if !self.is_reading {
            return;
        }
        if self.input.is_empty() {
            if !self.has_ended {
                self.receive_end(io::ErrorKind::UnexpectedEof);
            }
            return;
        }
        let most = self.input.len().min(PIECE_MAX);
        let n = if self.world.random.one_in(3) { most } else { 1 + self.world.random.below(most.min(60)) };
        let bytes: Vec<u8> = self.input.drain(..n).collect();
        self.is_reading = false;
        if let Some(closing) = &mut self.closing {
            (self.is_reading, self.closing) = match closing.discard(&bytes, &self.world.limits) {
                true => (true, self.closing.take()),
                false => (false, None),
            };
        }
        self.event_with(&bytes, |conn, input, world| conn.received(input, world));
    }

    fn receive_end(&mut self, reason: io::ErrorKind) {
        if self.is_reading {
            (self.is_reading, self.has_ended) = (false, true);
            self.closing = None;
            self.event(|conn, _, world| conn.input_ended(reason, world));
        }
    }

    /// A response is sent further.
    fn send(&mut self) {
        match self.job.take() {
            Some(Job::Flush(After::Late)) => self.start(Job::Request { pipe: None, is_quick: false }),
            Some(Job::Flush(After::Next(close))) => self.answered(close),
            Some(Job::Send { is_job, close }) if self.world.random.one_in(2) => {
                // The lease passes from the shard to a job, and back.
                self.job = Some(Job::Send { is_job: !is_job, close });
            }
            Some(Job::Send { is_job: true, close }) => self.job_ends(close),
            Some(Job::Send { is_job: false, close }) => self.answered(close),
            other => self.job = other,
        }
    }

    /// The handler reads, or ends.
    fn work(&mut self) {
        let Some(job) = self.job.take() else { return };
        let Job::Request { pipe, is_quick } = job else {
            self.job = Some(job);
            return;
        };
        let mut close = self.world.random.one_in(8).then_some(Close::Clean { large: false });
        if let Some(pipe) = pipe {
            if !is_quick && !lock(&pipe).is_over {
                return self.read(pipe);
            }
            let mut state = lock(&pipe);
            let gave_back = std::mem::take(&mut state.is_received_by_handler);
            state.is_answered = true;
            if !state.is_complete {
                close = Some(Close::Clean { large: false });
            }
            self.bodies.push((self.world.served.len() - 1, state.received.clone(), state.is_complete));
            drop(state);
            if gave_back {
                self.job = Some(Job::Send { is_job: true, close });
                return self.event(|_, _, _| Act::Wait);
            }
        }
        if self.world.random.one_in(3) {
            self.job = Some(Job::Send { is_job: self.world.random.one_in(2), close });
            self.is_awaited &= matches!(self.job, Some(Job::Send { is_job: true, .. }));
            return;
        }
        self.job_ends(close);
    }

    fn read(&mut self, pipe: Arc<Mutex<Piped>>) {
        if lock(&pipe).is_received_by_handler {
            return self.receive_as_handler(pipe);
        }
        let mut state = lock(&pipe);
        let left = state.received.len() - state.read;
        state.read += self.world.random.below(left + 1);
        let has_room = std::mem::take(&mut state.is_paused) && state.received.len() < state.read + state.window;
        drop(state);
        let is_quick = self.world.random.one_in(20);
        self.job = Some(Job::Request { pipe: Some(pipe), is_quick });
        if has_room {
            self.event(|_, _, _| Act::Wait);
        }
    }

    /// A job ends: with a message if that is awaited, or the connection must end.
    fn job_ends(&mut self, close: Option<Close>) {
        self.idle_since = self.world.now;
        if close.is_some() || self.is_awaited {
            self.answered(close);
        }
    }

    fn answered(&mut self, close: Option<Close>) {
        self.is_awaited = false;
        self.world.is_busy = false;
        self.event(|conn, input, world| conn.answered(close, input, world));
    }

    /// The handler receives what has come, without the connection.
    fn receive_as_handler(&mut self, pipe: Arc<Mutex<Piped>>) {
        let mut state = lock(&pipe);
        let rest = state.rest.unwrap_or(0);
        let most = self.input.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        let n = if self.world.random.one_in(3) { most } else { self.world.random.below(most + 1) };
        state.received.extend(self.input.drain(..n));
        state.read = state.received.len();
        state.received_by_handler += n as u64;
        state.rest = Some(rest - n as u64);
        if rest == n as u64 {
            (state.is_complete, state.is_over) = (true, true);
        }
        let gives_back = state.is_over || self.input.is_empty() || self.world.random.one_in(4);
        state.is_received_by_handler = !gives_back;
        drop(state);
        let is_quick = self.world.random.one_in(20);
        self.job = Some(Job::Request { pipe: Some(pipe), is_quick });
        if gives_back {
            self.event(|_, _, _| Act::Wait);
        }
    }

    /// Before each event: a job may have ended without a message.
    fn find_quiet_end(&mut self) {
        if self.world.is_busy
            && self.job.is_none()
            && let Some(conn) = &mut self.conn
        {
            (self.world.is_busy, self.is_awaited) = (false, false);
            conn.answered_quietly(self.idle_since, &self.world);
        }
    }

    fn event(&mut self, event: impl FnOnce(&mut Conn<Carried>, &mut Input<'_>, &mut World) -> Act<Carried>) {
        self.event_with(&[], event);
    }

    fn event_with(
        &mut self,
        bytes: &[u8],
        event: impl FnOnce(&mut Conn<Carried>, &mut Input<'_>, &mut World) -> Act<Carried>,
    ) {
        self.find_quiet_end();
        let Some(mut conn) = self.conn.take() else { return };
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(bytes);
        let mut input = Input::new(&held);
        let act = event(&mut conn, &mut input, &mut self.world);
        let is_alive = self.perform(&mut conn, act, &mut input);
        let used = input.used();
        if !is_alive {
            conn.release();
            return;
        }
        held.drain(..used);
        (self.held, self.conn) = (held, Some(conn));
        self.settle();
    }

    /// What a shard does after each event.
    fn settle(&mut self) {
        let Some(conn) = &mut self.conn else { return };
        let held = self.held.len();
        self.wants = conn.wants(self.is_reading, held > 0, self.world.stopping);
        let Wants { read, answer, deadline } = self.wants;
        assert!(deadline > 0 && deadline < self.world.now + WAIT_MAX, "a connection without a deadline");
        assert!(!read || !self.has_ended, "reading after the client's end");
        assert!(held <= self.world.limits.head.bytes_max + 2 * PIECE_MAX, "{held} bytes are held");
        if read && self.world.is_busy && held > 0 {
            assert!(conn.reads_body(), "reading more while input is waiting");
        }
        self.is_reading |= read;
        if answer {
            match self.job {
                Some(Job::Request { .. } | Job::Send { is_job: true, .. }) => self.is_awaited = true,
                None if self.world.is_busy => self.event(|conn, input, world| conn.go_on(input, world)),
                _ => {}
            }
        }
    }

    /// Performs the connection's acts. Returns `false` if it was dropped.
    fn perform(&mut self, conn: &mut Conn<Carried>, mut act: Act<Carried>, input: &mut Input<'_>) -> bool {
        for acts in 0.. {
            assert!(acts < EVENTS_MAX, "an event has endless acts");
            if self.world.collected > 0 {
                match self.flush(conn, act) {
                    Some(next) => act = next,
                    None => return true,
                }
            }
            act = match act {
                Act::Wait => return true,
                Act::Drop => return false,
                Act::Again => conn.go_on(input, &mut self.world),
                Act::End(mut end) => {
                    assert_eq!(self.world.collected, 0, "responses that were not sent");
                    assert!(self.job.is_none(), "an end during a job");
                    end.is_read &= input.rest().is_empty();
                    if end.close != Close::Abort && !self.has_ended && !end.may_close() {
                        let (closing, deadline) = Closing::new(end, self.world.now, &self.world.limits);
                        (self.closing, self.wants.deadline, self.is_reading) = (Some(closing), deadline, true);
                    }
                    return false;
                }
                Act::Answer(close) => {
                    self.begin_exchange();
                    if self.world.random.one_in(3) {
                        self.world.is_busy = false;
                        conn.answered(close.then_some(Close::after(9)), input, &mut self.world)
                    } else {
                        let close = close.then_some(Close::after(9));
                        let is_job = self.world.random.one_in(2);
                        self.start(Job::Send { is_job, close });
                        Act::Wait
                    }
                }
                Act::Later(()) => {
                    self.begin_exchange();
                    self.start(Job::Request { pipe: None, is_quick: false });
                    Act::Wait
                }
                Act::Job(request) => self.dispatch(conn, request, input),
            };
        }
        false
    }

    fn begin_exchange(&mut self) {
        assert!(!std::mem::replace(&mut self.world.is_busy, true), "two requests at once");
    }

    fn start(&mut self, job: Job) {
        assert!(self.job.is_none(), "two jobs at once");
        assert_eq!(self.world.collected, 0, "a job begins before what was answered is sent");
        self.job = Some(job);
        self.is_awaited = false;
    }

    /// Sends the gathered responses. Returns what follows them, unless they wait for the socket.
    fn flush(&mut self, conn: &mut Conn<Carried>, act: Act<Carried>) -> Option<Act<Carried>> {
        assert!(self.job.is_none() && !self.world.is_busy, "two writers at once");
        assert!(!matches!(act, Act::Answer(_) | Act::Job(_)), "this includes what was gathered, or comes after it");
        self.world.collected = 0;
        if !self.world.random.one_in(4) {
            return Some(act);
        }
        let after = match act {
            Act::Wait | Act::Again => After::Next(None),
            Act::End(end) => After::Next(Some(end.close)),
            Act::Later(()) => After::Late,
            other => return Some(other),
        };
        self.begin_exchange();
        conn.suspend(self.world.now + 300_000);
        self.start(Job::Flush(after));
        None
    }

    fn dispatch(
        &mut self,
        conn: &mut Conn<Carried>,
        request: Request<Arc<Mutex<Piped>>>,
        input: &mut Input<'_>,
    ) -> Act<Carried> {
        let Request { bytes, head, body } = request;
        assert_eq!(self.world.collected, 0, "a job begins before what was answered is sent");
        self.world.serve(&head, &bytes);
        let at = self.world.served.len() - 1;
        let pipe = match body {
            Body::None => {
                self.bodies.push((at, Vec::new(), true));
                None
            }
            Body::Buffered(body) => {
                self.bodies.push((at, body.0.bytes.clone(), true));
                None
            }
            Body::Streamed(pipe) => Some(pipe),
        };
        if self.world.random.one_in(15) {
            self.world.collected += 1;
            return conn.refused(pipe.is_none() && !self.world.random.one_in(3));
        }
        self.begin_exchange();
        self.start(Job::Request { pipe, is_quick: false });
        conn.dispatched(input, &mut self.world)
    }

    /// Checks that the served requests are the first ones that the client sent.
    fn check_end(&self) {
        let served = &self.world.served;
        for (at, target) in served.iter().enumerate() {
            let expected = self.expected.get(at).map(|expected| &expected.target);
            assert_eq!(Some(target), expected, "request {at} of {}", self.expected.len());
        }
        for (at, body, is_complete) in &self.bodies {
            let expected = self.expected.get(*at).map_or(&[][..], |expected| &expected.body);
            let received = if *is_complete { expected } else { expected.get(..body.len()).unwrap_or_default() };
            assert_eq!(body, received, "the body of request {at}");
        }
        assert_eq!(self.world.memory.used(), 0, "memory for bodies");
    }
}

/// Parses the sequence of requests in `input`.
fn requests(mut input: &[u8], limits: &Limits) -> Vec<Expected> {
    let mut requests = Vec::new();
    while let Ok(Some(head)) = parse_head(input, &limits.head) {
        let target = head.parts.target;
        let target = input.get(target.start as usize..target.end as usize).unwrap_or_default().to_vec();
        input = input.get(head.head_len..).unwrap_or_default();
        let mut body = Vec::new();
        if head.framing != Framing::None {
            let mut incoming = IncomingBody::new(head.framing, 0);
            let fed = incoming.feed(input, limits, |data| body.extend_from_slice(data));
            let is_over = !matches!(&fed, Ok(fed) if fed.done);
            input = input.get(fed.map_or(0, |fed| fed.consumed)..).unwrap_or_default();
            requests.push(Expected { target, body });
            if is_over {
                break;
            }
            continue;
        }
        requests.push(Expected { target, body });
    }
    requests
}
