//! A machine of its own with a real systemd, on which none of our programs is installed (`boot`).

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses its part")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::support::NARVAL;

const PATIENCE: Duration = Duration::from_secs(60);

/// Ends with its last user: systemd and all that it started.
pub struct Machine {
    child: Child,
    /// Its end is the end of the machine.
    stdin: Option<ChildStdin>,
    pid: String,
    /// Where it is mounted. Not in memory: a systemd that boots has a /dev/shm of its own.
    _folder: tempfile::TempDir,
}

impl Machine {
    /// `None`: there can be no such machine here. The checkout is /root/narval there, and `shared` /shared.
    pub fn boot(shared: &Path) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/lib/systemd/systemd").exists() {
            eprintln!("note: skipped: needs root, and systemd");
            return None;
        }
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
        let mut boot = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/boot"));
        boot.arg(folder.path()).arg(checkout).arg(Path::new(NARVAL).parent().unwrap()).arg(shared);
        let mut child = boot.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.take();
        let mut pid = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut pid).unwrap();
        if pid.trim().is_empty() {
            assert_eq!(child.wait().unwrap().code(), Some(77));
            eprintln!("note: skipped: systemd can't have namespaces of its own here");
            return None;
        }
        let machine = Self { child, stdin, pid: pid.trim().to_owned(), _folder: folder };
        machine.wait_for("systemctl is-system-running");
        Some(machine)
    }

    /// A program on that machine, as root.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.pid, "-m", "-p", "-u", "-i", "-n", "-C", "-r", "-w", program]).env_clear();
        // Last, what the tests were given: tools of the checkout.
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin:{path}");
        command.env("PATH", path).env("HOME", "/root");
        command.env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        command
    }

    pub fn try_run(&self, script: &str) -> Output {
        self.command("/bin/sh").args(["-euc", script]).output().unwrap()
    }

    /// Runs a script on that machine.
    pub fn run(&self, script: &str) -> String {
        let output = self.try_run(script);
        assert!(
            output.status.success(),
            "{script}: {}{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
            self.log()
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// What its services have logged.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&self.try_run("cat /run/log").stdout).into_owned()
    }

    /// Runs a script until it succeeds.
    pub fn wait_for(&self, script: &str) {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            if self.try_run(script).status.success() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        self.run(script);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}
