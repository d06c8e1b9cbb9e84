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
use self::piped::lock;
pub(crate) use self::world::Carried;
use self::world::{Sending, World};
use crate::http1::conn::body_memory::BodyMemory;
use crate::http1::conn::incoming_body::IncomingBody;
use crate::http1::conn::{Act, Body, Close, Closing, Conn, Input, Next, Over, Request, Then, Wants};
use crate::http1::head::{Framing, HeadLimits, LastHead, parse_head};
use crate::io::clock::Millis;
use crate::io::sim::Random;
use crate::limits::Limits;

/// The maximum number of events in a run, and of acts that follow an event.
const EVENTS_MAX: usize = 200_000;
/// The upper bound of a connection's deadlines: longer than every timeout.
const WAIT_MAX: Millis = 24 * 3_600_000;
/// The maximum number of bytes that arrive at once.
const PIECE_MAX: usize = 5000;

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

/// The job that has the connection's lease.
enum Job {
    /// A request, with its body if that is streamed.
    Request { pipe: Option<Arc<Mutex<Piped>>>, is_quick: bool },
    /// The rest of a response.
    Continue(Box<Sending>),
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
    is_reading: bool,
    job: Option<Job>,
    /// The connection has asked to be notified when the job ends.
    is_awaited: bool,
    idle_since: Millis,
    /// The driver is sending.
    is_sending: bool,
    awaits_room: bool,
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
            has_timed_out: false,
        };
        let mut run = Self {
            conn: Some(Conn::new(11_000)),
            closing: None,
            world,
            input: input.iter().copied().collect(),
            has_ended: false,
            expected,
            wants: Wants { read: false, answer: false, deadline: 11_000 },
            is_reading: false,
            job: None,
            is_awaited: false,
            idle_since: 0,
            is_sending: false,
            awaits_room: false,
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
            3 | 4 => self.room(),
            5 if self.world.random.one_in(100) => self.receive_end(io::ErrorKind::ConnectionReset),
            6 => self.event(|conn, _, _| conn.writable(true)),
            _ => self.receive(),
        }
    }

    fn pass(&mut self) {
        let deadline = self.wants.deadline;
        let ahead = [1, 60, 3000, 40_000][self.world.random.below(4)];
        // Right to the deadline if nothing else can happen.
        let is_idle = self.input.is_empty() && self.has_ended && self.job.is_none() && !self.is_sending;
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
            let is_back = self.conn.as_ref().is_some_and(Conn::may_be_answered) && self.job.is_none();
            let idle_since = is_back.then_some(self.idle_since);
            self.event(|conn, input, world| conn.tick(idle_since, input, world));
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
        let Some(conn) = &mut self.conn else { return };
        if conn.may_be_answered() && self.has_lease_back() {
            if let Some(conn) = &mut self.conn {
                conn.answered_quietly(&self.world);
            }
            self.world.is_busy = false;
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

    /// The socket is writable again, or the driver has sent.
    fn room(&mut self) {
        if self.is_sending {
            self.is_sending = false;
            let Some(conn) = &mut self.conn else { return };
            let then = conn.take_then();
            if self.world.random.one_in(3) {
                self.is_sending = true;
                self.event(|conn, _, world| conn.sending(None, then, world));
            } else {
                self.world.is_busy = false;
                self.event(|conn, input, world| conn.flushed(then, input, world));
            }
        } else if std::mem::take(&mut self.awaits_room) {
            self.event(|conn, _, _| conn.writable(false));
        }
    }

    /// The job reads, or ends.
    fn work(&mut self) {
        let Some(job) = self.job.take() else { return };
        let mut close = self.world.random.one_in(8).then_some(Close::Clean { large: false });
        match job {
            Job::Request { pipe: Some(pipe), is_quick } if !is_quick && !lock(&pipe).is_over => {
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
                return;
            }
            Job::Request { pipe, .. } => {
                if let Some(pipe) = pipe {
                    let mut pipe = lock(&pipe);
                    pipe.is_received_by_handler = false;
                    if !pipe.is_complete {
                        close = Some(Close::Clean { large: false });
                    }
                    self.bodies.push((self.world.served.len() - 1, pipe.received.clone(), pipe.is_complete));
                }
                if self.world.random.one_in(3) {
                    let mut answer = self.world.answer();
                    answer.keep_alive &= close.is_none();
                    answer.is_waiting = self.world.random.one_in(3);
                    return self.hand_back(Box::new(answer));
                }
            }
            Job::Continue(mut answer) => {
                answer.sent += answer.left / 2;
                answer.left -= answer.left / 2;
                if answer.left > 100 {
                    return self.hand_back(answer);
                }
                close = (!answer.keep_alive).then_some(Close::after(answer.sent));
            }
        }
        self.idle_since = self.world.now;
        if close.is_none() && !self.is_awaited {
            return;
        }
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

    fn hand_back(&mut self, answer: Box<Sending>) {
        self.is_awaited = false;
        self.event(|conn, _, world| conn.handed_back(answer, world));
    }

    /// Whether no job has the lease. Otherwise the connection will be notified of the job's end.
    fn has_lease_back(&mut self) -> bool {
        self.is_awaited = self.job.is_some();
        !self.is_awaited
    }

    fn event(&mut self, event: impl FnOnce(&mut Conn<Carried>, &mut Input<'_>, &mut World) -> Act<Carried>) {
        self.event_with(&[], event);
    }

    fn event_with(
        &mut self,
        bytes: &[u8],
        event: impl FnOnce(&mut Conn<Carried>, &mut Input<'_>, &mut World) -> Act<Carried>,
    ) {
        let Some(mut conn) = self.conn.take() else { return };
        let mut kept = conn.take_input();
        kept.extend_from_slice(bytes);
        let mut input = Input::new(&kept);
        let act = event(&mut conn, &mut input, &mut self.world);
        let is_alive = self.perform(&mut conn, act, &mut input);
        let used = input.used();
        if !is_alive {
            drop(conn.release());
            return;
        }
        conn.keep(kept, used);
        self.conn = Some(conn);
        self.settle();
    }

    /// What a shard does after each event.
    fn settle(&mut self) {
        let Some(conn) = &mut self.conn else { return };
        self.wants = conn.wants(self.is_reading, self.world.stopping);
        let Wants { read, answer, deadline } = self.wants;
        assert!(deadline > 0 && deadline < self.world.now + WAIT_MAX, "a connection without a deadline");
        assert!(!read || !self.has_ended, "reading after the client's end");
        let held = conn.held();
        assert!(held <= self.world.limits.head.bytes_max + 2 * PIECE_MAX, "{held} bytes are held");
        if read && self.world.is_busy && held > 0 {
            assert!(conn.reads_body(), "reading more while input is waiting");
        }
        self.is_reading |= read;
        if answer && self.has_lease_back() {
            self.world.is_busy = false;
            self.event(|conn, input, world| conn.answered(None, input, world));
        }
    }

    /// Performs the connection's acts. Returns `false` if it was dropped.
    fn perform(&mut self, conn: &mut Conn<Carried>, mut act: Act<Carried>, input: &mut Input<'_>) -> bool {
        for acts in 0.. {
            assert!(acts < EVENTS_MAX, "an event has endless acts");
            assert!(!matches!(act, Act::Drive) || conn.answer().is_some(), "there is nothing to send");
            act = match act {
                Act::Wait => return true,
                Act::Drop => return false,
                Act::AwaitRoom => {
                    self.awaits_room = true;
                    return true;
                }
                Act::End(mut end) => {
                    assert_eq!(self.world.collected, 0, "responses that were not sent");
                    assert!(self.job.is_none(), "an end during a job");
                    end.is_read &= input.rest().is_empty();
                    if end.close != Close::Abort && !end.may_close() {
                        assert!(!self.has_ended, "waiting for a client that has ended its input");
                        let (closing, deadline) = Closing::new(end, self.world.now, &self.world.limits);
                        (self.closing, self.wants.deadline, self.is_reading) = (Some(closing), deadline, true);
                    }
                    return false;
                }
                Act::Write(then) => self.write(conn, then, input),
                Act::Answer(mut answer) => {
                    self.begin_exchange();
                    if self.world.random.one_in(3) {
                        let act = conn.handed_over(&self.world);
                        self.start(Job::Continue(answer));
                        act
                    } else {
                        let next = self.send(&mut answer, false);
                        conn.began(next, answer, input, &mut self.world)
                    }
                }
                Act::Drive => match conn.answer() {
                    None => Act::Drop,
                    Some((_, false)) if self.world.random.one_in(3) => conn.go_on_by_worker(&self.world),
                    Some((answer, is_memory)) => {
                        let next = self.send(answer, is_memory);
                        conn.drove(next, input, &mut self.world)
                    }
                },
                Act::Continue(answer) => {
                    self.start(Job::Continue(answer));
                    Act::Wait
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
        assert!(self.job.is_none() && !self.is_sending, "two jobs at once");
        assert_eq!(self.world.collected, 0, "a job begins before what was answered is sent");
        self.job = Some(job);
        self.is_awaited = false;
    }

    fn write(&mut self, conn: &mut Conn<Carried>, then: Then<Carried>, input: &mut Input<'_>) -> Act<Carried> {
        assert!(self.job.is_none() && !self.world.is_busy && !self.is_sending, "two writers at once");
        self.world.collected = 0;
        match self.world.random.below(8) {
            0 => {
                (self.is_sending, self.world.is_busy) = (true, true);
                conn.sending(None, then, &self.world)
            }
            1 => {
                self.world.is_busy = true;
                let rest = Sending { left: 1000, sent: 10, keep_alive: true, is_waiting: false, progress: None };
                conn.sending(Some(Box::new(rest)), then, &self.world)
            }
            2 if self.world.random.one_in(20) => Act::Drop,
            _ => conn.sent(then, input, &mut self.world),
        }
    }

    /// Sends a part of a response.
    fn send(&mut self, answer: &mut Sending, is_memory: bool) -> Next {
        let random = &mut self.world.random;
        let n = answer.left.min(random.below(50_000) as u64);
        answer.left -= n;
        answer.sent += n;
        let next = match random.below(6) {
            _ if answer.left == 0 => Next::Over(Over::complete(answer.keep_alive, answer.sent)),
            0 if random.one_in(10) => Next::Over(Over::ABORTED),
            1 if !is_memory => Next::AtSource,
            2 => Next::AtOnce,
            _ => Next::AtRoom,
        };
        if let Next::Over(_) = next {
            self.world.is_busy = false;
            self.idle_since = self.world.now;
        }
        next
    }

    fn dispatch(&mut self, conn: &mut Conn<Carried>, request: Request<Carried>, input: &mut Input<'_>) -> Act<Carried> {
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
