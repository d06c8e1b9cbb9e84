//! The units of packaging/systemd, and what they rely on: sockets that systemd passes, and its notifications.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod booted;
#[path = "../support/machine.rs"]
mod machine;
mod package;
#[path = "../../../narval-s3/tests/ports/mod.rs"]
mod ports;
#[path = "../support/mod.rs"]
mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use support::{Answer, NARVAL, Running, Server, Store};

const PATIENCE: Duration = Duration::from_secs(60);

const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd");

/// Ten times the highest exposure that `systemd-analyze security` may give a service, from 0 (best) to 10.
const EXPOSURE_MAX: &str = "15";

fn is_missing(program: &str) -> bool {
    let missing = Command::new(program).arg("--version").output().is_err();
    if missing {
        eprintln!("note: skipped: {program} is not installed");
    }
    missing
}

/// The units, with the program of this build in place of the installed one.
fn units(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(UNITS).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    for name in &names {
        let text = fs::read_to_string(Path::new(UNITS).join(name)).unwrap();
        fs::write(folder.join(name), text.replace("/usr/bin/narval", NARVAL)).unwrap();
    }
    names
}

#[test]
fn systemd_accepts_the_units_without_a_warning() {
    if is_missing("systemd-analyze") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let names = units(folder.path());
    assert_eq!(
        names,
        [
            "narval-follow.service",
            "narval-serve.service",
            "narval-serve.socket",
            "narval-warm.service",
            "narval-watch-store.service"
        ]
    );
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).args(&names).current_dir(folder.path());
    let output = verify.env("SYSTEMD_UNIT_PATH", format!("{}:", folder.path().display())).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stderr);
    // It may complain of units of the machine.
    assert!(output.status.success() && !output_text.contains("narval"), "{output_text}");
}

#[test]
fn the_services_have_a_low_exposure() {
    if is_missing("systemd-analyze") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // That one switches the machine.
    let is_confined = |name: &&String| name.ends_with(".service") && *name != "narval-follow.service";
    for name in units(folder.path()).iter().filter(is_confined) {
        let mut security = Command::new("systemd-analyze");
        security.args(["security", "--no-pager", "--offline=true", "--threshold", EXPOSURE_MAX]);
        let output = security.arg(folder.path().join(name)).output().unwrap();
        let output_text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && output_text.contains("Overall exposure level"), "{name}: {output_text}");
    }
}

/// Tries until there is a connection: before it, nothing listens.
fn connect<T>(connect: impl Fn() -> std::io::Result<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        match connect() {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn ask(mut stream: impl Read + Write) -> Answer {
    stream.write_all(b"GET /nix-cache-info HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    Answer::parse(&answer).unwrap_or_else(|| panic!("{:?}", String::from_utf8_lossy(&answer)))
}

#[test]
fn the_sockets_that_systemd_passes_are_served() {
    if is_missing("systemd-socket-activate") {
        return;
    }
    let store = Store::new();
    let (port, path) = (ports::free_port(), store.path("narval.sock"));
    fs::write(store.path("serve.toml"), format!("store = '{}'\n", store.uri())).unwrap();
    let mut activate = Command::new("systemd-socket-activate");
    activate.args(["-l", &port.to_string(), "-l", path.to_str().unwrap()]);
    activate.args([NARVAL, "serve", "--config"]).arg(store.path("serve.toml"));
    activate.env("HOME", store.path("home")).env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stderr(Stdio::piped());
    let mut running = Running(activate.spawn().unwrap());

    // The first connection starts the server, and is the first that it answers.
    let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    assert_eq!(ask(connect(|| TcpStream::connect(v6))).status, 200);
    assert_eq!(ask(TcpStream::connect(("127.0.0.1", port)).unwrap()).status, 200);
    assert_eq!(ask(UnixStream::connect(&path).unwrap()).status, 200);

    // Nothing else is listened on, and the socket's file belongs to systemd.
    assert!(Command::new("kill").arg(running.0.id().to_string()).status().unwrap().success());
    let mut log = String::new();
    running.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(0), "{log}");
    assert_eq!(log.matches("listening on ").count(), 2, "{log}");
    assert!(path.exists(), "{log}");
}

/// The notifications that systemd receives, one after the other.
struct Notified(UnixDatagram);

impl Notified {
    fn bind(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    fn next(&self) -> Vec<String> {
        let mut message = [0; 4096];
        let len = self.0.recv(&mut message).expect("nothing is said");
        String::from_utf8_lossy(&message[..len]).lines().map(str::to_owned).collect()
    }
}

fn monotonic_usec() -> i128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000
}

/// The protocol of `Type=notify-reload`, systemd.service(5): SIGHUP, `RELOADING=1` with a time that is not before the signal, and
/// `READY=1` once all is read.
#[test]
fn systemd_is_told_of_the_start_and_of_reloads() {
    let store = Store::new();
    let notified = Notified::bind(&store.path("notify"));
    let file = store.path("serve.toml");
    let write = |rest: &str| {
        fs::write(&file, format!("listen = '127.0.0.1:0'\nstore = '{}'\n{rest}\n", store.uri())).unwrap();
    };
    write("priority = 11");
    let mut command = Command::new("env");
    // The helper that starts servers removes the variable.
    command.arg(format!("NOTIFY_SOCKET={}", store.path("notify").display()));
    command.args([NARVAL, "serve", "--config"]).arg(&file);
    let server = Server::start(command, &[("XDG_CACHE_HOME", store.path("cache").to_str().unwrap())]);
    assert_eq!(notified.next(), ["READY=1"]);
    assert_eq!(server.get("/nix-cache-info").status, 200);

    let reload = || {
        let before = monotonic_usec();
        assert!(Command::new("kill").args(["-HUP", &server.pid().to_string()]).status().unwrap().success());
        let reloading = notified.next();
        assert_eq!((reloading.len(), reloading[0].as_str()), (2, "RELOADING=1"), "{reloading:?}");
        let time: i128 = reloading[1].strip_prefix("MONOTONIC_USEC=").unwrap().parse().unwrap();
        assert!((before..=monotonic_usec()).contains(&time), "{before} {reloading:?}");
        let ready = notified.next();
        assert_eq!((ready.len(), ready[1].as_str()), (2, "READY=1"), "{ready:?}");
        ready[0].clone()
    };
    write("priority = 12");
    assert_eq!(reload(), "STATUS=configuration, keys and certificates reloaded");
    // What the file says has taken effect by then.
    assert!(server.get("/nix-cache-info").text().contains("Priority: 12\n"));
    write("priority = 'low'");
    let status = reload();
    assert!(status.starts_with("STATUS=last reload failed: ") && status.contains("serve.toml:3: priority"), "{status}");
    assert!(server.get("/nix-cache-info").text().contains("Priority: 12\n"));
    assert_eq!(server.terminate(), Some(0));
}
