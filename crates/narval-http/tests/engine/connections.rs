use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use narval_http::{
    AccessEntry, AccessLog, Body, Handler, HeadRef, HeaderValue, Listen, ListenAddress, Prepared, Request, Response,
    StatusCode, header,
};

use crate::harness::{TestServer, eventually, on_each_driver, unhurried};

/// `/inline/...` from memory on the shard, everything else by a worker; the answer is the path.
struct Echo;

impl Handler for Echo {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        head.path().starts_with("/inline").then(|| Response::text(StatusCode::OK, head.path()))
    }

    fn handle(&self, request: Request) -> Response {
        Response::text(StatusCode::OK, request.path())
    }
}

#[test]
fn keep_alive_answers_requests_in_turn() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, Echo);
        let mut client = server.connect();
        for at in 0..100 {
            let path = if at % 3 == 0 { format!("/inline/{at}") } else { format!("/worker/{at}") };
            let answer = client.get(&path);
            assert_eq!((answer.status, answer.text()), (200, path));
            assert!(answer.header("date").is_some() && answer.header("connection").is_none(), "{answer:?}");
        }
        let counters = server.handle.counters();
        assert_eq!((counters.connections_accepted, counters.requests()), (1, 100));
        assert_eq!(counters.statuses, [(200, 100)]);
    });
}

#[test]
fn connection_close_and_http_1_0() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, Echo);
        for path in ["/inline", "/worker"] {
            let mut client = server.connect();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"));
            assert_eq!(client.answer().header("connection"), Some("close"));
            assert!(client.rest().is_empty());
            let mut client = server.connect();
            client.send(format!("GET {path} HTTP/1.0\r\n\r\n"));
            assert_eq!(client.answer().text(), path);
            assert!(client.rest().is_empty());
            let mut client = server.connect();
            for _ in 0..3 {
                client.send(format!("GET {path} HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"));
                assert_eq!(client.answer().header("connection"), Some("keep-alive"));
            }
        }
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, |request: Request| {
            if request.path().ends_with('7') {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            Response::text(StatusCode::OK, request.path())
        });
        pipeline(&server, 300, "/worker");
        let server = TestServer::start(driver, Echo);
        pipeline(&server, 2000, "/inline");
        let mut client = server.connect();
        let paths: Vec<String> =
            (0..500).map(|at| if at % 2 == 0 { format!("/inline/{at}") } else { format!("/worker/{at}") }).collect();
        client.send(paths.iter().map(|path| format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n")).collect::<String>());
        for path in paths {
            assert_eq!(client.answer().text(), path);
        }
    });
}

fn pipeline(server: &TestServer, count: usize, prefix: &str) {
    let mut client = server.connect();
    client.send((0..count).map(|at| format!("GET {prefix}/{at} HTTP/1.1\r\nHost: t\r\n\r\n")).collect::<String>());
    for at in 0..count {
        assert_eq!(client.answer().text(), format!("{prefix}/{at}"));
    }
}

#[test]
fn pipelined_requests_before_the_client_closes_its_side_are_answered() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, Echo);
        for prefix in ["/inline", "/worker"] {
            let mut client = server.connect();
            client
                .send(format!("GET {prefix}/1 HTTP/1.1\r\nHost: t\r\n\r\nGET {prefix}/2 HTTP/1.1\r\nHost: t\r\n\r\n"));
            client.stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(client.answer().text(), format!("{prefix}/1"));
            assert_eq!(client.answer().text(), format!("{prefix}/2"));
            assert!(client.rest().is_empty());
        }
    });
}

#[test]
fn a_head_that_arrives_byte_by_byte() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, Echo);
        for path in ["/inline", "/worker"] {
            let mut client = server.connect();
            for _ in 0..3 {
                for byte in format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").bytes() {
                    client.send([byte]);
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
                assert_eq!(client.answer().text(), path);
            }
        }
    });
}

#[test]
fn head_requests_have_no_body() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, Echo);
        let mut client = server.connect();
        for path in ["/inline", "/worker", "/inline"] {
            client.send(format!("HEAD {path} HTTP/1.1\r\nHost: test\r\n\r\n"));
            let answer = client.answer_to_head();
            assert_eq!(answer.header("content-length"), Some(path.len().to_string().as_str()));
        }
        assert_eq!(client.get("/worker").text(), "/worker");
    });
}

#[test]
fn malformed_requests_are_answered_once_and_reach_no_handler() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, |_: Request| -> Response { panic!("a handler was called") });
        let cases: &[(&str, u16)] = &[
            ("GET / HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\nHost: a\n\n", 400),
            ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
            ("\u{1}\u{2}\u{3}\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        ];
        for (request, status) in cases {
            let mut client = server.connect();
            client.send(request);
            client.send("GET /next HTTP/1.1\r\nHost: a\r\n\r\n");
            let answer = client.answer();
            assert_eq!(answer.status, *status, "{request:?}");
            assert_eq!(answer.header("connection"), Some("close"));
            assert_eq!(answer.text().lines().count(), 1);
            assert!(client.rest().is_empty(), "nothing after it");
        }
        assert_eq!(server.handle.counters().rejected, cases.len() as u64);
    });
}

#[test]
fn a_head_that_is_too_large() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, Echo);
        let mut client = server.connect();
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "y".repeat(20_000)));
        assert_eq!(client.answer().status, 431);
        assert!(client.rest().is_empty());
        let mut client = server.connect();
        client.send(format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "y".repeat(20_000)));
        assert_eq!(client.answer().status, 414);
    });
}

#[test]
fn a_panic_is_a_500_without_details() {
    struct Panics;
    impl Handler for Panics {
        fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
            assert!(head.path() != "/inline", "a bug");
            None
        }
        fn handle(&self, request: Request) -> Response {
            assert!(request.path() != "/worker", "a bug");
            Response::text(StatusCode::OK, "fine")
        }
    }
    on_each_driver(|driver| {
        let server = TestServer::start(driver, Panics);
        let mut client = server.connect();
        for _ in 0..10 {
            assert_eq!(client.get("/inline").status, 500);
            assert_eq!(client.get("/worker").status, 500);
            assert_eq!(client.get("/other").text(), "fine");
        }
        assert_eq!(server.handle.counters().panics, 20);
    });
}

#[test]
fn prepared_answers_keep_their_fields() {
    on_each_driver(|driver| {
        let fields = [(header::CONTENT_TYPE, HeaderValue::from_static("text/x-nix-narinfo"))];
        let prepared = Arc::new(Prepared::new(StatusCode::OK, &fields, "StorePath: x\n".into()));
        let server = TestServer::start(driver, move |_: Request| Response::from(prepared.clone()));
        let answer = server.get("/");
        assert_eq!(answer.header("content-type"), Some("text/x-nix-narinfo"));
        assert_eq!(answer.text(), "StorePath: x\n");
    });
}

#[test]
fn several_listeners_including_ipv6_and_unix() {
    on_each_driver(|driver| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        // A socket file that nobody listens on is in the way of no one.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let server = TestServer::with(driver, Echo, unhurried(), |builder| {
            builder.listen(Listen::Tcp("[::1]:0".parse().unwrap())).listen(Listen::Unix(path.clone()))
        });
        let addresses = server.handle.addresses();
        assert_eq!(addresses.len(), 3);
        let ListenAddress::Tcp(v6) = addresses[1] else { panic!("TCP") };
        let mut client = crate::harness::Client::new(std::net::TcpStream::connect(v6).unwrap());
        assert_eq!(client.get("/worker").text(), "/worker");
        for target in ["/inline", "/worker"] {
            let mut stream = UnixStream::connect(&path).unwrap();
            std::io::Write::write_all(&mut stream, format!("GET {target} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
            let mut answer = String::new();
            std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
            assert!(answer.ends_with(target), "{answer}");
        }
        assert!(server.handle.shutdown(crate::harness::PATIENCE));
        assert!(!path.exists(), "the socket's file goes with the server");
    });
}

/// The program opens its sockets itself, and has one of them for longer than the server.
#[test]
fn listeners_of_the_program() {
    on_each_driver(|driver| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let unix = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let (address, kept) = (tcp.local_addr().unwrap(), unix.try_clone().unwrap());
        let server = TestServer::with(driver, Echo, unhurried(), |builder| {
            builder.listen(Listen::from(tcp)).listen(Listen::from(unix))
        });
        let expected = [ListenAddress::Tcp(address), ListenAddress::Unix(path.clone())];
        assert_eq!(server.handle.addresses()[1..], expected);
        let mut client = crate::harness::Client::new(std::net::TcpStream::connect(address).unwrap());
        assert_eq!(client.get("/worker").text(), "/worker");
        let mut stream = UnixStream::connect(&path).unwrap();
        std::io::Write::write_all(&mut stream, b"GET /worker HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
        assert!(answer.ends_with("/worker"), "{answer}");
        drop(client);
        assert!(server.handle.shutdown(crate::harness::PATIENCE));
        assert!(std::net::TcpStream::connect(address).is_err(), "the server closed its socket");
        let waiting = UnixStream::connect(&path).unwrap();
        assert!(kept.accept().is_ok(), "the other one is still the program's");
        drop(waiting);
    });
}

#[test]
fn many_connections_over_several_shards() {
    on_each_driver(|driver| {
        let server = TestServer::with(driver, Echo, unhurried(), |builder| builder.shards(3));
        let mut clients: Vec<_> = (0..60).map(|_| server.connect()).collect();
        for round in 0..5 {
            for (at, client) in clients.iter_mut().enumerate() {
                let kind = if (at + round) % 2 == 0 { "inline" } else { "worker" };
                client.send(format!("GET /{kind}/{at} HTTP/1.1\r\nHost: t\r\n\r\n"));
            }
            for client in &mut clients {
                assert_eq!(client.answer().status, 200);
            }
        }
        let counters = server.handle.counters();
        assert_eq!((counters.connections_open, counters.requests()), (60, 300));
        drop(clients);
        eventually("all connections are closed", || server.handle.counters().connections_open == 0);
    });
}

#[test]
fn the_access_log_has_every_answer() {
    #[derive(Clone, Default)]
    struct Collect(Arc<Mutex<Vec<AccessEntry>>>);
    impl AccessLog for Collect {
        fn write(&mut self, entry: &AccessEntry) {
            self.0.lock().unwrap().push(entry.clone());
        }
    }
    on_each_driver(|driver| {
        let log = Collect::default();
        let writer = log.clone();
        let server = TestServer::with(driver, Echo, unhurried(), |builder| builder.access_log(writer));
        let mut client = server.connect();
        for path in ["/inline/a", "/worker/b?c=d"] {
            client.send(format!("GET {path} HTTP/1.1\r\nHost: t\r\nUser-Agent: me\r\nReferer: http://r/\r\n\r\n"));
            client.answer();
        }
        eventually("both lines are there", || log.0.lock().unwrap().len() == 2);
        let entries = log.0.lock().unwrap();
        let mut lines: Vec<_> = entries.iter().map(|entry| entry.request_line.as_str()).collect();
        lines.sort_unstable();
        assert_eq!(lines, ["GET /inline/a HTTP/1.1", "GET /worker/b?c=d HTTP/1.1"]);
        assert!(entries.iter().all(|entry| {
            entry.status == 200
                && entry.bytes > 100
                && entry.user_agent.as_deref() == Some("me")
                && entry.referer.as_deref() == Some("http://r/")
        }));
    });
}

#[test]
fn a_body_source_may_be_answered_inline() {
    struct InlineFile(Arc<std::fs::File>);
    impl Handler for InlineFile {
        fn inline(&self, _: &HeadRef<'_>) -> Option<Response> {
            let range = narval_http::FileRange { file: self.0.clone(), offset: 0, length: 300_000 };
            Some(Response::new(StatusCode::OK).body(Body::file(range)))
        }
        fn handle(&self, _: Request) -> Response {
            Response::new(StatusCode::NOT_FOUND)
        }
    }
    on_each_driver(|driver| {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &vec![7; 300_000]).unwrap();
        let server = TestServer::start(driver, InlineFile(Arc::new(file)));
        let mut client = server.connect();
        for _ in 0..3 {
            assert_eq!(client.get("/").body, vec![7; 300_000]);
        }
    });
}

#[test]
fn the_counters_are_openmetrics() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, Echo);
        let mut client = server.connect();
        client.get("/inline");
        client.get("/worker");
        // A worker counts an answer when it has sent it: the client may be quicker to look.
        for line in [
            "narval_http_requests_total{where=\"inline\"} 1\n",
            "narval_http_responses_total{code=\"200\"} 2\n",
            "narval_http_connections_open 1\n",
        ] {
            eventually(line, || server.handle.counters().openmetrics().contains(line));
        }
    });
}
