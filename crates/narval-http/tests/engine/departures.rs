//! Clients that leave before they are answered: whoever works for them learns it, and stops.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use narval_http::{
    Body, BodySource, BodyWaker, Departure, DriverChoice, Fill, Request, Responder, Response, SegmentBuf, StatusCode,
};

use crate::harness::{Client, PATIENCE, TestServer, eventually, on_each_driver, unhurried};

/// The state of a server's handlers.
#[derive(Default)]
struct Site {
    /// Requests whose handlers run, or whose bodies are made, or that wait for late answers.
    busy: AtomicUsize,
    /// Requests whose handlers have run.
    handled: AtomicUsize,
    /// Departures that were called.
    called: AtomicUsize,
    shelf: Mutex<Vec<Responder>>,
}

/// Counts as busy until it is dropped.
struct Busy(Arc<Site>);

impl Busy {
    fn at(site: &Arc<Site>) -> Self {
        site.busy.fetch_add(1, Ordering::SeqCst);
        Self(site.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Works without a byte.
struct Works {
    _busy: Busy,
    is_quick: bool,
}

impl BodySource for Works {
    fn fill(&mut self, _: &mut SegmentBuf) -> io::Result<Fill> {
        std::thread::sleep(Duration::from_millis(1));
        Ok(Fill::More)
    }

    fn never_blocks(&self) -> bool {
        self.is_quick
    }
}

/// Waits for somebody who never calls.
struct Waits {
    _busy: Busy,
    waker: Option<BodyWaker>,
}

impl BodySource for Waits {
    fn fill(&mut self, _: &mut SegmentBuf) -> io::Result<Fill> {
        Ok(Fill::Wait)
    }

    fn wait(&mut self, waker: BodyWaker) -> Duration {
        self.waker = Some(waker);
        Duration::MAX
    }

    fn never_blocks(&self) -> bool {
        true
    }
}

impl Site {
    fn start(driver: DriverChoice, is_secure: bool) -> (Arc<Self>, TestServer) {
        let site = Arc::new(Self::default());
        let handled = site.clone();
        let handler = move |request: Request| handled.handle(request);
        let server = if is_secure { secured(driver, handler) } else { TestServer::start(driver, handler) };
        (site, server)
    }

    fn handle(self: &Arc<Self>, request: Request) -> Response {
        self.handled.fetch_add(1, Ordering::SeqCst);
        let busy = Busy::at(self);
        let departure = request.departure();
        let site = self.clone();
        departure.on_gone(move || {
            site.called.fetch_add(1, Ordering::SeqCst);
        });
        match request.path() {
            "/works" => Response::new(StatusCode::OK).body(Body::source(Works { _busy: busy, is_quick: false }, None)),
            "/works-quickly" => {
                Response::new(StatusCode::OK).body(Body::source(Works { _busy: busy, is_quick: true }, Some(10)))
            }
            "/waits" => Response::new(StatusCode::OK).body(Body::source(Waits { _busy: busy, waker: None }, None)),
            "/asks" => {
                ask_until_gone(&departure);
                assert!(!request.is_connected());
                Response::text(StatusCode::OK, "for nobody")
            }
            "/later" => {
                let (response, responder) = Response::later();
                assert!(responder.is_open());
                std::thread::spawn(move || {
                    ask_until_gone(&departure);
                    eventually("it is closed", || !responder.is_open());
                    drop((responder, busy));
                });
                response
            }
            "/shelf" => {
                let (response, responder) = Response::later();
                self.shelf.lock().unwrap().push(responder);
                response
            }
            _ => Response::text(StatusCode::OK, "here"),
        }
    }

    fn is_idle(&self) -> bool {
        self.busy.load(Ordering::SeqCst) == 0
    }
}

fn ask_until_gone(departure: &Departure) {
    let until = Instant::now() + PATIENCE;
    while !departure.is_gone() {
        assert!(Instant::now() < until, "never");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(feature = "tls")]
fn secured(driver: DriverChoice, handler: impl narval_http::Handler) -> TestServer {
    crate::http2::server::serve(driver, unhurried(), handler)
}

#[cfg(not(feature = "tls"))]
fn secured(driver: DriverChoice, handler: impl narval_http::Handler) -> TestServer {
    TestServer::with(driver, handler, unhurried(), |builder| builder)
}

/// A client with an open request, and how it leaves.
type Asked = Box<dyn FnOnce()>;

/// A way to leave: what it is, whether it is over TLS, and how to ask.
type Way = (&'static str, bool, fn(SocketAddr, &str) -> Asked);

/// Makes the close of a socket a reset.
fn reset(socket: &TcpStream) {
    rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO)).unwrap();
}

fn ask(address: SocketAddr, path: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    socket
}

/// All ways to ask, and to leave.
fn ways() -> Vec<Way> {
    let mut ways: Vec<Way> = vec![
        ("a reset", false, |address, path| {
            let socket = ask(address, path);
            reset(&socket);
            Box::new(|| drop(socket))
        }),
        ("a close", false, |address, path| {
            let socket = ask(address, path);
            Box::new(|| drop(socket))
        }),
        ("a close after half of it", false, |address, path| {
            let socket = ask(address, path);
            socket.shutdown(Shutdown::Write).unwrap();
            Box::new(|| drop(socket))
        }),
        ("a reset with another request in the pipeline", false, |address, path| {
            let mut socket = ask(address, path);
            write!(socket, "GET /late HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
            reset(&socket);
            Box::new(|| drop(socket))
        }),
    ];
    #[cfg(feature = "tls")]
    ways.extend(secure::ways());
    ways
}

#[cfg(feature = "tls")]
mod secure {
    use super::*;
    use crate::http2::client::{self as frames, Client as Http2};

    pub(super) fn ways() -> Vec<Way> {
        vec![
            ("a reset over TLS", true, |address, path| {
                let tls = ask(address, path);
                reset(&tls.sock);
                Box::new(|| drop(tls))
            }),
            ("a close over TLS", true, |address, path| {
                let mut tls = ask(address, path);
                Box::new(move || {
                    tls.conn.send_close_notify();
                    tls.conn.complete_io(&mut tls.sock).unwrap();
                })
            }),
            ("a reset stream", true, |address, path| {
                let mut client = Http2::start(address);
                let stream = client.get(path);
                Box::new(move || {
                    let cancel = frames::code::CANCEL.to_be_bytes();
                    client.send(frames::frame(frames::RST_STREAM, 0, stream, cancel));
                    // The connection stays.
                    Box::leak(Box::new(client));
                })
            }),
            ("a reset over HTTP/2", true, |address, path| {
                let mut client = Http2::start(address);
                client.get(path);
                reset(client.socket());
                Box::new(|| drop(client))
            }),
            ("a close over HTTP/2", true, |address, path| {
                let mut client = Http2::start(address);
                client.get(path);
                Box::new(|| drop(client))
            }),
        ]
    }

    type Tls = rustls::StreamOwned<rustls::ClientConnection, TcpStream>;

    fn ask(address: SocketAddr, path: &str) -> Tls {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(crate::http2::server::certificate().der.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        let mut tls = Tls::new(connection, TcpStream::connect(address).unwrap());
        write!(tls, "GET {path} HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        tls.flush().unwrap();
        tls
    }
}

/// However a client leaves, whoever works for it learns it: handlers, late answers and bodies.
#[test]
fn work_ends_when_its_client_leaves() {
    on_each_driver(|driver| {
        for is_secure in [false, true] {
            let (site, server) = Site::start(driver, is_secure);
            for (what, _, ask) in ways().into_iter().filter(|(_, secure, _)| *secure == is_secure) {
                for path in ["/asks", "/later", "/works", "/works-quickly", "/waits"] {
                    let called = site.called.load(Ordering::SeqCst);
                    let leave = ask(server.address, path);
                    eventually("it is worked for", || !site.is_idle());
                    assert_eq!(site.called.load(Ordering::SeqCst), called);
                    let left = Instant::now();
                    leave();
                    eventually(&format!("the work of {path} ends after {what}"), || site.is_idle());
                    println!("{what}, {path}: {:?}", left.elapsed());
                    eventually("it is called", || site.called.load(Ordering::SeqCst) == called + 1);
                }
            }
        }
    });
}

/// A source that works without a byte holds no thread: there are more of them than workers.
#[test]
fn bodies_that_take_long_to_begin_let_others_have_their_turn() {
    on_each_driver(|driver| {
        let (site, server) = Site::start(driver, false);
        let mut clients: Vec<TcpStream> = Vec::new();
        for path in ["/works", "/works-quickly"] {
            clients.extend((0..20).map(|_| ask(server.address, path)));
        }
        eventually("all have begun", || site.busy.load(Ordering::SeqCst) == clients.len());
        for _ in 0..20 {
            assert_eq!(server.get("/").text(), "here");
        }
        drop(clients);
        eventually("all end", || site.is_idle());
    });
}

/// The same over HTTP/2, where the thread of the connections would make what never blocks.
#[test]
#[cfg(feature = "tls")]
fn bodies_that_take_long_to_begin_let_other_streams_have_their_turn() {
    use crate::http2::client::Client as Http2;
    on_each_driver(|driver| {
        let (site, server) = Site::start(driver, true);
        let mut client = Http2::start(server.address);
        for _ in 0..20 {
            client.get("/works");
            client.get("/works-quickly");
        }
        eventually("all have begun", || site.busy.load(Ordering::SeqCst) == 40);
        for _ in 0..20 {
            let stream = client.get("/");
            assert_eq!(client.response(stream).text(), "here");
        }
        drop(client);
        eventually("all end", || site.is_idle());
    });
}

/// A client that only ends its side still gets its answer, after `100 Continue` if that takes a while.
#[test]
fn clients_that_end_their_side_and_read_are_served() {
    on_each_driver(|driver| {
        let (site, server) = Site::start(driver, false);
        for (version, probed) in [("HTTP/1.1", true), ("HTTP/1.0", false)] {
            let mut client = server.connect();
            client.send(format!("GET /shelf {version}\r\nHost: t\r\n\r\n"));
            client.stream.shutdown(Shutdown::Write).unwrap();
            eventually("it is there", || site.shelf.lock().unwrap().len() == 1);
            if probed {
                assert_eq!(client.head(), "HTTP/1.1 100 Continue\r\n\r\n");
            }
            std::thread::sleep(Duration::from_secs(1));
            let responder = site.shelf.lock().unwrap().pop().unwrap();
            assert!(responder.is_open());
            responder.respond(Response::text(StatusCode::OK, "at last"));
            assert_eq!(client.answer().text(), "at last", "and no second 100 Continue");
            assert!(client.rest().is_empty());
        }
        assert_eq!(site.called.load(Ordering::SeqCst), 0);
    });
}

/// Requests that wait for a worker when their clients leave are never handled.
#[test]
fn queued_requests_of_departed_clients_are_dropped() {
    // A reset is noticed at once, or within a quarter of a second.
    let noticed = Duration::from_secs(2);
    on_each_driver(|driver| {
        for is_secure in [false, true] {
            let (site, server) = Site::start(driver, is_secure);
            let resets = ways().into_iter().filter(|(what, secure, _)| *secure == is_secure && what.contains("reset"));
            for (what, _, ask) in resets {
                // All workers are busy.
                let occupied: Vec<Asked> = (0..4).map(|_| ask(server.address, "/asks")).collect();
                eventually("the workers are busy", || site.busy.load(Ordering::SeqCst) == 4);
                let handled = site.handled.load(Ordering::SeqCst);
                let queued: Vec<Asked> = (0..8).map(|_| ask(server.address, "/")).collect();
                eventually("all are queued", || server.handle.counters().queue_depth == 8);
                queued.into_iter().for_each(|leave| leave());
                std::thread::sleep(noticed);
                occupied.into_iter().for_each(|leave| leave());
                eventually("the queue is empty", || server.handle.counters().queue_depth == 0 && site.is_idle());
                assert_eq!(site.handled.load(Ordering::SeqCst), handled, "{what}");
            }
        }
    });
}

/// Nothing is called for a client that leaves once it is answered.
#[test]
fn an_answered_client_does_not_depart() {
    on_each_driver(|driver| {
        let (site, server) = Site::start(driver, false);
        let mut client: Client = server.connect();
        for _ in 0..3 {
            assert_eq!(client.get("/").text(), "here");
        }
        reset(&client.stream);
        drop(client);
        eventually("the connection is closed", || server.handle.counters().connections_open == 0);
        assert_eq!(site.called.load(Ordering::SeqCst), 0);
    });
}
