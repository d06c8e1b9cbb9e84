use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, SystemTime};

use narval_http::{Body, BodySource, DriverChoice, Fill, Request, Response, SegmentBuf, StatusCode};

use crate::harness::{Client, PATIENCE, TestServer, drivers, eventually, on_each_driver};

fn done(_: Request) -> Response {
    Response::text(StatusCode::OK, "done")
}

#[test]
fn running_requests_finish_and_idle_connections_are_closed() {
    on_each_driver(|driver| {
        let (begin, begun) = channel();
        let (go, may_go) = channel::<()>();
        let may_go = Mutex::new(may_go);
        let server = TestServer::start(driver, move |request: Request| {
            if request.path() == "/held" {
                begin.send(()).unwrap();
                // Until the test says so, or has failed.
                let _ = may_go.lock().unwrap().recv();
            }
            done(request)
        });
        let mut idle = server.connect();
        assert_eq!(idle.get("/").status, 200);
        let mut running = server.connect();
        running.send("GET /held HTTP/1.1\r\nHost: t\r\n\r\n");
        begun.recv_timeout(PATIENCE).unwrap();
        let address = server.address;
        let stopper = std::thread::scope(|scope| {
            let stopping = scope.spawn(|| server.handle.shutdown(PATIENCE));
            assert!(idle.rest().is_empty(), "closed cleanly, while the other one runs");
            go.send(()).unwrap();
            let answer = running.answer();
            assert_eq!((answer.text().as_str(), answer.header("connection")), ("done", Some("close")));
            assert!(running.rest().is_empty());
            stopping.join().unwrap()
        });
        assert!(stopper, "everything finished");
        assert!(TcpStream::connect(address).is_err(), "nobody listens");
    });
}

/// A client that has connected does not know that the server stops. Its first request is answered if it arrives soon: within 250 ms.
#[test]
fn a_new_connection_may_send_its_first_request() {
    on_each_driver(|driver| {
        // Where other programs need the processors, a client may be late; then it is tried again.
        let is_in_time = (0..100).any(|_| sends_its_first_request_in_time(driver));
        assert!(is_in_time, "a request was never sent within 100 ms");
    });
}

/// Returns `false` if the client was not soon enough.
fn sends_its_first_request_in_time(driver: DriverChoice) -> bool {
    let server = TestServer::start(driver, done);
    let [mut new, silent, used] = [(); 3].map(|()| server.connect());
    let mut clients = [silent, used];
    assert_eq!(clients[1].get("/").status, 200);
    eventually("all are accepted", || server.handle.counters().connections_open == 3);
    let started = Instant::now();
    let is_in_time = std::thread::scope(|scope| {
        let stopping = scope.spawn(|| server.handle.shutdown(PATIENCE));
        assert!(clients[1].rest().is_empty(), "one that has had an answer is closed at once");
        let is_sent = new.stream.write_all(b"GET /1 HTTP/1.1\r\nHost: t\r\n\r\n").is_ok();
        let is_in_time = started.elapsed() < Duration::from_millis(100);
        if is_in_time {
            assert!(is_sent, "closed too soon");
            let answer = new.answer();
            assert_eq!((answer.text().as_str(), answer.header("connection")), ("done", Some("close")));
        }
        // Its own deadlines are an hour.
        assert!(clients[0].rest().is_empty(), "one that says nothing is closed, cleanly");
        assert!(stopping.join().unwrap());
        is_in_time
    });
    assert!(started.elapsed() >= Duration::from_millis(200), "{:?}", started.elapsed());
    is_in_time
}

#[test]
fn a_shutdown_ends_at_its_deadline() {
    struct Endless;
    impl BodySource for Endless {
        fn fill(&mut self, out: &mut SegmentBuf) -> std::io::Result<Fill> {
            out.memory().extend_from_slice(&[0; 1000]);
            std::thread::sleep(Duration::from_millis(1));
            Ok(Fill::More)
        }
    }
    on_each_driver(|driver| {
        let server =
            TestServer::start(driver, |_: Request| Response::new(StatusCode::OK).body(Body::source(Endless, None)));
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        client.head();
        // The body has no end: it returns because of the deadline.
        assert!(!server.handle.shutdown(Duration::from_millis(300)));
    });
}

#[test]
fn a_handler_waiting_for_a_body_is_notified_of_the_shutdown() {
    on_each_driver(|driver| {
        let (told, tells) = channel();
        let server = TestServer::start(driver, move |mut request: Request| {
            told.send(None).unwrap();
            told.send(Some(request.body().read_to_end(&mut Vec::new()))).unwrap();
            Response::new(StatusCode::NO_CONTENT)
        });
        let mut client = server.connect();
        client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3000000\r\n\r\n");
        client.send(vec![0; 1_500_000]);
        assert!(tells.recv_timeout(PATIENCE).unwrap().is_none(), "it has begun");
        assert!(!server.handle.shutdown(Duration::from_millis(100)));
        let read = tells.recv_timeout(PATIENCE).expect("the handler hears of it").expect("its second message");
        assert!(read.is_err());
    });
}

/// The example `hello`, as a process of its own.
pub(crate) struct Process {
    pub(crate) child: Child,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The path of an example. `cargo test` builds all of them, `cargo test --test engine` none, so one that is missing or older than the
/// sources is built here.
pub(crate) fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let profile_dir = test.parent().unwrap().parent().unwrap();
    let path = profile_dir.join("examples").join(name);
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = ["src", "examples", "Cargo.toml"].map(|part| last_change(&manifest_dir.join(part)));
    let built = path.metadata().map(|metadata| metadata.modified().unwrap());
    if !built.is_ok_and(|built| sources.iter().all(|changed| *changed < built)) {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", "narval-http", "--example", name]);
        build.arg("--target-dir").arg(profile_dir.parent().unwrap());
        if profile_dir.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success());
    }
    path
}

/// When the newest file below a folder was changed.
fn last_change(path: &Path) -> SystemTime {
    let own = path.metadata().unwrap().modified().unwrap();
    let Ok(entries) = path.read_dir() else { return own };
    entries.map(|entry| last_change(&entry.unwrap().path())).max().unwrap_or(own)
}

/// Whether a process has a handler for SIGTERM, signal 15 (proc(5), `SigCgt`).
fn handles_sigterm(pid: &str) -> bool {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid).join("status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & (1 << 14) != 0
}

#[test]
fn sigterm_stops_the_process() {
    for driver in drivers() {
        let driver = format!("{driver:?}").to_lowercase();
        let child = Command::new(example("client_headers"))
            .args(["--port", "0", "--driver", &driver])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut process = Process { child };
        let mut line = String::new();
        BufReader::new(process.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit('/').next().unwrap().to_owned();
        let mut client = Client::new(TcpStream::connect(address).unwrap());
        assert_eq!(client.get("/").status, 200);
        // It serves requests shortly before it handles signals.
        let pid = process.child.id().to_string();
        eventually("it handles SIGTERM", || handles_sigterm(&pid));
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        eventually("the process ended", || process.child.try_wait().unwrap().is_some());
        assert!(process.child.wait().unwrap().success());
    }
}

/// The listener is handed over as systemd does: descriptor 3, `LISTEN_FDS`, `LISTEN_PID`.
#[test]
fn an_inherited_socket() {
    for driver in drivers() {
        let driver = format!("{driver:?}").to_lowercase();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let script = r#"exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" --inherited yes --driver "$1""#;
        let child = Command::new("sh")
            .args(["-c", script])
            .arg(example("client_headers"))
            .arg(driver)
            .stdin(Stdio::from(OwnedFd::from(listener)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let _process = Process { child };
        // The connection waits in the backlog until the server is up: nothing is refused.
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}
