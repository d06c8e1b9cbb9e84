//! Servers that are killed and restarted during an install.

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::lab::Lab;
use crate::support::{NARVAL, Server, Store, noise, stdout};
use crate::trouble::PATIENCE;

const PATHS: usize = 60;
const LEN: usize = 700_000;

/// Adds files that do not compress, each of its own.
fn add_noise(store: &Store, own: &str) -> Vec<String> {
    let seed = own.bytes().fold(7_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let folder = store.path("noise");
    std::fs::create_dir(&folder).unwrap();
    let files: Vec<String> = (0..PATHS)
        .map(|number| {
            let file = folder.join(format!("noise-{number}"));
            std::fs::write(&file, noise(seed.wrapping_add(number as u64), LEN)).unwrap();
            file.to_str().unwrap().to_owned()
        })
        .collect();
    let args: Vec<&str> = std::iter::once("--add").chain(files.iter().map(String::as_str)).collect();
    stdout(store.nix_store(&args)).lines().map(str::to_owned).collect()
}

/// Paths that an install has completed.
fn completed(root: &str) -> usize {
    let Ok(entries) = std::fs::read_dir(format!("{root}/nix/store")) else { return 0 };
    let names = entries.flatten().map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.contains("-noise-") && !name.contains("-narval-tmp-") && !name.ends_with(".lock")).count()
}

/// With default options, a server that is killed, and is back within ten seconds, costs no install and no byte of a completed path.
#[test]
fn a_server_that_restarts_costs_no_install() {
    let lab = Lab::new();
    let paths = add_noise(&lab.store, &lab.store.name());
    let cache = lab.store.path("serve-cache");
    let serve = |address: &str| {
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", address, "--store", &lab.store.uri()]);
        Server::start(command, &[("XDG_CACHE_HOME", cache.to_str().unwrap())])
    };
    let mut server = serve("127.0.0.1:0");
    let (address, url, root) = (server.address.to_string(), server.url(), lab.folder("mine"));
    let args = ["install", "--json", "--no-check-sigs", "--no-deltas", "--from", &url, "--store", &root];
    let mut command = lab.command(&[&args[..], &paths.iter().map(String::as_str).collect::<Vec<_>>()].concat());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Away for longer than all attempts take that are made at one that was never there.
    for (count, away_s) in [(1, 3), (PATHS / 3, 8), (PATHS * 2 / 3, 4)] {
        let until = Instant::now() + PATIENCE;
        while completed(&root) < count && child.try_wait().unwrap().is_none() && Instant::now() < until {
            sleep(Duration::from_millis(2));
        }
        server.end("-KILL");
        sleep(Duration::from_secs(away_s));
        server = serve(&address);
    }
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let printed = stdout(output);
    let summary: serde_json::Value = serde_json::from_str(printed.lines().last().unwrap()).unwrap();
    assert_eq!(completed(&root), PATHS, "{message}");
    // The NAR of a file has up to 120 more bytes. A part of one that was under way may come twice, a completed one not.
    let downloaded = summary["downloaded"].as_u64().unwrap();
    let once = (PATHS * LEN) as u64;
    assert!((once..once + once / 4).contains(&downloaded), "{downloaded} bytes were fetched for {once}: {printed}");
    lab.done(&["verify", "--no-check-sigs", "--store", &root]);
}

/// Nobody waits long for a server that was never there.
#[test]
fn a_server_that_was_never_there_is_reported_soon() {
    let lab = Lab::new();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (url, begun) = (format!("http://{closed}"), Instant::now());
    let message = lab.fails(5, &["install", "--from", &url, "--store", &lab.folder("mine"), &lab.tree]);
    assert!(message.contains("cannot connect"), "{message}");
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
}
