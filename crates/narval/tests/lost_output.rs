//! Standard error that is closed, full, or never read: the work continues and ends as usual.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

#[path = "../../narval-s3/tests/ports/mod.rs"]
mod ports;
mod support;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, PipeReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::{NARVAL, NIX_SERVE, Store, hash_part};

/// The demonstration alone takes a minute on a machine with much to do.
const PATIENCE: Duration = Duration::from_secs(300);
/// Commands that run at once.
const LANES: usize = 6;

fn full() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

/// A pipe whose reader has gone.
fn broken() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

fn ended(what: &str, child: &mut Child) -> ExitStatus {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("{what} did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Every command that ends by itself, with arguments that succeed and that do not.
#[test]
fn every_command_ends_as_usual() {
    let store = Store::new();
    let path = store.add_file("file", "contents");
    let (uri, real) = (store.uri(), store.real(&path));
    let real = real.to_str().unwrap();
    let folder = |name: &str| store.path(name).to_str().unwrap().to_owned();
    let nowhere = "http://127.0.0.1:1";
    // What there is at the root of this machine is not known.
    let missing = folder("missing");
    let (cache, profile, copy) = (folder("nars"), folder("profile"), format!("file://{}", folder("copy")));
    let commands: Vec<Vec<&str>> = vec![
        vec!["install", &path, "--from", nowhere, "--store", &uri],
        vec!["run", &path, "--from", nowhere, "--store", &uri],
        vec!["shell", &path, "--from", nowhere, "--store", &uri],
        vec!["copy", &path, "--from", nowhere, "--to", &copy],
        vec!["verify", "--no-check-sigs", "--store", &uri],
        vec!["verify", "--store", &uri],
        vec!["path-info", &path, "--from", nowhere],
        vec!["ls", &path, "--from", nowhere],
        vec!["cat", &path, "--from", nowhere],
        vec!["profiles", "--store", &uri],
        vec!["rollback", "--profile", &profile],
        vec!["gc", "--dry-run", "--store", &uri],
        vec!["doctor", "--from", nowhere],
        vec!["completions", "bash"],
        vec!["man"],
        vec!["serve", "--listen", "nonsense:x"],
        vec!["serve", "--sign-key", &missing],
        vec!["warm", "--all", "--store", &uri, "--nar-cache", &cache],
        vec!["warm", "/nix/store/nonsense", "--store", &uri, "--nar-cache", &cache],
        vec!["static", &missing],
        vec!["key", "nonsense"],
        vec!["key", "generate", "a-1"],
        vec!["key", "public", &missing],
        vec!["nar", "dump", real],
        vec!["nar", "dump", &missing],
        vec!["nar", "hash", real],
        vec!["demo"],
        vec!["demo", "--listen", "nonsense:x"],
        vec!["nonsense"],
        vec![],
    ];
    let run = |program: &str, arguments: &[&str], stderr: Stdio| {
        let mut command = Command::new(program);
        // All that can be logged is.
        command.args(arguments).env("NARVAL_LOG", "trace").env("HOME", store.path("home")).current_dir(store.path(""));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        ended(&format!("{arguments:?}"), &mut command.spawn().unwrap()).code()
    };
    // Side by side: what finds nobody at its address tries again after a while.
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                while let Some(arguments) = commands.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let usual = run(NARVAL, arguments, Stdio::null());
                    assert!(usual.is_some_and(|code| code < 101), "narval {arguments:?}: {usual:?}");
                    assert_eq!(run(NARVAL, arguments, full()), usual, "narval {arguments:?}, full");
                    assert_eq!(run(NARVAL, arguments, broken()), usual, "narval {arguments:?}, nobody reads");
                }
            });
        }
    });
    for arguments in
        [&["--port", "x"][..], &["--listen", "nonsense:x"], &["--ssl-cert", &missing, "--ssl-key", &missing]]
    {
        assert_eq!(run(NIX_SERVE, arguments, full()), Some(2), "nix-serve {arguments:?}, full");
        assert_eq!(run(NIX_SERVE, arguments, broken()), Some(2), "nix-serve {arguments:?}, nobody reads");
    }
}

/// A server, told where to listen: its standard error says nothing of that.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(store: &Store, which: &str, stderr: Stdio) -> Self {
        let free = SocketAddr::from(([127, 0, 0, 1], ports::free_port()));
        let mut command = match which {
            "nix-serve" => Command::new(NIX_SERVE),
            _ => Command::new(NARVAL),
        };
        match which {
            "nix-serve" => command.args(["--store", &store.uri()]),
            "narval serve" => command.args(["serve", "--no-nar-cache", "--store", &store.uri()]),
            _ => command.arg("static").arg(store.path("")),
        };
        for name in ["NIX_SECRET_KEY_FILE", "NIX_REMOTE", "NOTIFY_SOCKET", "JOURNAL_STREAM"] {
            command.env_remove(name);
        }
        command.args(["--listen", &free.to_string()]).env("NARVAL_LOG", "debug");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let mut this = Self { child: command.spawn().unwrap(), address: free };
        let until = Instant::now() + PATIENCE;
        while TcpStream::connect(this.address).is_err() || !this.catches_signals() {
            if let Some(status) = this.child.try_wait().unwrap() {
                panic!("{which} ended: {status}");
            }
            assert!(Instant::now() < until, "{which} does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        this
    }

    /// Whether SIGTERM is handled by now: it listens before that.
    fn catches_signals(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << 14) != 0
    }

    /// The status of an answer; 0 without one.
    fn status(&self, path: &str) -> u16 {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        // A reset is no answer.
        let _ = stream.read_to_string(&mut answer);
        answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    fn end_by(&mut self, signal: &str) -> ExitStatus {
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
        ended("the server", &mut self.child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn servers_start_and_end_whatever_happens_to_their_log() {
    let store = Store::new();
    for which in ["nix-serve", "narval serve", "narval static"] {
        for how in ["full", "nobody reads"] {
            for signal in ["-TERM", "-INT"] {
                let stderr = match how {
                    "full" => full(),
                    _ => broken(),
                };
                let mut server = Server::start(&store, which, stderr);
                assert_ne!(server.status("/nix-cache-info"), 0, "{which}, {how}");
                assert_eq!(server.end_by(signal).code(), Some(0), "{which}, {how}, {signal}");
            }
        }
    }
}

/// Reads the log until the server says where it listens.
fn read_until_it_listens(reader: &mut BufReader<PipeReader>) {
    let mut line = String::new();
    while !line.contains("listening on http") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "it does not say where it listens");
    }
}

#[test]
fn requests_are_answered_whatever_happens_to_the_log() {
    let store = Store::new();
    let path = store.add_file("file", "contents");
    let narinfo = format!("/{}.narinfo", hash_part(&path));
    let database = store.path("root/nix/var/nix/db");
    for which in ["nix-serve", "narval serve"] {
        for reader_stays in [false, true] {
            let (reader, writer) = std::io::pipe().unwrap();
            let mut server = Server::start(&store, which, writer.into());
            let mut reader = BufReader::new(reader);
            read_until_it_listens(&mut reader);
            let reader = reader_stays.then_some(reader);
            assert_eq!(server.status(&narinfo), 200);
            // Each request logs that the database is gone, until the pipe is full.
            let away = store.path("away");
            std::fs::rename(&database, &away).unwrap();
            let requests = if reader_stays { 600 } else { 20 };
            for number in 0..requests {
                assert_eq!(server.status(&narinfo), 500, "{which}, request {number}, reader stays: {reader_stays}");
            }
            std::fs::rename(&away, &database).unwrap();
            assert_eq!(server.status(&narinfo), 200);
            assert_eq!(server.end_by("-TERM").code(), Some(0), "{which}, reader stays: {reader_stays}");
            drop(reader);
        }
    }
}

#[test]
fn a_log_that_is_read_has_all_lines() {
    let store = Store::new();
    let log = store.path("log");
    let mut server = Server::start(&store, "narval serve", File::create(&log).unwrap().into());
    assert_eq!(server.end_by("-TERM").code(), Some(0));
    let text = std::fs::read_to_string(log).unwrap();
    assert!(text.contains("listening on http://") && text.contains("stopping"), "{text}");
}
