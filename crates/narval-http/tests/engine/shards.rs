//! Failures of a server's threads. Each server is a separate process: this test program, started again.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use narval_http::{DriverChoice, Listen, Request, Response, Server, Snapshot, StatusCode, StopSignals};

use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter_all_threads,
};

use crate::harness::{Client, PATIENCE, drivers, eventually};
use crate::stopping::Process;

/// The server of the tests below.
#[test]
#[ignore = "started by other tests, as a process of its own"]
fn a_server_by_itself() {
    let driver: DriverChoice = std::env::var("SERVER_DRIVER").unwrap().parse().unwrap();
    static HELD: AtomicUsize = AtomicUsize::new(0);
    static COUNTERS: OnceLock<Box<dyn Fn() -> Snapshot + Send + Sync>> = OnceLock::new();
    let handler = |request: Request| {
        if request.path() == "/accept-errors" {
            return Response::text(StatusCode::OK, COUNTERS.get().unwrap()().accept_errors.to_string());
        }
        if request.path() == "/break" {
            break_a_driver();
        }
        if request.path() == "/held" {
            return Response::text(StatusCode::OK, HELD.load(Ordering::SeqCst).to_string());
        }
        if request.path() == "/hold" {
            HELD.fetch_add(1, Ordering::SeqCst);
            let gate = std::env::var_os("SERVER_GATE").unwrap();
            while !Path::new(&gate).exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Response::text(StatusCode::OK, "fine")
    };
    let listen = Listen::Tcp("127.0.0.1:0".parse().unwrap());
    let server = Server::builder(handler).listen(listen).driver(driver).workers(4).shards(2).build().unwrap();
    let address = server.addresses()[0].clone();
    // Before the start: io_uring takes the limit of when it was asked to accept.
    if let Ok(spare) = std::env::var("SERVER_DESCRIPTORS") {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let current = Some(open + spare.parse::<u64>().unwrap());
        setrlimit(Resource::Nofile, Rlimit { current, ..getrlimit(Resource::Nofile) }).unwrap();
    }
    let signals = StopSignals::catch().unwrap();
    let handle = server.spawn().unwrap();
    if std::env::var_os("SERVER_STOPPED_EARLY").is_some() {
        kill_process(getpid(), Signal::TERM).unwrap();
    }
    // Longer than a test waits, in all, between the signal and the last response: at its end connections are reset.
    handle.stop_on(signals, 4 * PATIENCE).unwrap();
    assert!(COUNTERS.set(Box::new(handle.counter_source())).is_ok());
    println!("listening on {address}");
    // It goes with the test that started it, whatever becomes of that.
    std::thread::spawn(|| {
        std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).unwrap();
        std::process::exit(3);
    });
    if let Err(error) = handle.wait() {
        eprintln!("it ended: {error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

/// Has the next wait of one shard fail: what it waits on is no valid descriptor any more, as after a stray close(2)
/// somewhere in a program. (A real one makes the standard library abort the process when it closes the descriptor
/// again.)
fn break_a_driver() {
    let broken = std::fs::read_dir("/proc/self/fd").unwrap().find_map(|entry| {
        let path = entry.unwrap().path();
        let to = std::fs::read_link(&path).unwrap_or_default();
        let is_a_drivers =
            ["anon_inode:[eventpoll]", "anon_inode:[io_uring]"].iter().any(|name| to.as_os_str() == *name);
        is_a_drivers.then(|| path.file_name().unwrap().to_str().unwrap().parse::<u64>().unwrap())
    });
    let is_the_first_argument =
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, broken.unwrap()).unwrap();
    let rule = SeccompRule::new(vec![is_the_first_argument]).unwrap();
    // epoll_wait (of x86-64 alone), epoll_pwait, epoll_pwait2, io_uring_enter.
    let waits: &[i64] = if cfg!(target_arch = "x86_64") { &[232, 281, 441, 426] } else { &[22, 441, 426] };
    let rules: BTreeMap<_, _> = waits.iter().map(|syscall| (*syscall, vec![rule.clone()])).collect();
    let (arch, ebadf) = (std::env::consts::ARCH.try_into().unwrap(), 9);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(ebadf), arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    apply_filter_all_threads(&program).unwrap();
}

struct Child {
    process: Process,
    address: String,
    /// When there is a file `gate` in it, requests for `/hold` are answered.
    folder: tempfile::TempDir,
}

impl Child {
    /// `wrapped`: a command that runs the one behind it. `descriptors`: how many more the server may open.
    fn start(driver: DriverChoice, wrapped: &[&str], descriptors: Option<u32>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Self::command(driver, wrapped, folder.path());
        command.envs(descriptors.map(|number| ("SERVER_DESCRIPTORS", number.to_string())));
        let mut process = Process { child: command.spawn().unwrap() };
        let mut lines = BufReader::new(process.child.stdout.take().unwrap()).lines();
        let line = lines.find_map(|line| Some(line.unwrap().split_once("listening on http://")?.1.to_owned())).unwrap();
        // What it says else is read so that it never has to wait for that.
        std::thread::spawn(move || lines.for_each(drop));
        Self { process, address: line, folder }
    }

    fn command(driver: DriverChoice, wrapped: &[&str], folder: &Path) -> Command {
        let this = std::env::current_exe().unwrap();
        let mut command = match wrapped.split_first() {
            Some((program, arguments)) => {
                let mut command = Command::new(program);
                command.args(arguments).arg(this);
                command
            }
            None => Command::new(this),
        };
        command
            .args(["shards::a_server_by_itself", "--exact", "--ignored", "--nocapture", "--test-threads", "1"])
            .env("SERVER_GATE", folder.join("gate"))
            .env("SERVER_DRIVER", format!("{driver:?}").to_lowercase())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn connect(&self) -> Client {
        Client::new(TcpStream::connect(&self.address).unwrap())
    }

    fn signal(&self) {
        let pid = self.process.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }
}

/// A service manager may stop a server as soon as it answers.
#[test]
fn a_signal_between_the_start_and_what_waits_for_signals_stops_the_server_in_order() {
    for driver in drivers() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Child::command(driver, &[], folder.path());
        let child = command.env("SERVER_STOPPED_EARLY", "").spawn().unwrap();
        let mut process = Process { child };
        // What it prints fits into the pipe. `wait` would close its input, which is another way to end it.
        eventually("it ends", || process.child.try_wait().unwrap().is_some());
        assert_eq!(process.child.wait().unwrap().code(), Some(0), "{driver:?}");
    }
}

#[test]
fn a_shard_that_ends_ends_the_process_with_an_error() {
    for driver in drivers() {
        let mut child = Child::start(driver, &[], None);
        let mut clients: Vec<_> = (0..4).map(|_| child.connect()).collect();
        for client in &mut clients {
            assert_eq!(client.get("/").status, 200);
        }
        clients[0].send("GET /break HTTP/1.1\r\nHost: t\r\n\r\n");
        // Whichever shard it is, it notices when it next waits.
        eventually("the process ends", || {
            if let Ok(mut stream) = TcpStream::connect(&child.address) {
                // It may be gone by then, which is what is waited for.
                let _ = std::io::Write::write_all(&mut stream, b"GET / HTTP/1.0\r\n\r\n");
            }
            child.process.child.try_wait().unwrap().is_some()
        });
        let status = child.process.child.wait().unwrap();
        let mut said = String::new();
        child.process.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(status.code(), Some(1), "{driver:?}: {said}");
        assert!(said.contains("it ended: ") && said.contains("file descriptor"), "{driver:?}: {said}");
    }
}

/// With io_uring each such error is one completion, and what accepts was once armed for each of them.
#[test]
fn after_running_out_of_descriptors_the_port_still_closes_at_shutdown() {
    for driver in drivers() {
        let child = Child::start(driver, &[], Some(20));
        let mut client = child.connect();
        for _ in 0..3 {
            let mut errors = || client.get("/accept-errors").text().parse::<u64>().unwrap();
            let before = errors();
            let crowd: Vec<_> = (0..60).map(|_| child.connect()).collect();
            // More than one: it has listened again, and failed again.
            eventually("it runs out of descriptors", || errors() > before + 2);
            drop(crowd);
        }
        // One on each shard: a shard without connections ends, and what it accepts with.
        let mut running = [child.connect(), child.connect()];
        for running in &mut running {
            running.send("GET /hold HTTP/1.1\r\nHost: t\r\n\r\n");
        }
        eventually("both are held", || client.get("/held").text() == "2");
        child.signal();
        eventually("nobody listens after the stop", || TcpStream::connect(&child.address).is_err());
        std::fs::write(child.folder.path().join("gate"), "").unwrap();
        for mut running in running {
            assert_eq!(running.answer().text(), "fine");
        }
    }
}

/// The kernel has no memory for an operation now and then (io_uring_enter(2): EAGAIN), as strace makes it say.
#[test]
fn operations_are_retried_when_the_kernel_has_no_memory() {
    if !drivers().contains(&DriverChoice::Uring) {
        return;
    }
    let rule = "inject=io_uring_enter:error=EAGAIN:when=5+3";
    let strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=io_uring_enter", "-e", rule];
    let tried = Command::new("strace").args(&strace[1..]).arg("true").output();
    if !tried.is_ok_and(|output| output.status.success()) {
        println!("skipped: no strace here, or it may not trace");
        return;
    }
    let child = Child::start(DriverChoice::Uring, &strace, None);
    for _ in 0..20 {
        let mut client = child.connect();
        for _ in 0..5 {
            assert_eq!(client.get("/").status, 200);
        }
    }
}
