//! HTTP/2 over TLS, with independent clients: `h2load` (Debian's nghttp2-client) for throughput, `curl` for a distant server and for
//! small requests queued behind large bodies.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::client::BaseUrl;
use crate::fixture::{Fixture, fields, hash_part};
use crate::load::{Done, nanoseconds};
use crate::proxy::{Proxy, ProxyOptions};
use crate::rows::Run;
use crate::server::Server;
use crate::static_rows::FileSets;
use crate::{Context, Result, failure};

/// Concurrent requests: the most that Nix 2.35 sends on one connection.
const STREAMS: usize = 100;
const SMALL_REQUESTS: usize = 20_000;
const MEDIUM_REQUESTS: usize = 4_000;
const LARGE_REQUESTS: usize = 100;
const NARINFO_REQUESTS: usize = 20_000;
/// Requests of the rows with a distant server.
const FAR_REQUESTS: usize = 1_000;
const FAR_ROUND_TRIP: Duration = Duration::from_millis(50);
/// The version, curl's option for it, and concurrent requests: Nix 2.35 and 2.34, and what our own client could use.
const FAR_CLIENTS: [(&str, &str, usize); 5] = [
    ("HTTP/2", "--http2", 125),
    ("HTTP/2", "--http2", 32),
    ("HTTP/1.1", "--http1.1", 25),
    ("HTTP/1.1", "--http1.1", 32),
    ("HTTP/1.1", "--http1.1", 64),
];
/// Connections over which closures are fetched, each of them the whole, and how many NARs each requests at a time.
const CLOSURE_CONNECTIONS: [usize; 2] = [1, 4];
const NARS_AT_A_TIME: usize = 16;
/// NARs that are requested before the narinfo.
const NARS_AHEAD: usize = 16;

/// Measures the rows of static files.
///
/// # Errors
/// If h2load is not installed, or a server answers incorrectly.
pub fn run_static(run: &mut Run<'_>, sets: &FileSets, work: &Path) -> Result<()> {
    let large = ["/large.bin".to_owned()];
    let rows: [(&str, &[String], usize); 3] = [
        ("200 files, 1 to 4 KB", &sets.small, SMALL_REQUESTS),
        ("200 files, mean 125 KB", &sets.medium, MEDIUM_REQUESTS),
        ("one file, 5.7 MB", &large, LARGE_REQUESTS),
    ];
    for (what, targets, requests) in rows {
        let title = format!("HTTP/2, {what}, 1 connection, {STREAMS} streams");
        run.work(&title, |server, ready| h2load(&server.base, targets, (1, STREAMS), requests, work, ready))?;
    }
    Ok(())
}

/// Measures the rows of binary caches.
///
/// # Errors
/// If h2load or curl is not installed, or a server answers incorrectly.
pub fn run_cache(run: &mut Run<'_>, fixture: &Fixture, work: &Path) -> Result<()> {
    let narinfos = fixture.closure.iter().map(|path| Ok(format!("/{}.narinfo", hash_part(path)?)));
    let narinfos = narinfos.collect::<Result<Vec<_>>>()?;
    for server in run.servers {
        // warm the server's memory
        h2load(&server.base, &narinfos, (1, STREAMS), narinfos.len(), work, &mut || {})?;
    }
    let title = format!("HTTP/2, all narinfos of the closure, 1 connection, {STREAMS} streams");
    run.work(&title, |server, ready| h2load(&server.base, &narinfos, (1, STREAMS), NARINFO_REQUESTS, work, ready))?;
    for (version, option, at_a_time) in FAR_CLIENTS {
        let trip = FAR_ROUND_TRIP.as_millis();
        let title =
            format!("{version}, {FAR_REQUESTS} narinfos, round trip {trip} ms, curl with {at_a_time} at a time");
        run.work(&title, |server, ready| far(server, option, at_a_time, &narinfos, work, ready))?;
    }
    let nars = run.servers.iter().map(|server| {
        let nars = fixture.closure.iter().map(|path| nar_of(server, path)).collect::<Result<Vec<_>>>()?;
        Ok((server.name.clone(), nars))
    });
    let nars = nars.collect::<Result<HashMap<_, _>>>()?;
    for connections in CLOSURE_CONNECTIONS {
        let title =
            format!("HTTP/2, all NARs of the closure on each of {connections} connections, {NARS_AT_A_TIME} streams");
        run.work(&title, |server, ready| {
            let nars = nars.get(&server.name).map(Vec::as_slice).unwrap_or_default();
            h2load(&server.base, nars, (connections, NARS_AT_A_TIME), connections * nars.len(), work, ready)
        })?;
    }
    let title = format!("HTTP/2, a narinfo behind {NARS_AHEAD} NARs of 10 MB");
    run.work(&title, |server, ready| behind_nars(server, fixture, work, ready))
}

/// Sends `requests` requests for these targets in turn, on so many connections, each with so many streams.
fn h2load(
    base: &BaseUrl,
    targets: &[String],
    (connections, streams): (usize, usize),
    requests: usize,
    work: &Path,
    ready: &mut dyn FnMut(),
) -> Result<Done> {
    let (list, log) = (work.join("h2load-urls"), work.join("h2load.log"));
    let urls: String = targets.iter().fold(String::new(), |mut urls, target| {
        let _ = writeln!(urls, "https://{}{target}", base.address);
        urls
    });
    fs::write(&list, urls).context(|| format!("cannot write {}", list.display()))?;
    // h2load appends to its log
    let _ = fs::remove_file(&log);
    let mut command = Command::new("h2load");
    command.args(["-c", &connections.to_string(), "-m", &streams.to_string(), "-n", &requests.to_string(), "-i"]);
    command.arg(&list).arg("--log-file").arg(&log);
    ready();
    let output = command.output().context(|| "cannot run h2load (apt-get install nghttp2-client)".to_owned())?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !text.lines().any(|line| line == "Application protocol: h2") {
        return Err(failure!("h2load did not get HTTP/2: {}", text.lines().last().unwrap_or_default()));
    }
    let log = fs::read_to_string(&log).context(|| format!("cannot read {}", log.display()))?;
    let mut done = from_log(&log)?;
    if done.requests != requests as u64 {
        return Err(failure!("h2load: {} of {requests} requests were answered 200", done.requests));
    }
    done.bytes = data_bytes(&text);
    Ok(done)
}

/// h2load's log: for each request its start time, its status, and its duration in µs.
fn from_log(log: &str) -> Result<Done> {
    let (mut done, mut first, mut last) = (Done::default(), u64::MAX, 0);
    for line in log.lines() {
        let mut columns = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(start)), Some(Ok(status)), Some(Ok(took))) = (columns.next(), columns.next(), columns.next())
        else {
            return Err(failure!("h2load's log has the line '{line}'"));
        };
        if status == 200 {
            done.requests += 1;
        }
        (first, last) = (first.min(start), last.max(start + took));
        done.latencies_ns.push(took * 1000);
    }
    done.wall_ns = last.saturating_sub(first) * 1000;
    Ok(done)
}

/// Parses the line `traffic: 1.2MB (1234567) total, … headers (…), 1.1MB (1200000) data`.
fn data_bytes(output: &str) -> u64 {
    let line = output.lines().find(|line| line.starts_with("traffic:"));
    let number = line.and_then(|line| line.rsplit('(').next()?.split(')').next()?.parse().ok());
    number.unwrap_or(0)
}

/// Requests [`FAR_REQUESTS`] of these targets through the delaying proxy.
fn far(
    server: &Server,
    option: &str,
    at_a_time: usize,
    targets: &[String],
    work: &Path,
    ready: &mut dyn FnMut(),
) -> Result<Done> {
    let options = ProxyOptions { round_trip: FAR_ROUND_TRIP, ..ProxyOptions::to(server.base.address) };
    let proxy = Proxy::start(options).context(|| "cannot start the proxy".to_owned())?;
    let urls = targets.iter().cycle().take(FAR_REQUESTS);
    let urls = urls.map(|target| format!("https://{}{target}", proxy.address())).collect::<Vec<_>>();
    ready();
    let started = Instant::now();
    let transfers = curl(option, at_a_time, &urls, work)?;
    let wall_ns = nanoseconds(started.elapsed());
    let wanted = option.trim_start_matches("--http");
    if let Some(other) = transfers.iter().find(|transfer| transfer.status != 200 || transfer.version != wanted) {
        return Err(failure!("{}: HTTP/{} {}", other.url, other.version, other.status));
    }
    Ok(Done { wall_ns, requests: transfers.len() as u64, ..Done::default() })
}

/// The target of a path's NAR.
fn nar_of(server: &Server, path: &str) -> Result<String> {
    let narinfo = format!("https://{}/{}.narinfo", server.base.address, hash_part(path)?);
    let output = Command::new("curl").args(["--silent", "--insecure", "--fail", &narinfo]).output();
    let output = output.context(|| "cannot run curl".to_owned())?;
    let text = String::from_utf8_lossy(&output.stdout);
    fields(&text).get("URL").map(|url| format!("/{url}")).ok_or_else(|| failure!("{narinfo} has no URL"))
}

/// Requests NARs and then a narinfo on one connection, and measures how long the narinfo takes.
fn behind_nars(server: &Server, fixture: &Fixture, work: &Path, ready: &mut dyn FnMut()) -> Result<Done> {
    let narinfo = format!("https://{}/{}.narinfo", server.base.address, hash_part(&fixture.large)?);
    let nar = format!("https://{}{}", server.base.address, nar_of(server, &fixture.large)?);
    let mut urls = vec![nar; NARS_AHEAD];
    urls.push(narinfo.clone());
    ready();
    let transfers = curl("--http2", NARS_AHEAD + 1, &urls, work)?;
    let own = transfers.iter().find(|transfer| transfer.url == narinfo && transfer.version == "2");
    let own = own.ok_or_else(|| failure!("curl says nothing of {narinfo} over HTTP/2"))?;
    Ok(Done { wall_ns: own.took_ns, requests: 1, latencies_ns: vec![own.took_ns], ..Done::default() })
}

/// curl's figures for a transfer.
struct Transfer {
    url: String,
    version: String,
    status: u16,
    /// From the moment the request could be sent to the end of the response.
    took_ns: u64,
}

fn curl(version: &str, at_a_time: usize, urls: &[String], work: &Path) -> Result<Vec<Transfer>> {
    let list: PathBuf = work.join("curl-urls");
    let text = urls.iter().fold(String::new(), |mut text, url| {
        let _ = writeln!(text, "url = \"{url}\"\noutput = \"/dev/null\"");
        text
    });
    fs::write(&list, text).context(|| format!("cannot write {}", list.display()))?;
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--insecure", "--parallel", "--parallel-max", &at_a_time.to_string()]);
    command.args([version, "--write-out", "%{url} %{http_version} %{http_code} %{time_pretransfer} %{time_total}\\n"]);
    let output = command.arg("--config").arg(&list).output().context(|| "cannot run curl".to_owned())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let transfers = text.lines().map(|line| transfer(line).ok_or_else(|| failure!("curl says '{line}'")));
    let transfers = transfers.collect::<Result<Vec<_>>>()?;
    if transfers.len() != urls.len() {
        let error = String::from_utf8_lossy(&output.stderr);
        let (done, error) = (transfers.len(), error.lines().next().unwrap_or_default());
        return Err(failure!("curl: {done} of {} transfers: {error}", urls.len()));
    }
    Ok(transfers)
}

fn transfer(line: &str) -> Option<Transfer> {
    let mut columns = line.split(' ');
    let (url, version) = (columns.next()?.to_owned(), columns.next()?.to_owned());
    let status = columns.next()?.parse().ok()?;
    let (asked, ended) = (columns.next()?.parse::<f64>().ok()?, columns.next()?.parse::<f64>().ok()?);
    Some(Transfer { url, version, status, took_ns: nanoseconds(Duration::from_secs_f64((ended - asked).max(0.0))) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_h2load_says() {
        let done = from_log("1000\t200\t50\n1010\t200\t100\n1020\t404\t7\n").unwrap();
        assert_eq!((done.requests, done.wall_ns), (2, 110_000));
        assert!(from_log("nonsense").is_err());
        let line =
            "traffic: 1.20MB (1258291) total, 10.00KB (10240) headers (space savings 40.00%), 1.10MB (1153433) data";
        assert_eq!(data_bytes(line), 1_153_433);
    }

    #[test]
    fn what_curl_says() {
        let transfer = transfer("https://h/x 2 200 0.010000 0.012500").unwrap();
        assert_eq!((transfer.version.as_str(), transfer.status, transfer.took_ns), ("2", 200, 2_500_000));
    }
}
