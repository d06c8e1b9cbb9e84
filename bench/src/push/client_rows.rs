//! The cost of a push for the client: any command that pushes a closure to a URL, into an empty cache and then again.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::target::Target;
use super::{ClientArgs, closure, floor, times, work_folder};
use crate::install::{self, Client, Installed};
use crate::proxy::{Proxy, ProxyOptions};
use crate::report::{median, write_json};
use crate::{Context, Result};

/// One run of one client.
#[derive(Debug, Serialize)]
struct Pushed {
    /// Time, processor time and memory of the client.
    client: Installed,
    /// How often it waited for the server: bytes that it sent after a response or first on a connection, over all connections.
    turns: u64,
    /// Connections that it opened.
    connections: u64,
}

/// All runs of one client.
#[derive(Debug, Serialize)]
struct Row {
    client: String,
    /// Into an empty cache.
    cold: Vec<Pushed>,
    /// The same push again, by a client that remembers nothing.
    again: Vec<Pushed>,
}

/// The results of a run.
#[derive(Debug, Serialize)]
struct Figures {
    rows: Vec<Row>,
    /// Processor time to make the NARs and compress them with `zstd -1`, in seconds.
    floor_s: Vec<f64>,
}

/// Runs all clients in turn, each with its own cache, and prints medians.
///
/// # Errors
/// If a client fails; its output is in the message.
pub fn run(arguments: &ClientArgs) -> Result<()> {
    let work = work_folder(&arguments.work)?;
    let paths = closure(&arguments.closure)?;
    let empty = |client: &Client| Row { client: client.name.clone(), cold: Vec::new(), again: Vec::new() };
    let mut rows = arguments.clients.iter().map(empty).collect::<Vec<_>>();
    let mut floor_s = Vec::new();
    for _ in 0..arguments.repetitions {
        floor_s.push(floor::compression(&paths)?.as_secs_f64());
        for (client, row) in arguments.clients.iter().zip(&mut rows) {
            let (cold, again) = twice(arguments, client, &work)?;
            row.cold.push(cold);
            row.again.push(again);
        }
    }
    let figures = Figures { rows, floor_s };
    print(arguments, &figures);
    write_json(arguments.json.as_deref(), &figures)
}

/// Pushes into an empty cache, and then again.
fn twice(arguments: &ClientArgs, client: &Client, work: &Path) -> Result<(Pushed, Pushed)> {
    let fresh = arguments.start.as_ref().unwrap_or(&Target::Nginx).start(work, false)?;
    let options = ProxyOptions {
        round_trip: Duration::from_millis(arguments.round_trip_ms),
        ..ProxyOptions::to(fresh.server.base.address)
    };
    let proxy = Proxy::start(options).context(|| "cannot start the proxy".to_owned())?;
    let cache = work.join("push-cache");
    fs::create_dir_all(&cache).context(|| format!("cannot make {}", cache.display()))?;
    let values = [
        ("url", fresh.url(Some(proxy.address()))),
        ("path", arguments.closure.clone()),
        ("cache", cache.display().to_string()),
    ];
    let once = || {
        let before = (proxy.turns(), proxy.connections());
        let client = install::once(client, &values, work)?;
        Ok(Pushed { client, turns: proxy.turns() - before.0, connections: proxy.connections() - before.1 })
    };
    let pushed = once().and_then(|cold| Ok((cold, once()?)));
    fs::remove_dir_all(&cache).context(|| format!("cannot remove {}", cache.display()))?;
    pushed
}

fn print(arguments: &ClientArgs, figures: &Figures) {
    let floor = median(figures.floor_s.iter().copied());
    println!("NARs made and compressed as by zstd -1: {floor:.3} s of processor time");
    for (title, is_cold) in [("push to an empty cache", true), ("again, nothing missing", false)] {
        println!("{title}, round trip {} ms", arguments.round_trip_ms);
        let mut first = None;
        for row in &figures.rows {
            let runs = if is_cold { &row.cold } else { &row.again };
            let of = |value: fn(&Pushed) -> f64| median(runs.iter().map(value));
            let wall = of(|run| run.client.wall_s);
            let cpu = of(|run| run.client.user_s + run.client.system_s);
            println!(
                "  {:<20} {wall:>8.3} s {}  processor {cpu:>7.3} s {} floor  {:>6.1} MB  {:>5.0} turns, {:.0} connections",
                row.client,
                times(wall, *first.get_or_insert(wall)),
                times(cpu, floor),
                of(|run| run.client.resident_bytes_max as f64) / 1e6,
                of(|run| run.turns as f64),
                of(|run| run.connections as f64),
            );
        }
    }
}
