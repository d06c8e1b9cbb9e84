use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::client::Client;
#[cfg(test)]
use super::expected::UPLOADS_MAX;
use super::handler::{Served, Simulated};
use super::pattern;
use super::websocket::Tally;
use crate::http1::date;
use crate::io::clock::Clock;
use crate::io::driver::sim::SimDriver;
use crate::io::sim::{Baton, Network, Random};
use crate::io::socket::Socket;
#[cfg(test)]
use crate::limits::HTTP2_STREAM_WINDOW;
use crate::limits::Limits;
use crate::observe::counters::Snapshot;
use crate::run::connection::Connection;
use crate::run::job::Job;
use crate::run::mailbox::{Mailbox, Message};
use crate::run::server::state::ServerState;
use crate::run::shard::Shard;
use crate::run::worker::Worker;
use crate::tls::Acceptor;

/// The maximum number of steps in a run.
const STEPS_MAX: usize = 200_000;

/// The result of a run. Equal for equal seeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The number of steps.
    pub steps: usize,
    /// The number of bytes that the server sent.
    pub bytes_sent: u64,
    /// The number of requests answered.
    pub requests: u64,
    /// The number of handlers with a thread of their own: those of streamed bodies.
    pub streams: u64,
    /// The number of TLS handshakes.
    pub handshakes: u64,
    /// The number of WebSockets opened.
    pub websockets: u64,
    /// The number of requests answered over HTTP/2.
    pub http2: u64,
}

/// The server, run step by step.
pub(super) struct Simulation {
    pub(super) network: Network,
    shard: Shard<SimDriver<Connection>>,
    worker: Worker,
    pub(super) server: Arc<ServerState>,
    mailbox: Arc<Mailbox>,
    /// The handlers with a thread of their own: those that read or write streamed bodies.
    baton: Arc<Baton>,
    tally: Arc<Tally>,
    served: Arc<Mutex<Vec<Served>>>,
    /// Handlers of streamed bodies that run, and their maximum number.
    streams: Arc<AtomicUsize>,
    streams_max: usize,
}

/// Runs well-behaved and faulty clients against the server, and checks every response. Panics if one is wrong.
///
/// # Errors
/// A temporary file cannot be created.
pub fn conversation(seed: u64) -> io::Result<Report> {
    let mut random = Random::new(seed ^ 0x5eed);
    let mut simulation = Simulation::new(seed)?;
    let count = 1 + random.below(6);
    let mut clients: Vec<_> = (0..count).map(|_| Client::any(&simulation.network, &mut random)).collect();
    // Some servers are stopped in the middle of the run.
    let stop_at = random.one_in(4).then(|| random.below(200));
    let steps = simulation.play(&mut clients, 400, stop_at, &mut random)?;
    for client in &mut clients {
        client.check(&simulation.network, stop_at.is_some());
    }
    Ok(simulation.report(steps))
}

/// Runs many clients that upload at the same time to a server with little memory and few threads for their bodies. No
/// upload is refused, and all of them end, whatever the others do. Panics if one does not.
///
/// A server refuses bodies once twice its memory is in use, since it cannot stop what clients send within the windows of HTTP/2 that
/// they have from the start. Here, all of these together are no more than the memory.
///
/// # Errors
/// A temporary file cannot be created.
#[cfg(test)]
fn uploads(seed: u64) -> io::Result<Report> {
    let mut random = Random::new(seed ^ 0xb0d1e5);
    let with_http2 = 6 + random.below(2);
    let limits = Limits {
        body_buffer_max: [1 << 20, 65_536, 1000][random.below(3)],
        body_window: [1, 5000, 256 << 10][random.below(3)],
        body_memory_max: with_http2 * UPLOADS_MAX * HTTP2_STREAM_WINDOW as usize,
        ..limits()
    };
    let mut simulation = Simulation::with(seed, limits, 1 + random.below(3))?;
    let count = 4 * with_http2;
    let mut clients: Vec<_> =
        (0..count).map(|number| Client::uploading(&simulation.network, &mut random, number % 4 == 0)).collect();
    // Some send everything at once.
    let turns = if random.one_in(2) { 300 } else { 1 };
    let steps = simulation.play(&mut clients, turns, None, &mut random)?;
    for client in &mut clients {
        client.check(&simulation.network, false);
    }
    Ok(simulation.report(steps))
}

fn limits() -> Limits {
    Limits {
        body_max: 1 << 20,
        // No threads are started: the simulation runs the jobs.
        streamed_bodies_max: 0,
        ..Limits::default()
    }
}

impl Simulation {
    pub(super) fn new(seed: u64) -> io::Result<Self> {
        let mut random = Random::new(seed ^ 0x11417);
        let limits = Limits {
            // All bodies are buffered, most are, or none is.
            body_buffer_max: [1 << 20, 100_000, 1000, 0][random.below(4)],
            body_window: [0, 1, 5000, 100_000][random.below(4)],
            ..limits()
        };
        Self::with(seed, limits, usize::MAX)
    }

    fn with(seed: u64, limits: Limits, streams_max: usize) -> io::Result<Self> {
        date::stop();
        let network = Network::new(seed);
        let (baton, tally) = (Arc::new(Baton::default()), Arc::new(Tally::default()));
        let served = Arc::<Mutex<Vec<Served>>>::default();
        let handler = Simulated { file: file()?, baton: baton.clone(), tally: tally.clone(), served: served.clone() };
        let clock = Clock::Simulated(network.time());
        let server =
            Arc::new(ServerState { acceptor: acceptor(), ..ServerState::new(Arc::new(handler), limits, clock) });
        let mailbox = Mailbox::simulated();
        let driver = SimDriver::new(network.clone());
        let mut shard = Shard::new(server.clone(), driver, mailbox.clone(), vec![mailbox.clone()]);
        shard.listen(vec![Arc::new(Socket::Sim(crate::io::sim::SimSocket::listener()))])?;
        Ok(Self {
            worker: Worker::new(server.clone()),
            network,
            shard,
            server,
            mailbox,
            baton,
            tally,
            served,
            streams: Arc::default(),
            streams_max,
        })
    }

    /// One iteration of the shard, some of the workers' jobs, and a little time.
    fn step(&mut self, random: &mut Random) -> io::Result<bool> {
        let alive = self.shard.turn()?;
        for _ in 0..random.below(4) {
            self.work(random)?;
        }
        self.network.pass(random.below(3) as u64);
        Ok(alive)
    }

    /// A job, or a participant's turn.
    fn work(&mut self, random: &mut Random) -> io::Result<()> {
        let participants = self.baton.len();
        if participants > 0 && random.one_in(2) {
            self.baton.pass_to(random.below(participants));
        } else if random.one_in(2)
            && self.streams.load(Ordering::Relaxed) < self.streams_max
            && let Some(job) = self.server.streams.try_take()
        {
            let mut worker = Worker::new(self.server.clone());
            let streams = self.streams.clone();
            streams.fetch_add(1, Ordering::Relaxed);
            self.baton.add(move || {
                date::stop();
                worker.run_job(job);
                streams.fetch_sub(1, Ordering::Relaxed);
            })?;
        } else if let Some(job) = self.next_job() {
            self.worker.run_job(job);
        }
        Ok(())
    }

    fn next_job(&self) -> Option<Job> {
        self.server.pool.try_take().or_else(|| self.server.handshakes.try_take())
    }

    /// Lets the clients act for up to `turns` steps. After that they only finish, and the server is stopped once it is
    /// idle. Returns the number of steps.
    pub(super) fn play(
        &mut self,
        clients: &mut [Client],
        turns: usize,
        stop_at: Option<usize>,
        random: &mut Random,
    ) -> io::Result<usize> {
        let turns = random.below(turns);
        for turn in 0..turns {
            if stop_at == Some(turn) {
                self.mailbox.post(Message::Stop);
            }
            for client in &mut *clients {
                client.act(&self.network);
            }
            self.step(random)?;
        }
        for client in &mut *clients {
            client.hurry(&self.network);
        }
        Ok(turns + self.run_to_end(clients, random)?)
    }

    /// Runs until the server is idle, then stops it and runs until it has stopped.
    fn run_to_end(&mut self, clients: &mut [Client], random: &mut Random) -> io::Result<usize> {
        let mut steps = 0;
        let (mut quiet, mut sent) = (0, (0, 0));
        while quiet < 100 {
            self.step(random)?;
            clients.iter_mut().for_each(|client| client.attend(&self.network));
            let progress = self.network.traffic();
            quiet = if progress == sent { quiet + 1 } else { 0 };
            sent = progress;
            steps += 1;
            assert!(steps < STEPS_MAX, "the server never becomes idle");
        }
        self.mailbox.post(Message::Stop);
        while self.step(random)? {
            clients.iter_mut().for_each(|client| client.attend(&self.network));
            self.network.pass(20);
            steps += 1;
            assert!(steps < STEPS_MAX, "the server never stops: {}", self.what_is_left());
        }
        self.shard.leave();
        while self.has_work() {
            self.work(random)?;
            steps += 1;
            assert!(steps < STEPS_MAX, "{} handlers wait when the server has stopped", self.baton.len());
        }
        self.check_that_nothing_is_left();
        Ok(steps)
    }

    fn has_work(&self) -> bool {
        let ServerState { pool, streams, handshakes, .. } = &*self.server;
        self.baton.len() > 0 || [pool, streams, handshakes].into_iter().any(|pool| pool.has_work())
    }

    /// Checks that everything a connection held was released.
    fn check_that_nothing_is_left(&self) {
        let end = self.snapshot();
        assert_eq!(end.connections_open, 0, "every connection is closed at the end");
        assert_eq!(self.server.admission.in_use(), (0, 0), "connections and handshakes that are still counted");
        assert_eq!(self.network.held(), 0, "sockets that are still held");
        assert_eq!(self.server.body_memory.used(), 0, "memory for bodies");
        assert_eq!(self.server.output_memory.usage().used, 0, "memory for clients");
        assert_eq!(end.panics, 0, "a handler panicked");
        let Tally { opened, closed, faults } = &*self.tally;
        let [opened, closed, faults] = [opened, closed, faults].map(|count| count.load(Ordering::Relaxed));
        assert_eq!((opened, faults), (closed, 0), "WebSockets opened and closed, and faults");
    }

    fn what_is_left(&mut self) -> String {
        let (open, participants) = (self.snapshot().connections_open, self.baton.len());
        format!("{open} connections, {participants} handlers that wait; {}", self.shard.describe())
    }

    /// The requests that handlers were called with, in order.
    pub(super) fn served(&self) -> Vec<Served> {
        std::mem::take(&mut *self.served.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn snapshot(&self) -> Snapshot {
        self.server.counters.snapshot()
    }

    pub(super) fn report(&self, steps: usize) -> Report {
        let end = self.snapshot();
        Report {
            steps,
            bytes_sent: end.bytes_sent,
            requests: end.requests(),
            streams: self.baton.added(),
            handshakes: end.handshakes,
            websockets: self.tally.opened.load(Ordering::Relaxed) as u64,
            http2: end.answers_http2,
        }
    }
}

/// The TLS side of the server, for clients over TCP.
fn acceptor() -> Option<Acceptor> {
    #[cfg(all(test, feature = "tls"))]
    return Some(super::tls::acceptor());
    #[cfg(not(all(test, feature = "tls")))]
    None
}

/// The file that responses are from, the same in all runs.
fn file() -> io::Result<Arc<File>> {
    static FILE: OnceLock<Arc<File>> = OnceLock::new();
    if let Some(file) = FILE.get() {
        return Ok(file.clone());
    }
    // Without a name, so nothing remains (memfd_create(2)).
    let mut file = File::from(rustix::fs::memfd_create("narval-sim", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(&pattern(400_000))?;
    Ok(FILE.get_or_init(|| Arc::new(file)).clone())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::expected::Expected;
    use super::*;

    #[test]
    fn conversations_over_many_seeds() {
        let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
        let seeds = number("NARVAL_SEED").map_or(0..number("NARVAL_SEEDS").unwrap_or(100), |seed| seed..seed + 1);
        let is_one = seeds.end - seeds.start == 1;
        let (mut streams, mut handshakes, mut websockets, mut http2) = (0, 0, 0, 0);
        for seed in seeds {
            println!("NARVAL_SEED={seed}");
            let report = conversation(seed).unwrap();
            streams += report.streams;
            handshakes += report.handshakes;
            websockets += report.websockets;
            http2 += report.http2;
        }
        let had_tls = (handshakes > 0 && http2 > 0) || cfg!(not(feature = "tls"));
        let had_all = streams > 0 && websockets > 0 && had_tls;
        assert!(
            is_one || had_all,
            "{streams} streamed bodies, {handshakes} handshakes, {websockets} WebSockets, {http2} answers over HTTP/2"
        );
    }

    /// Of a `100 Continue` the socket took a part, and the answer followed that.
    #[test]
    fn nothing_follows_a_part_of_an_interim_response() {
        conversation(16_455).unwrap();
    }

    #[test]
    fn every_upload_ends_however_many_there_are() {
        let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
        let seeds = number("NARVAL_SEED").map_or(0..number("NARVAL_SEEDS").unwrap_or(40), |seed| seed..seed + 1);
        for seed in seeds {
            println!("NARVAL_SEED={seed}");
            let report = uploads(seed).unwrap();
            assert!(report.streams > 0, "no body waited for a thread");
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_run() {
        for seed in 0..20 {
            assert_eq!(conversation(seed).unwrap(), conversation(seed).unwrap(), "seed {seed}");
        }
    }

    /// A socket counts as writable only if a third of its buffer is free, which for a slow client can take many
    /// deadlines.
    #[test]
    fn a_slow_client_is_served_to_the_end_and_one_that_is_too_slow_is_not() {
        for (at, kind) in
            ["inline", "at-once", "bytes", "file", "length", "chunked", "mixed", "waits"].into_iter().enumerate()
        {
            for (bytes, is_served) in [(20_000, true), (10_000, false)] {
                let mut random = Random::new(at as u64);
                let mut simulation = Simulation::new(at as u64).unwrap();
                let expected = Expected { status: 200, body: pattern(140_000), is_head: false };
                let script = format!("GET /{kind}/140000 HTTP/1.1\r\nHost: s\r\n\r\n").into_bytes();
                let mut client = Client::connect(&simulation.network, script, vec![expected], false);
                client.trickle(&simulation.network, 0);
                for _ in 0..100 {
                    simulation.step(&mut random).unwrap();
                }
                for _ in 0..1000 {
                    // This many bytes in 300 s, which is the write deadline's window.
                    client.trickle(&simulation.network, bytes / 30);
                    simulation.network.pass(10_000);
                    for _ in 0..10 {
                        simulation.step(&mut random).unwrap();
                    }
                    if simulation.snapshot().connections_open == 0 {
                        break;
                    }
                }
                client.check(&simulation.network, false);
                let end = simulation.snapshot();
                assert_eq!((end.timeouts, end.aborts), if is_served { (0, 0) } else { (1, 1) }, "{kind} {bytes}");
            }
        }
    }

    /// The process or its machine is suspended for longer than the head timeout; the head has arrived when it continues.
    #[test]
    fn input_that_came_in_time_is_served_however_late_the_server_looks() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let mut simulation = Simulation::new(seed).unwrap();
            let expected = Expected { status: 200, body: pattern(9), is_head: false };
            let mut slow = Client::connect(
                &simulation.network,
                b"GET /inline/9 HTTP/1.1\r\nHost: s\r\n\r\n".to_vec(),
                vec![expected],
                false,
            );
            slow.send(&simulation.network, 5);
            for _ in 0..50 {
                simulation.step(&mut random).unwrap();
            }
            slow.hurry(&simulation.network);
            simulation.network.pass(Duration::from_secs(3600).as_millis() as u64);
            for _ in 0..200 {
                simulation.step(&mut random).unwrap();
            }
            slow.check(&simulation.network, false);
        }
    }

    #[test]
    fn idle_and_half_open_clients_are_gone_after_their_deadlines() {
        let mut random = Random::new(3);
        let mut simulation = Simulation::new(3).unwrap();
        let mut clients: Vec<Client> = [&b""[..], b"GET", b"GET /bytes/1 HTTP/1.1\r\nHost: s\r\n\r\n"]
            .into_iter()
            .map(|script| Client::connect(&simulation.network, script.to_vec(), Vec::new(), false))
            .collect();
        clients.iter_mut().for_each(|client| client.hurry(&simulation.network));
        for _ in 0..200 {
            simulation.step(&mut random).unwrap();
        }
        assert_eq!(simulation.snapshot().connections_open, 3);
        simulation.network.pass(Duration::from_secs(11).as_millis() as u64);
        for _ in 0..20 {
            simulation.step(&mut random).unwrap();
        }
        assert_eq!(simulation.snapshot().connections_open, 1, "heads have 10 s");
        simulation.network.pass(Duration::from_secs(76).as_millis() as u64);
        for _ in 0..20 {
            simulation.step(&mut random).unwrap();
        }
        assert_eq!(simulation.snapshot().connections_open, 0, "idle connections have 75 s");
    }
}
