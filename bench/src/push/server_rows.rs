//! The cost of pushes for a server: a recorded push is sent to servers with empty data folders.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::put::{Pushing, Sending};
use super::replay::replay;
use super::target::{Fresh, Target};
use super::trace::{Exchange, Trace};
use super::{ServerArgs, closure, floor, record, times, work_folder};
use crate::client::{Connection, Request};
use crate::load::nanoseconds;
use crate::process::{self, CpuTime};
use crate::proxy::{Proxy, ProxyOptions};
use crate::report::{median, time, write_json};
use crate::{Context, Result, failure};

/// A server that has run for less than a tenth of this time is idle.
const SETTLED: Duration = Duration::from_millis(50);
/// A server that is never idle is measured after this time anyway.
const SETTLING_MAX: Duration = Duration::from_secs(20);
/// The slow clients send the largest NARs; this many different ones.
const SLOW_NARS_MAX: usize = 8;
/// Accepted statuses for such a NAR under another's name, once it was received completely.
const SLOW_NAR_ENDS: [u16; 6] = [200, 201, 204, 400, 409, 422];
const COMPRESSIONS: [&str; 3] = ["none", "zstd", "xz"];
const CONNECTIONS: [usize; 3] = [1, 8, 64];

/// One run of one row on one server.
#[derive(Debug, Clone, Serialize)]
struct Sample {
    /// Time of the push.
    wall_ns: u64,
    /// Processor time of the server, until it is idle.
    cpu_ns: u64,
    /// The server's peak resident memory.
    resident_bytes_max: u64,
    /// Requests and bytes that were sent.
    requests: u64,
    bytes: u64,
}

/// One row of one server.
#[derive(Debug, Serialize)]
struct Measured {
    row: String,
    server: String,
    samples: Vec<Sample>,
    /// The floor of the row's trace, in nanoseconds of processor time, one for each repetition.
    floor_ns: Vec<u64>,
}

/// Latencies of narinfos, with and without pushing clients.
#[derive(Debug, Serialize)]
struct Reads {
    row: String,
    server: String,
    /// Median and 99th percentile, in nanoseconds.
    alone_ns: [f64; 2],
    beside_ns: [f64; 2],
}

/// Memory while many clients push.
#[derive(Debug, Serialize)]
struct Memory {
    row: String,
    server: String,
    resident_bytes_max: u64,
}

/// The number of sync system calls of a server during one push.
#[derive(Debug, Serialize)]
struct DurableCalls {
    row: String,
    server: String,
    calls: Vec<(&'static str, usize)>,
}

/// The results of a run.
#[derive(Debug, Default, Serialize)]
struct Figures {
    pushes: Vec<Measured>,
    memory: Vec<Memory>,
    reads: Vec<Reads>,
    durable_calls: Vec<DurableCalls>,
}

struct Rows<'a> {
    arguments: &'a ServerArgs,
    work: PathBuf,
    targets: Vec<Target>,
    figures: Figures,
}

/// Measures all rows.
///
/// # Errors
/// If a trace cannot be recorded, or a server refuses it.
pub fn run(arguments: &ServerArgs) -> Result<()> {
    let work = work_folder(&arguments.work)?;
    let paths = closure(&arguments.closure)?;
    let targets = [Target::Nginx].into_iter().chain(arguments.start.iter().cloned()).collect();
    let mut rows = Rows { arguments, work, targets, figures: Figures::default() };
    crate::websocket::raise_file_limit(4 * arguments.clients + 1000)?;
    let named = arguments.compression.iter().map(String::as_str);
    let compressions = if arguments.compression.is_empty() { COMPRESSIONS.to_vec() } else { named.collect() };
    for compression in compressions {
        let parameters = format!("compression={compression}&write-nar-listing=true");
        let trace = record::trace(&rows.work.join(format!("push-trace-{compression}")), &paths, &parameters)?;
        rows.all(compression, &trace)?;
    }
    write_json(arguments.json.as_deref(), &rows.figures)
}

impl Rows<'_> {
    fn all(&mut self, compression: &str, trace: &Trace) -> Result<()> {
        let connections = &self.arguments.connections;
        for &connections in if connections.is_empty() { &CONNECTIONS[..] } else { connections } {
            self.pushes(&format!("push, {compression}, {connections} connections"), trace, connections)?;
        }
        self.durable_calls(&format!("durable calls, {compression}"), trace)?;
        self.memory(&format!("memory, {compression}"), trace)?;
        self.reads(&format!("reads, {compression}"), trace)
    }

    fn is_wanted(&self, title: &str) -> bool {
        self.arguments.only.is_empty() || self.arguments.only.iter().any(|part| title.contains(part))
    }

    /// Pushes the whole closure, by one client with a number of connections.
    fn pushes(&mut self, title: &str, trace: &Trace, connections: usize) -> Result<()> {
        if !self.is_wanted(title) {
            return Ok(());
        }
        let mut samples = vec![Vec::new(); self.targets.len()];
        let mut floor_ns = Vec::new();
        for _ in 0..self.arguments.repetitions {
            floor_ns.push(nanoseconds(floor::verification(trace)?));
            for (target, samples) in self.targets.iter().zip(&mut samples) {
                samples.push(self.push(target, trace, connections).map_err(|e| at(target, e))?);
            }
        }
        let floor = median(floor_ns.iter().map(|&ns| ns as f64));
        println!("{title}: {:.0} MB; hashing and decoding take {}", trace.bytes() as f64 / 1e6, time(floor));
        let mut first = None;
        for (target, samples) in self.targets.iter().zip(samples) {
            let of = |value: fn(&Sample) -> f64| median(samples.iter().map(value));
            let (wall, cpu) = (of(|s| s.wall_ns as f64), of(|s| s.cpu_ns as f64));
            println!(
                "  {:<20} {:>10} {} nginx  processor {:>10} {} floor  {:>6.1} MB  {:.0} requests",
                target.name(),
                time(wall),
                times(wall, *first.get_or_insert(wall)),
                time(cpu),
                times(cpu, floor),
                of(|s| s.resident_bytes_max as f64) / 1e6,
                of(|s| s.requests as f64),
            );
            let (row, server) = (title.to_owned(), target.name().to_owned());
            self.figures.pushes.push(Measured { row, server, samples, floor_ns: floor_ns.clone() });
        }
        Ok(())
    }

    fn push(&self, target: &Target, trace: &Trace, connections: usize) -> Result<Sample> {
        let fresh = self.start(target)?;
        let pid = pid(&fresh)?;
        // writeback of earlier data must not happen during the measurement
        rustix::fs::sync();
        settle(pid);
        let before = CpuTime::of(pid);
        let options = ProxyOptions {
            round_trip: Duration::from_millis(self.arguments.round_trip_ms),
            ..ProxyOptions::to(fresh.server.base.address)
        };
        let far = (self.arguments.round_trip_ms > 0).then(|| Proxy::start(options)).transpose();
        let far = far.context(|| "cannot start the proxy".to_owned())?;
        let mut base = fresh.server.base.clone();
        base.address = far.as_ref().map_or(base.address, Proxy::address);
        let replayed = replay(&base, trace, connections, &fresh.sending())?;
        settle(pid);
        Ok(Sample {
            wall_ns: replayed.wall_ns,
            cpu_ns: CpuTime::of(pid).since(before),
            resident_bytes_max: process::resident_bytes(pid).1,
            requests: replayed.requests(),
            bytes: replayed.bytes,
        })
    }

    /// Starts a new server on its processors, and moves this process to those of the client.
    fn start(&self, target: &Target) -> Result<Fresh> {
        let fresh = target.start(&self.work, false)?;
        let ServerArgs { server_cpu, client_cpu, .. } = self.arguments;
        if !server_cpu.is_empty() {
            process::pin(pid(&fresh)?, server_cpu)?;
        }
        if !client_cpu.is_empty() {
            process::pin_self(client_cpu)?;
        }
        Ok(fresh)
    }

    /// One push under strace, which counts the sync system calls.
    fn durable_calls(&mut self, title: &str, trace: &Trace) -> Result<()> {
        if !self.is_wanted(title) {
            return Ok(());
        }
        println!("{title}: {} NARs, {} narinfos", trace.nars.len(), trace.units.len());
        for target in &self.targets {
            let fresh = target.start(&self.work, true)?;
            replay(&fresh.server.base, trace, 8, &fresh.sending()).map_err(|e| at(target, e))?;
            settle(pid(&fresh)?);
            let calls = fresh.durable_calls();
            println!("  {:<20} {calls:?}", target.name());
            let (row, server) = (title.to_owned(), target.name().to_owned());
            self.figures.durable_calls.push(DurableCalls { row, server, calls });
        }
        Ok(())
    }

    /// Memory while many clients send large NARs slowly.
    fn memory(&mut self, title: &str, trace: &Trace) -> Result<()> {
        if !self.is_wanted(title) {
            return Ok(());
        }
        let ServerArgs { clients, bytes_per_second, seconds, .. } = *self.arguments;
        println!("{title}: {clients} clients that send {bytes_per_second} bytes/s each for {seconds} s");
        for target in &self.targets {
            let fresh = self.start(target)?;
            let pid = pid(&fresh)?;
            let (before, _) = process::resident_bytes(pid);
            let until = Instant::now() + Duration::from_secs(seconds);
            thread::scope(|scope| self.slow_clients(scope, &fresh, trace, until)).map_err(|e| at(target, e))?;
            let (_, peak) = process::resident_bytes(pid);
            println!(
                "  {:<20} {:>7.1} MB at the start, {:.1} MB at most",
                target.name(),
                before as f64 / 1e6,
                peak as f64 / 1e6
            );
            let (row, server) = (title.to_owned(), target.name().to_owned());
            self.figures.memory.push(Memory { row, server, resident_bytes_max: peak });
        }
        Ok(())
    }

    /// Latency of narinfos on an idle server, and beside clients that send slowly.
    fn reads(&mut self, title: &str, trace: &Trace) -> Result<()> {
        if !self.is_wanted(title) {
            return Ok(());
        }
        let ServerArgs { clients, bytes_per_second, seconds, .. } = *self.arguments;
        println!("{title}: narinfos, alone and beside {clients} clients that send {bytes_per_second} bytes/s each");
        for target in &self.targets {
            let fresh = self.start(target)?;
            replay(&fresh.server.base, trace, 8, &fresh.sending()).map_err(|e| at(target, e))?;
            settle(pid(&fresh)?);
            let alone_ns = latencies(&fresh, trace, Duration::from_secs(seconds))?;
            let until = Instant::now() + Duration::from_secs(seconds + 2);
            let beside_ns = thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    thread::sleep(Duration::from_secs(1));
                    latencies(&fresh, trace, Duration::from_secs(seconds))
                });
                self.slow_clients(scope, &fresh, trace, until)?;
                reader.join().map_err(|_| failure!("the reading client panicked"))?
            });
            let beside_ns = beside_ns.map_err(|e| at(target, e))?;
            println!(
                "  {:<20} median {:>9} → {:>9}   99 % {:>9} → {:>9}",
                target.name(),
                time(alone_ns[0]),
                time(beside_ns[0]),
                time(alone_ns[1]),
                time(beside_ns[1]),
            );
            let (row, server) = (title.to_owned(), target.name().to_owned());
            self.figures.reads.push(Reads { row, server, alone_ns, beside_ns });
        }
        Ok(())
    }

    /// Clients that send the largest NARs at a limited rate until this moment, under names that the server does
    /// not have yet.
    fn slow_clients<'scope, 'env>(
        &'env self,
        scope: &'scope thread::Scope<'scope, 'env>,
        fresh: &'env Fresh,
        trace: &'env Trace,
        until: Instant,
    ) -> Result<()> {
        let rate = Some(self.arguments.bytes_per_second);
        let sending = Sending { bytes_per_second: rate, until: Some(until), ..fresh.sending() };
        let largest = trace.nars.iter().take(SLOW_NARS_MAX).filter_map(|nar| trace.exchanges.get(nar.exchange));
        let largest = largest.collect::<Vec<_>>();
        let clients = largest.iter().cycle().take(self.arguments.clients).enumerate().map(|(number, exchange)| {
            let (sending, exchange) = (sending.clone(), other_name(exchange, number));
            scope.spawn(move || {
                let mut connection = Pushing::new(&fresh.server.base, sending);
                // a small one ends early
                while let Some(answered) = connection.send(&exchange, &trace.folder)? {
                    if !SLOW_NAR_ENDS.contains(&answered.status) {
                        let said = String::from_utf8_lossy(&answered.body).into_owned();
                        return Err(failure!("a slow NAR: status {}: {}", answered.status, said.trim()));
                    }
                }
                Ok(())
            })
        });
        let clients = clients.collect::<Vec<_>>();
        clients.into_iter().try_for_each(|client| client.join().map_err(|_| failure!("a client panicked"))?)
    }
}

/// The same NAR under another name: the first characters of its hash are changed, so the server may refuse it at its end.
fn other_name(exchange: &Exchange, number: usize) -> Exchange {
    let name = exchange.target.trim_start_matches("/nar/");
    let rest = name.get(2..).unwrap_or_default();
    let digit =
        |number: usize| char::from(b"0123456789abcdfghijklmnpqrsvwxyz".get(number % 32).copied().unwrap_or(b'0'));
    let target = format!("/nar/{}{}{rest}", digit(number / 32), digit(number));
    Exchange { target, ..exchange.clone() }
}

/// Median and 99th percentile of sequential requests for narinfos.
fn latencies(fresh: &Fresh, trace: &Trace, duration: Duration) -> Result<[f64; 2]> {
    let sending = fresh.sending();
    let fields = sending.authorization.map_or(String::new(), |value| format!("Authorization: {value}\r\n"));
    let base = &fresh.server.base;
    let request = |hash_part: &String| Request::get(base, &format!("/{hash_part}.narinfo"), &fields, 200);
    let requests = trace.units.iter().map(|unit| request(&unit.hash_part)).collect::<Vec<_>>();
    let mut connection = Connection::open(base)?;
    let (began, mut took) = (Instant::now(), Vec::new());
    for request in requests.iter().cycle() {
        let asked = Instant::now();
        if asked - began > duration {
            break;
        }
        connection.ask(request)?;
        took.push(nanoseconds(asked.elapsed()));
    }
    took.sort_unstable();
    let at = |part: usize| {
        took.get((took.len() * part / 100).min(took.len().saturating_sub(1))).map_or(f64::NAN, |&ns| ns as f64)
    };
    Ok([at(50), at(99)])
}

/// Waits until the server is idle.
fn settle(pid: u32) {
    let began = Instant::now();
    loop {
        let before = CpuTime::of(pid);
        thread::sleep(SETTLED);
        let ran = CpuTime::of(pid).since(before);
        if u128::from(ran) < SETTLED.as_nanos() / 10 || began.elapsed() > SETTLING_MAX {
            return;
        }
    }
}

fn pid(fresh: &Fresh) -> Result<u32> {
    fresh.server.pid.ok_or_else(|| failure!("{}: its process is not known", fresh.server.name))
}

fn at(target: &Target, failure: crate::Failure) -> crate::Failure {
    crate::Failure(format!("{}: {failure}", target.name()))
}
