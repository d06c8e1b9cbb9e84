//! A Nix client whose disk is too slow stops reading: what the end of the server's patience does to it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails may say so")]

mod support;

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use narval_nix::{Sha256, Sha256Hasher};
use support::{NARVAL, Nix, Server, Store, noise, stdout};

const PATIENCE: Duration = Duration::from_secs(120);
/// What is read before the disk is stuck.
const READ_FIRST: usize = 1 << 20;
/// More than the buffers of both kernels and of Nix hold.
const LARGE: usize = 32 << 20;

/// Whether the kernel has connections of a server on this port that are open, or have something left to send.
fn has_connections(port: u16) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().skip(1).any(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let (local, state) = (columns.next().unwrap(), columns.nth(1).unwrap());
        // ESTABLISHED, FIN-WAIT-1.
        local.ends_with(&format!(":{port:04X}")) && matches!(state, "01" | "04")
    })
}

/// A real Nix whose standard output nobody takes for a while: it stops reading from the server.
struct Paused {
    child: std::process::Child,
    first: Vec<u8>,
    _home: tempfile::TempDir,
}

impl Paused {
    fn begin(nix: Nix, server: &Server, path: &str) -> Self {
        let mut command = Command::new(if nix == Nix::Newest { "nix" } else { "nix-old" });
        let url = server.url();
        command.args(["--extra-experimental-features", "nix-command", "store", "dump-path", "--store", &url, path]);
        let home = tempfile::tempdir().unwrap();
        command.env("HOME", home.path()).env("XDG_CACHE_HOME", home.path()).env_remove("NIX_REMOTE");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = vec![0; READ_FIRST];
        child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        Self { child, first, _home: home }
    }

    /// Lets it go on; the hash of all that it wrote.
    fn finish(mut self) -> Sha256 {
        let mut hasher = Sha256Hasher::new();
        hasher.update(&self.first);
        let mut rest = Vec::new();
        self.child.stdout.take().unwrap().read_to_end(&mut rest).unwrap();
        hasher.update(&rest);
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        hasher.finish()
    }
}

/// The server's end is a reset, for its kernel still has bytes that the client did not take. Nix resumes from there where
/// it was offered ranges: a NAR as it is, and a compressed one under its own URL.
#[test]
fn nix_resumes_when_the_server_has_given_up() {
    let store = Store::new();
    let path = store.add_file("noise", noise(1, LARGE));
    let nar_hash = Sha256::of(&store.dump(&path));
    for nix in Nix::BOTH {
        let log = store.path("access.log");
        let arguments = ["--no-nar-cache", "--stall-timeout", "2", "--access-log", log.to_str().unwrap()];
        let server = Server::narval(&store, &arguments);
        let paused = Paused::begin(nix, &server, &path);
        let until = Instant::now() + PATIENCE;
        while has_connections(server.address.port()) {
            assert!(Instant::now() < until, "the server does not give up");
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(paused.finish(), nar_hash, "{nix:?}");
        server.terminate();
        let lines = std::fs::read_to_string(&log).unwrap();
        assert!(lines.contains(".nar HTTP/1.1\" 206 "), "{nix:?} resumes: {lines}");
        std::fs::remove_file(log).unwrap();
    }
}

/// What is sent with `Content-Encoding` Nix can't resume: the server is patient.
#[test]
fn a_paused_nix_keeps_a_response_that_it_cannot_resume() {
    let store = Store::new();
    // A part of it compresses, so that it is not sent as it is.
    let mut contents = noise(1, LARGE);
    contents.resize(LARGE + LARGE / 4, 0);
    let path = store.add_file("noise", contents);
    let nar_hash = Sha256::of(&store.dump(&path));
    let help = Command::new(NARVAL).args(["serve", "--help"]).output().unwrap();
    let help = stdout(help);
    let option = help.split("--stall-timeout").nth(1).unwrap();
    assert!(option.split("[default: ").nth(1).unwrap().starts_with("1h]"), "{option}");
    let log = store.path("access.log");
    let server = Server::narval(&store, &["--access-log", log.to_str().unwrap()]);
    // Made while it is sent, and then from a file.
    for _ in 0..2 {
        let paused = Paused::begin(Nix::Newest, &server, &path);
        std::thread::sleep(Duration::from_secs(5));
        assert!(has_connections(server.address.port()), "it was given up");
        assert_eq!(paused.finish(), nar_hash);
    }
}
