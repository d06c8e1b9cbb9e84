//! Temporary files of processes that live, that are killed at every step, and that have the same number.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use narval_files::{TemporaryFile, is_temporary_name, remove_leftovers};

const PREFIX: &str = ".tmp-";
const FOLDER: &str = "NARVAL_TEST_FOLDER";
const PATIENCE: Duration = Duration::from_secs(120);
const CONTENTS: &[u8] = b"all of it";
/// What the child says after each step.
const STEPS: [&str; 4] = ["made", "half", "written", "named"];

/// The child of the tests; alone it does nothing. It says its number, and then what it has done, waiting for a line each time.
#[test]
fn writes_step_by_step() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let step = |done: &str| {
        println!("\nstep {done}");
        if std::env::var_os("NARVAL_TEST_STEPS").is_some() {
            assert!(std::io::stdin().read_line(&mut String::new()).unwrap() > 0);
        }
    };
    step(&std::process::id().to_string());
    clear_up(folder);
    let file = TemporaryFile::create(folder, PREFIX, 0o600).unwrap();
    step(STEPS[0]);
    let (first, second) = CONTENTS.split_at(4);
    file.file().write_all(first).unwrap();
    step(STEPS[1]);
    file.file().write_all(second).unwrap();
    step(STEPS[2]);
    file.persist(&folder.join("named")).unwrap();
    step(STEPS[3]);
}

fn clear_up(folder: &Path) {
    remove_leftovers(folder, |name| is_temporary_name(name, PREFIX)).unwrap();
}

fn temporaries(folder: &Path) -> usize {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| is_temporary_name(name, PREFIX)).count()
}

fn assert_whole_or_absent(folder: &Path) -> bool {
    match fs::read(folder.join("named")) {
        Ok(contents) => assert_eq!(contents, CONTENTS),
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
            return false;
        }
    }
    true
}

/// What a child is started with: nothing, or what puts it into a PID namespace of its own, where it is process 1.
type Around = &'static [&'static str];
const PLAIN: Around = &[];
const CONTAINED: Around = &["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"];

fn containers_allowed() -> bool {
    let tried = Command::new(CONTAINED[0]).args(&CONTAINED[1..]).arg("true").output();
    let allowed = tried.is_ok_and(|output| output.status.success());
    if !allowed {
        eprintln!("note: skipped: namespaces are refused here");
    }
    allowed
}

fn command(around: &[&str], folder: &Path) -> Command {
    let this = std::env::current_exe().unwrap();
    let words = around.iter().map(std::ffi::OsStr::new).chain([this.as_os_str()]);
    let words: Vec<_> = words.collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(["--exact", "writes_step_by_step", "--nocapture"]).env(FOLDER, folder);
    command
}

struct Running {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn start(around: Around, folder: &Path) -> Self {
        let mut command = command(around, folder);
        command.env("NARVAL_TEST_STEPS", "1").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, stdin, stdout: BufReader::new(stdout) }
    }

    /// What it says next.
    fn said(&mut self) -> String {
        let mut line = String::new();
        while self.stdout.read_line(&mut line).unwrap() > 0 {
            if let Some(said) = line.strip_prefix("step ") {
                return said.trim_end().to_owned();
            }
            line.clear();
        }
        panic!("the child has ended: {:?}", self.child.wait());
    }

    /// Lets it go on until it has done this.
    fn until(&mut self, step: &str) {
        while self.said() != step {
            self.go_on();
        }
    }

    fn go_on(&mut self) {
        self.stdin.write_all(b"\n").unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already unless a test failed.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What a process has begun stays as long as it lives, and goes when it was killed, at whichever step.
fn killed_at_each_step(around: Around) {
    for (step, is_temporary) in STEPS.into_iter().zip([true, true, true, false]) {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Running::start(around, dir.path());
        child.until(step);
        clear_up(dir.path());
        assert_eq!(temporaries(dir.path()), usize::from(is_temporary), "it lives: {step}");
        child.kill();
        // Of `unshare` its child is killed as well, soon.
        let start = Instant::now();
        loop {
            clear_up(dir.path());
            if temporaries(dir.path()) == 0 {
                break;
            }
            assert!(start.elapsed() < PATIENCE, "it is dead: {step}");
            std::thread::yield_now();
        }
        assert_eq!(assert_whole_or_absent(dir.path()), !is_temporary);
    }
}

#[test]
fn only_leftovers_of_a_killed_process_are_removed() {
    killed_at_each_step(PLAIN);
}

#[test]
fn in_containers_too() {
    if containers_allowed() {
        killed_at_each_step(CONTAINED);
    }
}

/// Two processes with the same process id (in two containers) write to one folder at once, and each removes leftovers when it starts.
#[test]
fn two_processes_with_the_same_pid() {
    if !containers_allowed() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut first = Running::start(CONTAINED, dir.path());
    assert_eq!(first.said(), "1");
    first.go_on();
    first.until("half");
    let mut second = Running::start(CONTAINED, dir.path());
    assert_eq!(second.said(), "1");
    second.go_on();
    second.until("half");
    assert_eq!(temporaries(dir.path()), 2, "each has its own");
    for child in [&mut first, &mut second] {
        child.go_on();
        child.until("named");
        assert!(assert_whole_or_absent(dir.path()));
        fs::remove_file(dir.path().join("named")).unwrap();
        child.go_on();
        assert!(child.child.wait().unwrap().success());
    }
    assert_eq!(temporaries(dir.path()), 0);
}

/// Killed by the kernel at every single call that makes, locks, writes or names a file.
#[test]
fn killed_at_every_system_call() {
    let tried = Command::new("strace").args(["-qq", "-f", "-o", "/dev/null", "true"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        eprintln!("note: skipped: there is no strace, or it may not trace here");
        return;
    }
    for call in ["openat", "flock", "/^(newfstatat|statx|fstat)$", "write", "/^rename"] {
        let mut killed = 0;
        loop {
            let dir = tempfile::tempdir().unwrap();
            let (trace, inject) = (format!("trace={call}"), format!("inject={call}:signal=KILL:when={}", killed + 1));
            let around = ["strace", "-qq", "-f", "-o", "/dev/null", "-e", &trace, "-e", &inject];
            let output = command(&around, dir.path()).output().unwrap();
            clear_up(dir.path());
            assert_eq!(temporaries(dir.path()), 0, "{call} {killed}");
            if assert_whole_or_absent(dir.path()) && output.status.success() {
                break;
            }
            assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            killed += 1;
            assert!(killed < 1000, "{call}");
        }
        assert!(killed > 0, "{call}");
    }
}
