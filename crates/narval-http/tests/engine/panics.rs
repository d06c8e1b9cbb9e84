use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use narval_http::ws::{CloseReason, Message, Upgrade, UpgradeError, WebSocket, WsError, WsHandler};
use narval_http::{
    AccessEntry, AccessLog, Body, BodySource, BodyWaker, Bytes, Fill, Handler, HeadRef, HeaderName, HeaderValue,
    Request, Response, SegmentBuf, StatusCode,
};

use crate::harness::{PATIENCE, TestServer, eventually, on_each_driver, unhurried};

/// A source with a bug in one of its methods, which most often the thread of the connections calls.
struct Buggy {
    bug: String,
    pieces: u32,
}

impl Buggy {
    fn reaches(&self, method: &str) {
        assert!(self.bug != method, "a bug in {method}");
    }
}

impl BodySource for Buggy {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        self.pieces += 1;
        out.memory().extend_from_slice(b"piece");
        if self.pieces < 3 {
            return Ok(Fill::Wait);
        }
        self.reaches("fill");
        // One that is hung up on has to be waiting for that.
        Ok(if self.bug == "hang_up" { Fill::Wait } else { Fill::Done })
    }

    fn wait(&mut self, waker: BodyWaker) -> Duration {
        self.reaches("wait");
        if self.pieces < 3 {
            waker.wake();
        }
        Duration::from_secs(3600)
    }

    fn hang_up(&mut self) -> bool {
        self.reaches("hang_up");
        false
    }

    fn never_blocks(&self) -> bool {
        if self.pieces == 2 {
            self.reaches("never_blocks");
        }
        true
    }

    fn trailers(&mut self) -> Vec<(HeaderName, HeaderValue)> {
        self.reaches("trailers");
        Vec::new()
    }
}

impl Drop for Buggy {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.reaches("drop");
        }
    }
}

#[test]
fn a_panic_in_the_access_log_loses_only_that_line() {
    #[derive(Clone, Default)]
    struct Fragile(Arc<Mutex<Vec<String>>>);
    impl AccessLog for Fragile {
        fn write(&mut self, entry: &AccessEntry) {
            assert!(!entry.request_line.contains("/bug"), "a bug in an access log");
            self.0.lock().unwrap().push(entry.request_line.clone());
        }
    }
    on_each_driver(|driver| {
        let log = Fragile::default();
        let writer = log.clone();
        let hello = |_: Request| Response::text(StatusCode::OK, "hello");
        let server = TestServer::with(driver, hello, unhurried(), |builder| builder.access_log(writer));
        let mut client = server.connect();
        for path in ["/1", "/bug", "/2"] {
            assert_eq!(client.get(path).status, 200);
        }
        eventually("the others are there", || log.0.lock().unwrap().len() == 2);
    });
}

struct Buggies;

impl Buggies {
    fn answer(path: &str) -> Response {
        let bug = path.rsplit('/').next().unwrap_or_default().to_owned();
        Response::new(StatusCode::OK).body(Body::source(Buggy { bug, pieces: 0 }, None))
    }
}

impl Handler for Buggies {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        head.path().starts_with("/inline/").then(|| Self::answer(head.path()))
    }

    fn handle(&self, request: Request) -> Response {
        Self::answer(request.path())
    }
}

#[test]
fn a_panicking_body_source_closes_only_its_connection() {
    on_each_driver(|driver| {
        let server = TestServer::with(driver, Buggies, unhurried(), |builder| builder.shards(1));
        let mut panics = 0;
        for place in ["inline", "worker"] {
            for bug in ["fill", "wait", "hang_up", "trailers", "drop", "never_blocks", "none"] {
                let mut client = server.connect();
                client.send(format!("GET /{place}/{bug} HTTP/1.1\r\nHost: t\r\n\r\n"));
                if bug == "hang_up" {
                    client.until("5\r\npiece\r\n5\r\npiece\r\n5\r\npiece\r\n");
                    client.stream.shutdown(Shutdown::Write).unwrap();
                    client.wait_for_end();
                } else if bug == "none" || bug == "never_blocks" || bug == "drop" {
                    assert_eq!(client.answer().text(), "piecepiecepiece", "{place} {bug}");
                } else {
                    assert!(client.try_answer(false).is_err(), "{place} {bug}: a body that was cut off ends cleanly");
                    panics += 1;
                }
                assert_eq!(server.get("/worker/none").text(), "piecepiecepiece", "after {place} {bug}");
            }
            // A source that is not even asked.
            let mut client = server.connect();
            client.send(format!("HEAD /{place}/drop HTTP/1.1\r\nHost: t\r\n\r\n"));
            assert_eq!(client.answer_to_head().status, 200);
        }
        assert_eq!(server.get("/inline/none").status, 200);
        eventually("each is counted", || server.handle.counters().panics >= panics);
        assert!(server.handle.shutdown(Duration::from_secs(60)), "all shards are there to stop");
    });
}

/// A handler that panics when it is asked whether it accepts WebSockets.
#[cfg(feature = "tls")]
struct Undecided;

#[cfg(feature = "tls")]
impl Handler for Undecided {
    fn handle(&self, _: Request) -> Response {
        Response::text(StatusCode::OK, "here")
    }

    fn accepts_websockets(&self) -> bool {
        panic!("a bug in accepts_websockets")
    }
}

/// It is asked on the thread of the connections, which must not end.
#[test]
#[cfg(feature = "tls")]
fn a_panic_when_asked_for_websockets_offers_none() {
    use crate::http2::client::Client;
    on_each_driver(|driver| {
        let server = crate::http2::server::serve(driver, unhurried(), Undecided);
        for _ in 0..2 {
            let mut client = Client::start(server.address);
            let stream = client.get("/");
            assert_eq!(client.response(stream).text(), "here");
        }
        assert_eq!(server.handle.counters().panics, 2);
    });
}

/// A WebSocket with a bug in one of its methods, or when it is dropped.
struct BuggySocket(String);

impl BuggySocket {
    fn reaches(&self, method: &str) {
        assert!(self.0 != method, "a bug in {method}");
    }
}

impl WsHandler for BuggySocket {
    fn open(&self, _: &WebSocket) {
        self.reaches("open");
    }

    fn message(&self, _: &WebSocket, _: Message) {
        self.reaches("message");
    }

    fn ping(&self, _: &WebSocket, _: Bytes) {
        self.reaches("ping");
    }

    fn pong(&self, _: &WebSocket, _: Bytes) {
        self.reaches("pong");
    }

    fn error(&self, _: &WebSocket, _: WsError) {
        self.reaches("error");
    }

    fn close(&self, _: &WebSocket, _: CloseReason) {
        self.reaches("close");
    }
}

impl Drop for BuggySocket {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.reaches("drop");
        }
    }
}

#[test]
fn a_panicking_websocket_closes_only_its_connection() {
    on_each_driver(|driver| {
        let handler = |request: Request| {
            let bug = request.path().trim_start_matches('/').to_owned();
            if bug.is_empty() {
                return Ok(Response::text(StatusCode::OK, "here"));
            }
            Ok::<_, UpgradeError>(Upgrade::new(&request)?.accept(BuggySocket(bug)))
        };
        let server = TestServer::with(driver, handler, unhurried(), |builder| builder.shards(1));
        for bug in ["open", "message", "ping", "pong", "error", "close", "drop", "none"] {
            for ends_cleanly in [true, false] {
                let stream = std::net::TcpStream::connect(server.address).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                let (mut client, _) = tungstenite::client(format!("ws://localhost/{bug}"), stream).unwrap();
                for message in [
                    tungstenite::Message::text("a"),
                    tungstenite::Message::Ping(Default::default()),
                    tungstenite::Message::Pong(Default::default()),
                ] {
                    // It fails once the server has closed the connection.
                    let _ = client.send(message);
                }
                if ends_cleanly {
                    let _ = client.close(None);
                    while client.read().is_ok() {}
                }
                drop(client);
                assert_eq!(server.get("/").text(), "here", "after {bug}");
            }
        }
        assert!(server.handle.shutdown(Duration::from_secs(60)), "the shard is there to stop");
    });
}
