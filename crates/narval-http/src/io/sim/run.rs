use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use super::client::{self, Client};
use super::{Network, Random, pattern};
use crate::io::driver::sim::SimDriver;
use crate::io::socket::Socket;
use crate::run::clock::Clock;
use crate::run::mailbox::{Mailbox, Message};
use crate::run::server_state::ServerState;
use crate::run::shard::Shard;
use crate::run::worker::Worker;
use crate::{
    Body, BodySource, BodyWaker, FileRange, Fill, Handler, HeadRef, Limits, Request, Response, SegmentBuf, Snapshot,
    StatusCode,
};

/// Steps after which a run must have come to its end.
const STEPS_MAX: usize = 200_000;

/// What came of a run; equal for equal seeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Steps the run took.
    pub steps: usize,
    /// Bytes the server sent.
    pub bytes_sent: u64,
    /// Requests answered.
    pub requests: u64,
}

/// The server, ready to be run step by step.
struct Simulation {
    network: Network,
    shard: Shard<SimDriver>,
    worker: Worker,
    server: Arc<ServerState>,
    mailbox: Arc<Mailbox>,
}

/// Runs well-behaved and faulty clients against the server, and checks every answer. Panics where one is wrong.
///
/// # Errors
/// No temporary file can be made.
pub fn conversation(seed: u64) -> io::Result<Report> {
    let mut random = Random::new(seed ^ 0x5eed);
    let mut simulation = Simulation::new(seed)?;
    let mut clients: Vec<Client> = (0..1 + random.below(6))
        .map(|_| {
            let count = 1 + random.below(12);
            let (script, expected) = client::conversation(&mut random, count);
            Client::connect(&simulation.network, script, expected, random.one_in(3))
        })
        .collect();
    // Some servers are stopped in the middle of it.
    let stop_at = random.one_in(4).then(|| random.below(200));
    let steps = simulation.play(&mut clients, 400, stop_at, &mut random)?;
    for client in &clients {
        client.check(&simulation.network, stop_at.is_some());
    }
    Ok(simulation.report(steps))
}

/// Feeds arbitrary bytes to the server over several connections. Panics only where the server breaks one of its own rules.
///
/// # Errors
/// No temporary file can be made.
pub fn garbage(seed: u64, input: &[u8]) -> io::Result<Report> {
    let mut random = Random::new(seed ^ 0xbad);
    let mut simulation = Simulation::new(seed)?;
    let size = 1 + random.below(input.len() + 1);
    let mut clients: Vec<Client> = input
        .chunks(size)
        .take(16)
        .map(|chunk| Client::connect(&simulation.network, chunk.to_vec(), Vec::new(), true))
        .collect();
    let stop_at = random.one_in(4).then(|| random.below(50));
    let steps = simulation.play(&mut clients, 100, stop_at, &mut random)?;
    Ok(simulation.report(steps))
}

impl Simulation {
    fn new(seed: u64) -> io::Result<Self> {
        let network = Network::new(seed);
        let mut file = tempfile()?;
        file.write_all(&pattern(400_000))?;
        // Bodies are complete before a handler runs: it must not wait, for nobody would wake it.
        let limits = Limits { body_buffer_max: 1 << 20, body_max: 1 << 20, ..Limits::default() };
        let handler = Arc::new(Simulated { file: Arc::new(file) });
        let server = Arc::new(ServerState::new(handler, limits, Clock::Simulated(network.time()), None, None));
        let mailbox = Mailbox::simulated();
        let driver = SimDriver::new(network.clone());
        let mut shard = Shard::new(server.clone(), driver, mailbox.clone(), vec![mailbox.clone()]);
        shard.listen(vec![Arc::new(Socket::Nowhere)])?;
        Ok(Self { worker: Worker::new(server.clone()), network, shard, server, mailbox })
    }

    /// One turn of the shard, some of the workers' jobs, a little time.
    fn step(&mut self, random: &mut Random) -> io::Result<bool> {
        let alive = self.shard.turn()?;
        for _ in 0..random.below(4) {
            if let Some(job) = self.server.pool.try_take().or_else(|| self.server.streams.try_take()) {
                self.worker.run_job(job);
            }
        }
        self.network.pass(random.below(3) as u64);
        Ok(alive)
    }

    /// Lets the clients act for up to `turns` steps. Then everybody is in a hurry, and the server is told to stop once it has
    /// nothing more to do. Returns the number of steps.
    fn play(
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
        for client in clients {
            client.hurry(&self.network);
        }
        Ok(turns + self.run_to_end(random)?)
    }

    /// Runs until nothing happens any more, then stops the server and runs until it has stopped.
    fn run_to_end(&mut self, random: &mut Random) -> io::Result<usize> {
        let mut steps = 0;
        let (mut quiet, mut sent) = (0, (0, 0));
        while quiet < 100 {
            self.step(random)?;
            let progress = self.network.traffic();
            quiet = if progress == sent { quiet + 1 } else { 0 };
            sent = progress;
            steps += 1;
            assert!(steps < STEPS_MAX, "the server never comes to rest");
        }
        self.mailbox.post(Message::Stop);
        while self.step(random)? {
            self.network.pass(20);
            steps += 1;
            assert!(steps < STEPS_MAX, "the server never stops: {:?}", self.snapshot());
        }
        let end = self.snapshot();
        assert_eq!(end.connections_open, 0, "every connection is closed at the end");
        Ok(steps)
    }

    fn snapshot(&self) -> Snapshot {
        self.server.counters.snapshot()
    }

    fn report(&self, steps: usize) -> Report {
        let end = self.snapshot();
        Report { steps, bytes_sent: end.bytes_sent, requests: end.requests() }
    }
}

fn tempfile() -> io::Result<File> {
    // Without a name: nothing is left behind (memfd_create(2)).
    Ok(rustix::fs::memfd_create("narval-sim", rustix::fs::MemfdFlags::CLOEXEC)?.into())
}

/// Answers `/kind/length` with `pattern(length)`, and a POST with the length of its body.
struct Simulated {
    file: Arc<File>,
}

impl Handler for Simulated {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        let (kind, length) = head.path().strip_prefix('/')?.split_once('/')?;
        let length = length.parse::<usize>().ok()?;
        let body = match kind {
            "inline" => Body::bytes(pattern(length.min(1 << 20))),
            "at-once" => {
                Body::file(FileRange { file: self.file.clone(), offset: 0, length: length.min(400_000) as u64 })
            }
            _ => return None,
        };
        Some(Response::new(StatusCode::OK).body(body))
    }

    fn handle(&self, mut request: Request) -> Response {
        let (kind, length) = request.path().trim_start_matches('/').split_once('/').unwrap_or_default();
        let length = length.parse::<usize>().unwrap_or_default().min(400_000);
        let range = |offset: usize, length: usize| FileRange {
            file: self.file.clone(),
            offset: offset as u64,
            length: length as u64,
        };
        let source = |with_files: bool| Pieces { at: 0, length, file: with_files.then(|| self.file.clone()) };
        let body = match kind {
            "bytes" => Body::bytes(pattern(length)),
            "file" => Body::file(range(0, length)),
            "length" => Body::source(source(false), Some(length as u64)),
            "chunked" => Body::source(source(false), None),
            "mixed" => Body::source(source(true), None),
            "waits" => Body::source(Waits { pieces: source(false), rested: false }, None),
            "post" | "chunks" => {
                // A body of which the rest waits for `100 Continue` is not read: nobody would send it.
                let mut body = Vec::new();
                if request.header("expect").is_none() && request.body().read_to_end(&mut body).is_err() {
                    return Response::new(StatusCode::BAD_REQUEST);
                }
                Body::bytes(body.len().to_string())
            }
            _ => return Response::new(StatusCode::NOT_FOUND),
        };
        Response::new(StatusCode::OK).body(body)
    }
}

/// Has nothing for a while before each piece, in all the ways there are.
struct Waits {
    pieces: Pieces,
    rested: bool,
}

impl BodySource for Waits {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        self.rested = !self.rested;
        if self.rested { Ok(Fill::Wait) } else { self.pieces.fill(out) }
    }

    fn wait(&mut self, waker: BodyWaker) -> Duration {
        match self.pieces.at / 50_000 % 3 {
            0 => return Duration::ZERO,
            1 => waker.wake(),
            _ => drop(waker),
        }
        Duration::from_millis(3)
    }

    fn never_blocks(&self) -> bool {
        self.pieces.length.is_multiple_of(2)
    }
}

struct Pieces {
    at: usize,
    length: usize,
    file: Option<Arc<File>>,
}

impl BodySource for Pieces {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let n = (self.length - self.at).min(50_000);
        let half = n / 2;
        match &self.file {
            Some(file) => {
                out.push_file(FileRange { file: file.clone(), offset: self.at as u64, length: half as u64 });
            }
            None => out.memory().extend(pattern(self.at + half).drain(self.at..)),
        }
        out.memory().extend(pattern(self.at + n).drain(self.at + half..));
        self.at += n;
        Ok(if self.at == self.length { Fill::Done } else { Fill::More })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversations_over_many_seeds() {
        let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
        let seeds = number("NARVAL_SEED").map_or(0..number("NARVAL_SEEDS").unwrap_or(100), |seed| seed..seed + 1);
        for seed in seeds {
            println!("NARVAL_SEED={seed}");
            conversation(seed).unwrap();
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_run() {
        for seed in [1, 7, 42] {
            assert_eq!(conversation(seed).unwrap(), conversation(seed).unwrap(), "seed {seed}");
        }
    }

    #[test]
    fn garbage_over_many_seeds() {
        let words: &[&[u8]] = &[
            b"GET ",
            b"POST ",
            b"/inline/9 ",
            b"/bytes/70000 ",
            b"/mixed/200000 ",
            b"HTTP/1.1\r\n",
            b"HTTP/1.0\r\n",
            b"Host: a\r\n",
            b"\r\n",
            b"Content-Length: 10\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"5\r\nhello\r\n",
            b"0\r\n\r\n",
            b"\0",
            b"Expect: 100-continue\r\n",
            b"Connection: close\r\n",
            b"\n",
            b"x",
        ];
        for seed in 0..200 {
            println!("seed {seed}");
            let mut random = Random::new(seed);
            let input: Vec<u8> =
                (0..random.below(60)).flat_map(|_| words[random.below(words.len())].to_vec()).collect();
            garbage(seed, &input).unwrap();
        }
    }

    /// A socket counts as writable only when a third of its buffer is free: a slow client's does not for many deadlines.
    #[test]
    fn a_slow_client_is_served_to_the_end_and_one_that_is_too_slow_is_not() {
        for (at, kind) in ["inline", "at-once", "bytes", "file", "length", "chunked", "mixed"].into_iter().enumerate() {
            for (bytes, is_served) in [(20_000, true), (10_000, false)] {
                let mut random = Random::new(at as u64);
                let mut simulation = Simulation::new(at as u64).unwrap();
                let expected = client::Expected { status: 200, body: pattern(140_000), is_head: false };
                let script = format!("GET /{kind}/140000 HTTP/1.1\r\nHost: s\r\n\r\n").into_bytes();
                let mut client = Client::connect(&simulation.network, script, vec![expected], false);
                client.trickle(&simulation.network, 0);
                for _ in 0..100 {
                    simulation.step(&mut random).unwrap();
                }
                for _ in 0..1000 {
                    // So many bytes in 300 s, which is the write deadline's window.
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

    /// The process is stopped, or its machine frozen, for longer than a head may take; the head is there when it goes on.
    #[test]
    fn input_that_came_in_time_is_served_however_late_the_server_looks() {
        for seed in 0..50 {
            let mut random = Random::new(seed);
            let mut simulation = Simulation::new(seed).unwrap();
            let expected = client::Expected { status: 200, body: pattern(9), is_head: false };
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
