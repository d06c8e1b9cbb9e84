use std::io::Read;
use std::time::{Duration, Instant};

use narval_http::{Body, BodySource, Fill, Limits, Request, Response, SegmentBuf, StatusCode};

use crate::harness::{TestServer, on_each_driver, unhurried};

fn soon(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn hello(_: Request) -> Response {
    Response::text(StatusCode::OK, "hello")
}

/// A deadline of 400 ms was kept, within the wheel's resolution. That no other one was is known because the others are an hour.
fn assert_not_before(started: Instant) {
    let waited = started.elapsed();
    assert!(waited >= soon(300), "closed after {waited:?}");
}

#[test]
fn a_head_has_an_absolute_deadline() {
    on_each_driver(|driver| {
        let limits = Limits { head_timeout: soon(400), ..unhurried() };
        let server = TestServer::with(driver, hello, limits, |builder| builder);
        let started = Instant::now();
        server.connect().wait_for_end();
        assert_not_before(started);
        // Single bytes do not postpone it.
        let mut client = server.connect();
        assert_eq!(client.get("/").status, 200);
        let started = Instant::now();
        let mut stream = client.stream.try_clone().unwrap();
        let trickle = std::thread::spawn(move || {
            for byte in "GET / HTTP/1.1\r\nHost: test\r\nX-Slow: ".bytes().cycle() {
                if std::io::Write::write_all(&mut stream, &[byte]).is_err() {
                    return;
                }
                std::thread::sleep(soon(20));
            }
        });
        client.wait_for_end();
        assert_not_before(started);
        trickle.join().unwrap();
        assert_eq!(server.handle.counters().timeouts, 1, "the silent one was not in a head");
    });
}

#[test]
fn idle_connections_are_closed_and_busy_ones_are_not() {
    on_each_driver(|driver| {
        // The pauses are much shorter than the timeout, and longer than it in all.
        let (idle, pause) = (soon(4000), soon(1100));
        let limits = Limits { keep_alive_timeout: idle, ..unhurried() };
        let server = TestServer::with(
            driver,
            move |request: Request| {
                if request.path() == "/slow" {
                    std::thread::sleep(idle + soon(500));
                }
                Response::text(StatusCode::OK, "hello")
            },
            limits,
            |builder| builder,
        );
        let mut slow = server.connect();
        assert_eq!(slow.get("/slow").text(), "hello", "a handler may take longer than a connection may idle");
        assert_eq!(slow.get("/").text(), "hello", "the idle time begins with the answer");
        for _ in 0..4 {
            std::thread::sleep(pause);
            assert_eq!(slow.get("/").text(), "hello");
        }
        let answered = Instant::now();
        slow.wait_for_end();
        assert!(answered.elapsed() >= idle / 2, "closed after {:?}", answered.elapsed());
        assert_eq!(server.handle.counters().timeouts, 0);
    });
}

#[test]
fn a_stalled_body_is_aborted() {
    on_each_driver(|driver| {
        // Once buffered, and once streamed to a handler, which gets an error.
        for (body_buffer_max, text) in [(1000, "the request body arrived too slowly\n"), (0, "timed out")] {
            let limits = Limits { body_stall_timeout: soon(400), body_buffer_max, ..unhurried() };
            let server = TestServer::with(
                driver,
                |mut request: Request| match std::io::copy(request.body(), &mut std::io::sink()) {
                    Ok(_) => Response::text(StatusCode::OK, "all"),
                    Err(error) => Response::text(StatusCode::REQUEST_TIMEOUT, error.kind().to_string()),
                },
                limits,
                |builder| builder,
            );
            let mut client = server.connect();
            let started = Instant::now();
            client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 1000\r\n\r\nabc");
            let answer = client.answer();
            assert_eq!((answer.status, answer.text().as_str()), (408, text));
            assert_not_before(started);
            assert!(client.rest().is_empty());
            assert_eq!(server.handle.counters().timeouts, 1);
        }
    });
}

struct Endless;

impl BodySource for Endless {
    fn fill(&mut self, out: &mut SegmentBuf) -> std::io::Result<Fill> {
        let room = out.room();
        out.memory().resize(room, 1);
        Ok(Fill::More)
    }
}

#[test]
fn a_client_that_reads_nothing_is_disconnected() {
    on_each_driver(|driver| {
        let limits = Limits { write_stall_timeout: soon(400), ..unhurried() };
        let server = TestServer::with(
            driver,
            |request: Request| {
                let body = match request.path() {
                    "/source" => Body::source(Endless, None),
                    _ => Body::bytes(vec![1; 50_000_000]),
                };
                Response::new(StatusCode::OK).body(body)
            },
            limits,
            |builder| builder,
        );
        for path in ["/source", "/bytes"] {
            let mut client = server.connect();
            let started = Instant::now();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n"));
            client.head();
            crate::harness::eventually("cut off", || server.handle.counters().connections_open == 0);
            assert_not_before(started);
            let error = client.stream.read_to_end(&mut Vec::new()).expect_err("a reset");
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    });
}

/// How slow a client may be is tested under simulated time (`sim`).
#[test]
fn a_client_that_pauses_and_continues_is_not_disconnected() {
    on_each_driver(|driver| {
        let limits = Limits { keep_alive_timeout: soon(100), ..unhurried() };
        let server = TestServer::with(
            driver,
            |_: Request| Response::new(StatusCode::OK).body(Body::bytes(vec![1; 60_000_000])),
            limits,
            |builder| builder,
        );
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        client.head();
        for _ in 0..2 {
            // Longer than a connection may idle.
            std::thread::sleep(soon(300));
            client.stream.read_exact(&mut vec![0; 20_000_000]).expect("still served");
        }
        assert_eq!(server.handle.counters().timeouts, 0);
    });
}
