//! Runs a row: the same requests on every server, one after the other, several times.

use std::time::{Duration, Instant};

use crate::Result;
use crate::client::Request;
use crate::handshakes::Handshakes;
use crate::load::{Done, Load};
use crate::process::{self, CpuTime};
use crate::report::{Memory, Report, Sample, block, median, sum_up};
use crate::server::Server;

/// A server that has run for less than a tenth of this time is idle.
const SETTLED: Duration = Duration::from_millis(20);
/// A server that is never idle is measured after this time anyway.
const SETTLING_MAX: Duration = Duration::from_secs(20);

/// The processors of client and server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Placement {
    /// The same one: no wake-up crosses processors, so only the work is measured.
    Together,
    /// One each.
    Apart,
}

/// A row of the table, before it is measured.
pub struct Row<'a> {
    /// The title.
    pub title: String,
    /// The load.
    pub load: Load,
    /// The processors.
    pub placement: Placement,
    /// Send the requests twice to each server before it is measured.
    pub warm: bool,
    /// Makes the requests for a server and a repetition; none if the server does not support them.
    pub requests: RequestsOf<'a>,
}

/// Makes the requests for a server and a repetition.
pub type RequestsOf<'a> = Box<dyn Fn(&Server, usize) -> Vec<Request> + 'a>;

/// How all rows are run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How often each row is run on each server.
    pub repetitions: usize,
    /// Only rows whose title contains one of these; all if empty.
    pub only: Vec<String>,
    /// The server's processor.
    pub server_cpu: usize,
    /// The client's processor, if it has its own.
    pub client_cpu: usize,
}

/// Measures rows, prints each as soon as it is measured, and keeps them for the report.
pub struct Run<'a> {
    /// In the order of the table. Ratios are relative to the first.
    pub servers: &'a [Server],
    /// The options.
    pub settings: Settings,
    /// The results so far.
    pub report: Report,
}

impl Run<'_> {
    /// Measures one row.
    ///
    /// # Errors
    /// If a server does not answer as it must.
    pub fn row(&mut self, row: &Row<'_>) -> Result<()> {
        if !self.is_wanted(&row.title) {
            return Ok(());
        }
        if row.warm {
            for server in self.servers {
                let requests = (row.requests)(server, 0);
                Load { passes: 2, ..row.load }.run(&server.base, &requests).map_err(|e| at(&server.name, e))?;
            }
        }
        let mut samples = self.servers.iter().map(|server| (server.name.clone(), Vec::new())).collect::<Vec<_>>();
        for repetition in 0..self.settings.repetitions {
            for (server, (_, samples)) in in_turn(repetition, self.servers.iter().zip(&mut samples)) {
                let requests = (row.requests)(server, repetition);
                if !requests.is_empty() {
                    let sample =
                        self.sample(row.placement, server, |ready| row.load.run_from(&server.base, &requests, ready));
                    samples.push(sample.map_err(|e| at(&server.name, e))?);
                }
            }
        }
        self.keep(&row.title, row.load.passes, samples);
        Ok(())
    }

    /// Measures a row of TLS handshakes, which are counted as requests.
    ///
    /// # Errors
    /// If one fails.
    pub fn handshakes(&mut self, title: &str, handshakes: Handshakes) -> Result<()> {
        self.work(title, |server, ready| handshakes.run(&server.base, ready))
    }

    /// Measures a row of what `work` does to a server, from the moment it calls its second argument. Processes that it starts
    /// run on the client's processor.
    ///
    /// # Errors
    /// If `work` fails.
    pub fn work(&mut self, title: &str, work: impl Fn(&Server, &mut dyn FnMut()) -> Result<Done>) -> Result<()> {
        if !self.is_wanted(title) {
            return Ok(());
        }
        let mut samples = self.servers.iter().map(|server| (server.name.clone(), Vec::new())).collect::<Vec<_>>();
        for repetition in 0..self.settings.repetitions {
            for (server, (_, samples)) in in_turn(repetition, self.servers.iter().zip(&mut samples)) {
                let sample = self.sample(Placement::Apart, server, |ready| work(server, ready));
                samples.push(sample.map_err(|e| at(&server.name, e))?);
            }
        }
        self.keep(title, 1, samples);
        Ok(())
    }

    fn is_wanted(&self, title: &str) -> bool {
        self.settings.only.is_empty() || self.settings.only.iter().any(|part| title.contains(part))
    }

    fn keep(&mut self, title: &str, passes: usize, samples: Vec<(String, Vec<Sample>)>) {
        let measured = sum_up(title, passes, samples);
        println!("{}", block(&measured));
        self.report.rows.extend(measured);
    }

    /// Waits until every server is idle: work that one still does for earlier requests (compressing a copy for the next one,
    /// for example) would be attributed to the next server.
    fn settle(&self) {
        let run_by_all = || self.servers.iter().filter_map(|server| server.pid).map(CpuTime::of).collect::<Vec<_>>();
        let began = Instant::now();
        loop {
            let before = run_by_all();
            std::thread::sleep(SETTLED);
            let most = run_by_all().into_iter().zip(before).map(|(now, before)| now.since(before)).max();
            if u128::from(most.unwrap_or(0)) < SETTLED.as_nanos() / 10 || began.elapsed() > SETTLING_MAX {
                return;
            }
        }
    }

    /// Measures `work` from the moment it calls its argument.
    fn sample(
        &self,
        placement: Placement,
        server: &Server,
        work: impl FnOnce(&mut dyn FnMut()) -> Result<Done>,
    ) -> Result<Sample> {
        self.settle();
        let Settings { server_cpu, client_cpu, .. } = self.settings;
        process::pin_self(&[if placement == Placement::Together { server_cpu } else { client_cpu }])?;
        if let Some(pid) = server.pid {
            process::pin(pid, &[server_cpu])?;
        }
        let mut before = None;
        let done = work(&mut || before = server.pid.map(CpuTime::of))?;
        let after = server.pid.map(CpuTime::of);
        let p50 = median(done.latencies_ns.iter().map(|&ns| ns as f64));
        Ok(Sample {
            wall_ns: done.wall_ns,
            cpu_ns: before.zip(after).map(|(before, after)| after.since(before)),
            requests: done.requests,
            bytes: done.bytes,
            p50_ns: p50.is_finite().then_some(p50 as u64),
        })
    }

    /// Prints and records the memory of every server.
    pub fn memory(&mut self) {
        println!("resident memory after the run");
        for server in self.servers {
            let Some(pid) = server.pid else { continue };
            let (now, peak) = process::resident_bytes(pid);
            println!("  {:<16} {:>7.1} MB now, {:.1} MB at most", server.name, now as f64 / 1e6, peak as f64 / 1e6);
            self.report.memory.push(Memory {
                server: server.name.clone(),
                resident_bytes: now,
                resident_bytes_max: peak,
            });
        }
    }
}

/// Each repetition begins with another server, so that none always comes after the same one.
fn in_turn<T>(repetition: usize, servers: impl Iterator<Item = T>) -> Vec<T> {
    let mut servers = servers.collect::<Vec<_>>();
    let first = repetition % servers.len().max(1);
    servers.rotate_left(first);
    servers
}

fn at(server: &str, failure: crate::Failure) -> crate::Failure {
    crate::Failure(format!("{server}: {failure}"))
}
