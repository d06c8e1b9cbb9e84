//! Replays a recorded push over a number of connections. A narinfo waits for those of its references; everything else is sent as
//! soon as a connection is free.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use super::put::{Answered, Pushing, Sending};
use super::trace::{Exchange, Trace, Unit};
use crate::client::BaseUrl;
use crate::load::nanoseconds;
use crate::{Result, failure};

/// The statuses that Nix accepts for a PUT.
const DONE: [u16; 5] = [200, 201, 204, 206, 304];

/// The result of a replay.
#[derive(Debug, Default)]
pub struct Replayed {
    /// From the first request to the last response.
    pub wall_ns: u64,
    /// The number of requests by method and status.
    pub statuses: BTreeMap<(String, u16), u64>,
    /// Bytes of the bodies that were sent.
    pub bytes: u64,
}

impl Replayed {
    /// How many requests were answered.
    pub fn requests(&self) -> u64 {
        self.statuses.values().sum()
    }

    fn add(&mut self, other: Replayed) {
        self.bytes += other.bytes;
        for (key, count) in other.statuses {
            *self.statuses.entry(key).or_default() += count;
        }
    }
}

/// The progress of the trace's paths.
#[derive(Default)]
struct Paths {
    /// Units that no connection has started.
    waiting: Vec<usize>,
    /// Hash parts whose narinfos are in the cache.
    committed: HashSet<String>,
    /// A connection failed; all stop.
    failed: bool,
}

struct Replay<'a> {
    trace: &'a Trace,
    paths: Mutex<Paths>,
    committed: Condvar,
}

/// Pushes the whole trace over a number of connections.
///
/// # Errors
/// If a PUT is refused, or a connection breaks.
pub fn replay(base: &BaseUrl, trace: &Trace, connections: usize, sending: &Sending) -> Result<Replayed> {
    let started = Instant::now();
    let mut done = Replayed::default();
    let mut first = Pushing::new(base, sending.clone());
    let mut ask = |exchange: &Exchange| ask(&mut first, exchange, trace, &mut done).map(|answered| answered.status);
    if ask(&Exchange::get("/nix-cache-info"))? != 200 {
        let puts_cache_info = |e: &&Exchange| e.method == "PUT" && e.target == "/nix-cache-info";
        trace.exchanges.iter().find(puts_cache_info).map(&mut ask).transpose()?;
    }
    let (present, looked_up) = absent_or_present(base, trace, connections, sending)?;
    done.add(looked_up);
    let missing = |&unit: &usize| trace.units.get(unit).is_some_and(|unit| !present.contains(&unit.hash_part));
    let paths = Paths { waiting: (0..trace.units.len()).filter(missing).collect(), committed: present, failed: false };
    let replay = Replay { trace, paths: Mutex::new(paths), committed: Condvar::new() };
    thread::scope(|scope| {
        let clients = (0..connections).map(|_| scope.spawn(|| replay.client(base, sending))).collect::<Vec<_>>();
        for client in clients {
            done.add(client.join().map_err(|_| failure!("a client panicked"))??);
        }
        Ok(())
    })?;
    done.wall_ns = nanoseconds(started.elapsed());
    Ok(done)
}

/// Requests all narinfos, and returns the hash parts of those that exist.
fn absent_or_present(
    base: &BaseUrl,
    trace: &Trace,
    connections: usize,
    sending: &Sending,
) -> Result<(HashSet<String>, Replayed)> {
    let next = AtomicUsize::new(0);
    let client = || -> Result<(Vec<String>, Replayed)> {
        let (mut present, mut done) = (Vec::new(), Replayed::default());
        let mut connection = Pushing::new(base, sending.clone());
        while let Some(unit) = trace.units.get(next.fetch_add(1, Ordering::SeqCst)) {
            let exchange = Exchange::get(&format!("/{}.narinfo", unit.hash_part));
            if ask(&mut connection, &exchange, trace, &mut done)?.status == 200 {
                present.push(unit.hash_part.clone());
            }
        }
        Ok((present, done))
    };
    let (mut present, mut done) = (HashSet::new(), Replayed::default());
    thread::scope(|scope| {
        let clients = (0..connections).map(|_| scope.spawn(client)).collect::<Vec<_>>();
        for client in clients {
            let (found, asked) = client.join().map_err(|_| failure!("a client panicked"))??;
            present.extend(found);
            done.add(asked);
        }
        Ok((present, done))
    })
}

impl Replay<'_> {
    fn paths(&self) -> MutexGuard<'_, Paths> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One connection: takes paths until none is left.
    fn client(&self, base: &BaseUrl, sending: &Sending) -> Result<Replayed> {
        let mut done = Replayed::default();
        let mut connection = Pushing::new(base, sending.clone());
        loop {
            let unit = {
                let mut paths = self.paths();
                if paths.failed || paths.waiting.is_empty() {
                    return Ok(done);
                }
                paths.waiting.remove(0)
            };
            let Some(unit) = self.trace.units.get(unit) else { return Ok(done) };
            if let Err(failure) = self.push(&mut connection, unit, &mut done) {
                self.paths().failed = true;
                self.committed.notify_all();
                return Err(failure);
            }
        }
    }

    fn push(&self, connection: &mut Pushing<'_>, unit: &Unit, done: &mut Replayed) -> Result<()> {
        let mut is_there = false;
        for exchange in unit.exchanges.iter().filter_map(|&index| self.trace.exchanges.get(index)) {
            if exchange.is_nar() && is_there {
                continue;
            }
            if exchange.method == "PUT" && exchange.target.ends_with(".narinfo") && !self.wait_for(&unit.references) {
                return Ok(());
            }
            is_there = ask(connection, exchange, self.trace, done)?.status == 200 && exchange.method == "HEAD";
        }
        self.paths().committed.insert(unit.hash_part.clone());
        self.committed.notify_all();
        Ok(())
    }

    /// Waits until all of them are in the cache; returns `false` if another connection failed. Paths are taken in an order with
    /// references first, so there is no deadlock.
    fn wait_for(&self, references: &[String]) -> bool {
        let mut paths = self.paths();
        while !paths.failed && !references.iter().all(|reference| paths.committed.contains(reference)) {
            paths = self.committed.wait(paths).unwrap_or_else(PoisonError::into_inner);
        }
        !paths.failed
    }
}

fn ask(connection: &mut Pushing<'_>, exchange: &Exchange, trace: &Trace, done: &mut Replayed) -> Result<Answered> {
    let answered = connection.send(exchange, &trace.folder)?;
    let answered = answered.ok_or_else(|| failure!("{} {}: stopped", exchange.method, exchange.target))?;
    let status = answered.status;
    let right = if exchange.method == "PUT" { DONE.contains(&status) } else { status == 200 || status == 404 };
    if !right {
        let said = String::from_utf8_lossy(&answered.body);
        return Err(failure!("{} {}: status {status}: {}", exchange.method, exchange.target, said.trim()));
    }
    *done.statuses.entry((exchange.method.clone(), status)).or_default() += 1;
    done.bytes += exchange.body_bytes;
    Ok(answered)
}
