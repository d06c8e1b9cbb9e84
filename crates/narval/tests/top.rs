//! `narval top`, against a real server, in pipes and in a real terminal.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

#[path = "../../narval-s3/tests/ports/mod.rs"]
mod ports;
mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{NARVAL, Running, Server, Store};

fn top(args: &[&str]) -> Command {
    let mut command = Command::new(NARVAL);
    command.arg("top").args(args).env("HOME", "/nonexistent").env_remove("NETRC");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn the_figures_of_one_second() {
    let store = Store::new();
    let server = Server::narval(&store, &[]);
    let output = top(&["--once", "--json", &server.url()]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let figures: Value = serde_json::from_slice(&output.stdout).unwrap();
    // The first reading itself is counted.
    assert!(
        figures["requests"].as_f64().unwrap() > 0.0 && figures["sent_bytes"].as_f64().unwrap() > 1000.0,
        "{figures}"
    );
    assert_eq!((&figures["v"], &figures["connections"], &figures["failed"]), (&1.into(), &1.0.into(), &0.0.into()));
    let output = top(&["--once", &server.url()]).output().unwrap();
    let line = text(&output.stdout);
    assert!(
        line.starts_with("requests/s ") && line.contains("  connections 1  queue 0  ") && line.lines().count() == 1,
        "{line}"
    );
}

#[test]
fn what_cannot_be_read_is_an_error() {
    let store = Store::new();
    let failed = |output: Output, code: i32, says: &str| {
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{message}");
        assert!(message.contains(says) && message.lines().count() == 1, "{message}");
    };
    failed(top(&["http://127.0.0.1:1"]).output().unwrap(), 1, "cannot connect to 127.0.0.1:1");
    failed(top(&["ftp://example.org"]).output().unwrap(), 2, "ftp");
    failed(top(&["/tmp"]).output().unwrap(), 2, "must be an http:// or https:// URL");
    // A server without metrics.
    let server = Server::nix_serve(&store, &[], &[]);
    failed(top(&[&server.url()]).output().unwrap(), 1, "is it a Narval server");
}

#[test]
fn a_pipe_gets_a_line_per_second_until_its_reader_leaves_and_across_a_restart() {
    let store = Store::new();
    // No other program may get the port while nobody listens.
    let address = format!("127.0.0.1:{}", ports::free_port());
    let serve = || {
        let mut command = Command::new(NARVAL);
        command.args(["serve", "--listen", &address, "--store", &store.uri()]);
        Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())])
    };
    let server = serve();
    let url = server.url();
    let mut top = Running(top(&[&url]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(top.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut errors = BufReader::new(top.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.next().unwrap().starts_with("requests/s "));
    drop(server);
    assert!(errors.next().unwrap().contains("trying again every second"));
    let _again = serve();
    // What was printed before the server went may be left.
    assert!(lines.by_ref().take(4).all(|line| line.starts_with("requests/s ")));
    drop(lines);
    let until = Instant::now() + Duration::from_secs(60);
    while top.0.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "it goes on for nobody");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(top.0.wait().unwrap().success());
}

#[test]
fn a_terminal_is_filled_and_restored() {
    let store = Store::new();
    let server = Server::narval(&store, &[]);
    // util-linux's script gives it a terminal.
    let shell = format!("stty rows 15 cols 40; exec {NARVAL} top {}", server.url());
    let mut script = Command::new("script");
    script.args(["-qefc", &shell, "/dev/null"]).env("TERM", "xterm").env("SHELL", "/bin/sh");
    let mut script = Running(script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let (mut keys, mut shown) = (script.0.stdin.take().unwrap(), script.0.stdout.take().unwrap());
    let mut screen = Vec::new();
    let until = Instant::now() + Duration::from_secs(60);
    let has = |screen: &[u8], what: &str| screen.windows(what.len()).any(|window| window == what.as_bytes());
    let mut quit = false;
    loop {
        let mut buffer = [0; 4096];
        let read = shown.read(&mut buffer).unwrap();
        if read == 0 {
            break;
        }
        screen.extend_from_slice(&buffer[..read]);
        assert!(Instant::now() < until, "{:?}", String::from_utf8_lossy(&screen));
        // A bar: a first second has passed.
        if !quit && has(&screen, "█") {
            keys.write_all(b"q").unwrap();
            quit = true;
        }
    }
    assert!(script.0.wait().unwrap().success(), "{:?}", String::from_utf8_lossy(&screen));
    // Entered and left: the alternate screen, and a hidden cursor.
    for sequence in ["\x1b[?1049h", "\x1b[?25l", "\x1b[?1049l", "\x1b[?25h"] {
        assert!(has(&screen, sequence), "{sequence:?}: {:?}", String::from_utf8_lossy(&screen));
    }
    for what in ["Requests/s", "connections", "store err/s"] {
        assert!(has(&screen, what), "{what}: {:?}", String::from_utf8_lossy(&screen));
    }
}
