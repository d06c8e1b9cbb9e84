use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use narval_http::{Body, BodySource, Fill, Request, Response, SegmentBuf, StatusCode};

use crate::harness::{Client, PATIENCE, TestServer, drivers, eventually, on_each_driver};

fn slow(request: Request) -> Response {
    if let Ok(ms) = request.path()[1..].parse() {
        std::thread::sleep(Duration::from_millis(ms));
    }
    Response::text(StatusCode::OK, "done")
}

#[test]
fn running_requests_finish_and_idle_connections_are_closed() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, slow);
        let mut idle = server.connect();
        assert_eq!(idle.get("/").status, 200);
        let mut running = server.connect();
        running.send("GET /500 HTTP/1.1\r\nHost: t\r\n\r\n");
        std::thread::sleep(Duration::from_millis(100));
        let address = server.address;
        let started = Instant::now();
        let stopper = std::thread::scope(|scope| {
            let stopping = scope.spawn(|| server.handle.shutdown(PATIENCE));
            assert!(idle.rest().is_empty(), "closed at once, cleanly");
            assert!(started.elapsed() < Duration::from_millis(400));
            let answer = running.answer();
            assert_eq!((answer.text().as_str(), answer.header("connection")), ("done", Some("close")));
            assert!(running.rest().is_empty());
            stopping.join().unwrap()
        });
        assert!(stopper, "everything finished");
        assert!(TcpStream::connect(address).is_err(), "nobody listens");
    });
}

/// A client that has connected does not know that the server stops. Its first request is answered if it arrives soon.
#[test]
fn a_new_connection_may_send_its_first_request() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, slow);
        let [mut new, silent, used] = [(); 3].map(|()| server.connect());
        let mut clients = [silent, used];
        assert_eq!(clients[1].get("/").status, 200);
        eventually("all are accepted", || server.handle.counters().connections_open == 3);
        let started = Instant::now();
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| server.handle.shutdown(PATIENCE));
            assert!(clients[1].rest().is_empty(), "one that has had an answer is closed at once");
            new.send("GET /1 HTTP/1.1\r\nHost: t\r\n\r\n");
            let answer = new.answer();
            assert_eq!((answer.text().as_str(), answer.header("connection")), ("done", Some("close")));
            assert!(clients[0].rest().is_empty(), "one that says nothing is closed, cleanly");
            assert!(stopping.join().unwrap());
        });
        assert!((Duration::from_millis(200)..Duration::from_secs(2)).contains(&started.elapsed()));
    });
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
        let started = Instant::now();
        assert!(!server.handle.shutdown(Duration::from_millis(300)));
        assert!(started.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn a_handler_waiting_for_a_body_is_notified_of_the_shutdown() {
    on_each_driver(|driver| {
        let (told, tells) = std::sync::mpsc::channel();
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
        std::thread::sleep(Duration::from_millis(300));
        let pid = process.child.id().to_string();
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
