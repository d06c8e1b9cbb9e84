//! Clients that send their bodies slowly, or not at all, while others want to be served. The deadlines are an hour away where nothing
//! else is said: it is not they that keep the server going.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use narval_http::{HeadRef, Limits, Request, Response, StatusCode};

use crate::harness::{Client, PATIENCE, TestServer, eventually, on_each_driver, unhurried};

/// Reads the body to its end, and tells its length.
fn measure(mut request: Request) -> Response {
    match io::copy(request.body(), &mut io::sink()) {
        Ok(length) => Response::text(StatusCode::OK, length.to_string()),
        Err(error) => Response::text(StatusCode::BAD_REQUEST, error.to_string()),
    }
}

/// Ways to begin a body and not to go on.
fn attacks(limits: &Limits) -> Vec<(&'static str, Vec<u8>)> {
    let with_length = b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 2000000\r\n\r\n";
    let chunked = b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
    let expects = b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 2000000\r\nExpect: 100-continue\r\n\r\n";
    let some = vec![b'x'; 70_000];
    let budget = vec![b'x'; limits.body_buffer_max + 1000];
    vec![
        ("nothing", with_length.to_vec()),
        ("some", [with_length.as_slice(), &some].concat()),
        ("no chunk", chunked.to_vec()),
        ("part of a chunk", [chunked.as_slice(), b"100000\r\n", &some].concat()),
        ("an expectation", expects.to_vec()),
        ("the budget", [with_length.as_slice(), &budget].concat()),
    ]
}

/// Begins as many bodies, and keeps the connections.
fn attack(server: &TestServer, count: usize, begin: &[u8]) -> Vec<TcpStream> {
    let attackers: Vec<_> = (0..count).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    for mut attacker in &attackers {
        // A server that takes no more of it is as good as one that has taken all.
        attacker.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
        drop(attacker.write_all(begin));
    }
    attackers
}

/// Others get what they ask for: by a worker, with small bodies, and with large ones up to the budget.
fn others_are_served(server: &TestServer, what: &str) {
    assert_eq!(server.get("/").text(), "0", "{what}");
    for length in [0, 10, 70_000, 900_000] {
        let mut client = server.connect();
        client.send(format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n"));
        client.send(vec![b'y'; length]);
        assert_eq!(client.answer().text(), length.to_string(), "{what}");
    }
}

#[test]
fn stalled_bodies_do_not_block_other_requests() {
    on_each_driver(|driver| {
        let limits = unhurried();
        for (what, begin) in attacks(&limits) {
            for count in [16, 64] {
                let server = TestServer::with(driver, measure, limits.clone(), |builder| builder);
                let attackers = attack(&server, count, &begin);
                others_are_served(&server, &format!("{count} sent {what}"));
                drop(attackers);
                others_are_served(&server, &format!("{count} left after {what}"));
            }
        }
    });
}

#[test]
fn a_thousand_stalled_bodies_use_bounded_memory_and_small_ones_overtake_them() {
    on_each_driver(|driver| {
        let limits = Limits { body_memory_max: 32 << 20, ..unhurried() };
        let server = TestServer::with(driver, measure, limits.clone(), |builder| builder);
        let begin = b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 2000000\r\n\r\n";
        let attackers = attack(&server, 1000, &[begin.as_slice(), &vec![b'x'; 100_000]].concat());
        eventually("all that is taken is counted", || server.handle.counters().body_memory_bytes > 8 << 20);
        for length in [0, 10, 10_000] {
            let mut client = server.connect();
            client.send(format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n"));
            client.send(vec![b'y'; length]);
            assert_eq!(client.answer().text(), length.to_string());
        }
        assert_eq!(server.get("/").text(), "0");
        // With io_uring, receives of 16 KiB have been submitted before memory is short.
        assert!(server.handle.counters().body_memory_bytes <= (32 << 20) + 1000 * 16 * 1024);
        drop(attackers);
        eventually("it is given back", || server.handle.counters().body_memory_bytes == 0);
    });
}

#[test]
fn an_upload_gets_a_thread_when_stalled_uploads_hold_all_of_them() {
    on_each_driver(|driver| {
        let limits = Limits { streamed_bodies_max: 2, body_busy_timeout: Duration::from_secs(1), ..unhurried() };
        let server = TestServer::with(driver, measure, limits.clone(), |builder| builder);
        for (what, begin) in attacks(&limits) {
            let attackers = attack(&server, 8, &begin);
            let mut client = server.connect();
            client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5000000\r\n\r\n");
            client.send(vec![b'y'; 5_000_000]);
            assert_eq!(client.answer().text(), "5000000", "behind {what}");
            drop(attackers);
        }
    });
}

#[test]
fn a_slow_upload_continues_while_no_other_waits() {
    on_each_driver(|driver| {
        let limits = Limits { streamed_bodies_max: 1, body_busy_timeout: Duration::from_millis(50), ..unhurried() };
        let server = TestServer::with(driver, measure, limits, |builder| builder);
        let mut client = server.connect();
        client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 2000000\r\n\r\n");
        client.send(vec![b'y'; 1_900_000]);
        std::thread::sleep(Duration::from_millis(500));
        client.send(vec![b'y'; 100_000]);
        assert_eq!(client.answer().text(), "2000000");
    });
}

#[test]
fn a_client_that_expects_100_continue_gets_it_when_no_thread_is_free() {
    on_each_driver(|driver| {
        let limits = Limits { streamed_bodies_max: 2, ..unhurried() };
        let server = TestServer::with(driver, measure, limits, |builder| builder);
        let expects = b"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 2000000\r\nExpect: 100-continue\r\n\r\n";
        let attackers = attack(&server, 4, expects);
        let mut client = server.connect();
        client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
        assert_eq!(client.head(), "HTTP/1.1 100 Continue\r\n\r\n");
        client.send("hello");
        assert_eq!(client.answer().text(), "5");
        drop(attackers);
    });
}

/// What the handler has read says how far the body had come when it was called.
#[test]
fn a_handler_runs_once_the_buffer_is_full() {
    on_each_driver(|driver| {
        let limits = unhurried();
        let budget = limits.body_buffer_max;
        let (called, calls) = std::sync::mpsc::channel();
        let handler = move |mut request: Request| {
            called.send(()).unwrap();
            let mut some = vec![0; budget];
            let have = request.body().read_exact(&mut some).is_ok();
            let rest = io::copy(request.body(), &mut io::sink()).unwrap();
            Response::text(StatusCode::OK, format!("{have} {rest}"))
        };
        let server = TestServer::with(driver, handler, limits, |builder| builder);
        let mut client = server.connect();
        client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3000000\r\n\r\n");
        client.send(vec![b'y'; budget]);
        calls.recv_timeout(Duration::from_millis(300)).expect_err("the budget is not exceeded yet");
        client.send(vec![b'y'; 10]);
        calls.recv_timeout(PATIENCE).expect("it is now");
        client.send(vec![b'y'; 3_000_000 - budget - 10]);
        assert_eq!(client.answer().text(), format!("true {}", 3_000_000 - budget));
    });
}

#[test]
fn bodies_wait_when_memory_is_in_use_and_are_refused_at_twice_that() {
    on_each_driver(|driver| {
        let limits = Limits { body_memory_max: 10_000, ..unhurried() };
        let gate = std::sync::Arc::new(std::sync::Mutex::new(()));
        let closed = gate.lock().unwrap();
        let handlers_gate = gate.clone();
        let handler = move |request: Request| {
            drop(handlers_gate.lock().unwrap());
            measure(request)
        };
        let server = TestServer::with(driver, handler, limits, |builder| builder.workers(1));
        let mut waiting = Vec::new();
        let post = |length: usize| {
            let mut client = server.connect();
            client.send(format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n"));
            client.send(vec![b'y'; length]);
            client
        };
        let mut refused = 0;
        for _ in 0..200 {
            let before = server.handle.counters();
            let mut client = post(1000);
            eventually("it waits, or is refused", || {
                let now = server.handle.counters();
                (now.overloaded, now.body_memory_bytes) != (before.overloaded, before.body_memory_bytes)
            });
            if server.handle.counters().overloaded == before.overloaded {
                waiting.push(client);
                continue;
            }
            let answer = client.answer();
            assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")));
            refused += 1;
            if refused == 3 {
                break;
            }
        }
        assert_eq!(refused, 3);
        assert!((20..25).contains(&waiting.len()), "{} wait", waiting.len());
        drop(closed);
        for mut client in waiting {
            assert_eq!(client.answer().text(), "1000");
        }
        assert_eq!(post(1000).answer().text(), "1000");
    });
}

/// Answers inline at `/inline`; every other request waits.
struct Stuck;

impl narval_http::Handler for Stuck {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        (head.path() == "/inline").then(|| Response::text(StatusCode::OK, "inline"))
    }

    fn handle(&self, request: Request) -> Response {
        measure(request)
    }
}

#[test]
fn transfers_below_the_minimum_rate_are_aborted() {
    on_each_driver(|driver| {
        let limits = Limits { body_stall_timeout: Duration::from_millis(400), ..unhurried() };
        let server = TestServer::with(driver, Stuck, limits.clone(), |builder| builder);
        for (what, begin) in attacks(&limits) {
            let mut attackers = attack(&server, 4, &begin);
            let started = Instant::now();
            for attacker in attackers.drain(..) {
                let mut client = Client::new(attacker);
                client.wait_for_end();
            }
            assert!(started.elapsed() < PATIENCE, "{what}");
            assert_eq!(server.get("/inline").text(), "inline");
        }
        eventually("nothing is left of them", || {
            let counters = server.handle.counters();
            counters.connections_open == 0 && counters.body_memory_bytes == 0
        });
    });
}
