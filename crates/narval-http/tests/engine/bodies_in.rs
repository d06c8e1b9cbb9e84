use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use narval_http::{Limits, Request, Response, StatusCode};

use crate::harness::{TestServer, on_each_driver, unhurried};

/// Reads the whole body, and answers its length and a sum over it.
fn sum(mut request: Request) -> Response {
    let mut body = Vec::new();
    match request.body().read_to_end(&mut body) {
        Ok(_) => Response::text(StatusCode::OK, describe(&body)),
        Err(error) => Response::text(StatusCode::BAD_REQUEST, error.kind().to_string()),
    }
}

fn describe(body: &[u8]) -> String {
    format!("{} {}", body.len(), body.iter().map(|byte| u64::from(*byte)).sum::<u64>())
}

fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in body.chunks(size) {
        out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        out.extend_from_slice(chunk);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

#[test]
fn trailers_follow_the_body() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, |mut request: Request| {
            io::copy(request.body(), &mut io::sink()).expect("readable");
            let trailers = request.body().trailers();
            format!("{:?} {:?}", trailers.get("digest"), request.header("digest"))
        });
        let mut client = server.connect();
        for length in [1, 300_000, 1_500_000] {
            let body = chunked(&vec![b'x'; length], 1000);
            client.send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
            client.send(&body[..body.len() - 2]);
            client.send("Digest: abc\r\n\r\n");
            assert_eq!(client.answer().text(), "Some(\"abc\") None");
        }
    });
}

#[test]
fn a_malformed_body_is_400_if_the_handler_returns_the_error() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, |mut request: Request| io::read_to_string(request.body()));
        for length in [1, 300_000, 1_500_000] {
            let mut client = server.connect();
            let mut body = chunked(&vec![b'x'; length], 1000);
            body.truncate(body.len() - 5);
            client.send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
            client.send(body);
            client.send("nonsense\r\n");
            assert_eq!(client.answer().status, 400);
        }
    });
}

#[test]
fn many_tiny_chunks_are_read_as_one_body() {
    on_each_driver(|driver| {
        for body_buffer_max in [1 << 20, 1000] {
            let server = TestServer::with(driver, sum, Limits { body_buffer_max, ..unhurried() }, |builder| builder);
            let mut client = server.connect();
            let body: Vec<u8> = (0..150_000).map(|at| at as u8).collect();
            client.send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
            client.send(chunked(&body, 1));
            assert_eq!(client.answer().text(), describe(&body));
        }
    });
}

#[test]
fn bodies_of_all_sizes_with_a_length_and_in_chunks() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, sum);
        let mut client = server.connect();
        for length in [0, 1, 1000, 64 * 1024, 64 * 1024 + 1, 200_000, 1 << 20, (1 << 20) + 1, 5_000_000] {
            let body: Vec<u8> = (0..length).map(|at| at as u8).collect();
            client.send(format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n"));
            client.send(&body);
            assert_eq!(client.answer().text(), describe(&body));
            client.send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
            client.send(chunked(&body, 50_000));
            assert_eq!(client.answer().text(), describe(&body));
        }
    });
}

/// The shard looks at each piece that it receives, of 64 KiB at most; a handler that receives does not bother it. A client that the
/// machine stops for longer than the handler waits has the shard look once more: five clients may try.
#[test]
fn a_fast_body_is_received_by_its_handler() {
    const LENGTH: usize = 64 << 20;
    on_each_driver(|driver| {
        let server = TestServer::with(
            driver,
            |mut request: Request| io::copy(request.body(), &mut io::sink()).map(|length| length.to_string()),
            Limits { body_max: 1 << 30, ..unhurried() },
            |builder| builder,
        );
        let body = vec![b'x'; LENGTH];
        let looks = || server.handle.counters().completions;
        let is_seldom_looked_at = (0..5).any(|_| {
            let (before, received) = (looks(), server.handle.counters().bytes_received);
            let mut client = server.connect();
            client.send(format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {LENGTH}\r\n\r\n"));
            client.send(&body);
            assert_eq!(client.answer().text(), LENGTH.to_string());
            // The connection stays open.
            client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\nabc");
            assert_eq!(client.answer().text(), "3");
            assert!(
                server.handle.counters().bytes_received - received > LENGTH as u64,
                "they are counted all the same"
            );
            looks() - before < (LENGTH / (64 << 10) / 4) as u64
        });
        assert!(is_seldom_looked_at);
    });
}

#[test]
fn pipelined_requests_with_bodies() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, sum);
        let mut client = server.connect();
        let mut all = Vec::new();
        for at in 0..50 {
            let body = vec![b'x'; at * 10];
            if at % 2 == 0 {
                all.extend_from_slice(
                    format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes(),
                );
                all.extend_from_slice(&body);
            } else {
                all.extend_from_slice(b"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
                all.extend_from_slice(&chunked(&body, 7));
            }
        }
        client.send(all);
        for at in 0..50 {
            assert_eq!(client.answer().text(), describe(&vec![b'x'; at * 10]));
        }
    });
}

#[test]
fn continue_is_sent_when_the_handler_reads() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, |request: Request| match request.path() {
            "/refuse" => Response::text(StatusCode::FORBIDDEN, "no"),
            _ => sum(request),
        });
        let mut client = server.connect();
        client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
        assert_eq!(client.head(), "HTTP/1.1 100 Continue\r\n\r\n");
        client.send("hello");
        assert_eq!(client.answer().text(), describe(b"hello"));
        client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\nhello");
        assert_eq!(client.answer().text(), describe(b"hello"), "a body that came anyway");
        client.send("POST /refuse HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
        let answer = client.answer();
        assert_eq!((answer.status, answer.header("connection")), (403, Some("close")));
        assert!(client.rest().is_empty());
    });
}

#[test]
fn a_large_body_waits_for_the_handler() {
    on_each_driver(|driver| {
        let go = Arc::new(AtomicBool::new(false));
        let may_read = go.clone();
        let handler = move |mut request: Request| {
            while !may_read.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let n = io::copy(request.body(), &mut io::sink()).unwrap();
            Response::text(StatusCode::OK, n.to_string())
        };
        let limits = Limits { body_max: 1 << 30, ..unhurried() };
        let server = TestServer::with(driver, handler, limits, |builder| builder);
        let mut client = server.connect();
        let total = 40_000_000;
        client.send(format!("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: {total}\r\n\r\n"));
        let sent = Arc::new(AtomicUsize::new(0));
        let (progress, mut stream) = (sent.clone(), client.stream.try_clone().unwrap());
        let sender = std::thread::spawn(move || {
            for _ in 0..total / 100_000 {
                io::Write::write_all(&mut stream, &[9; 100_000]).unwrap();
                progress.fetch_add(100_000, Ordering::Relaxed);
            }
        });
        std::thread::sleep(Duration::from_millis(300));
        let waiting = sent.load(Ordering::Relaxed);
        assert!(waiting < total / 2, "the server took {waiting} bytes that nobody reads");
        go.store(true, Ordering::Relaxed);
        assert_eq!(client.answer().text(), total.to_string());
        sender.join().unwrap();
    });
}

#[test]
fn an_answer_before_the_body_is_read_closes_without_a_reset() {
    on_each_driver(|driver| {
        let limits = Limits { body_buffer_max: 16 * 1024, ..unhurried() };
        let who = |_: Request| Response::text(StatusCode::UNAUTHORIZED, "who are you?");
        let server = TestServer::with(driver, who, limits, |builder| builder);
        let mut client = server.connect();
        client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 400000\r\n\r\n");
        client.send(vec![1; 50_000]);
        let answer = client.answer();
        assert_eq!((answer.status, answer.text().as_str()), (401, "who are you?"));
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(client.rest().is_empty(), "a clean end");
    });
}

#[test]
fn malformed_bodies() {
    on_each_driver(|driver| {
        let limits = Limits { body_max: 1_000_000, ..unhurried() };
        let server = TestServer::with(driver, sum, limits, |builder| builder);
        for (request, status) in [
            ("Content-Length: 1000001\r\n\r\n", 413),
            ("Transfer-Encoding: chunked\r\n\r\nx\r\n", 400),
            ("Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n", 400),
        ] {
            let mut client = server.connect();
            client.send(format!("POST / HTTP/1.1\r\nHost: t\r\n{request}"));
            let answer = client.answer();
            assert_eq!((answer.status, answer.header("connection")), (status, Some("close")), "{request:?}");
            assert!(client.rest().is_empty());
        }
        // Too large as chunks arrive: the handler that reads it gets an error.
        for (body_buffer_max, status) in [(2_000_000, 413), (100_000, 400)] {
            let limits = Limits { body_max: 1_000_000, body_buffer_max, ..unhurried() };
            let server = TestServer::with(driver, sum, limits, |builder| builder);
            let mut client = server.connect();
            client.send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
            client.send(chunked(&vec![0; 1_000_100], 100_000));
            assert_eq!(client.answer().status, status);
        }
    });
}

#[test]
fn the_answer_to_a_malformed_body_is_not_lost_while_the_client_sends() {
    on_each_driver(|driver| {
        let limits = Limits { body_max: 200_000, body_buffer_max: 64 * 1024, ..unhurried() };
        let server = TestServer::with(
            driver,
            |mut request: Request| match io::copy(request.body(), &mut io::sink()) {
                Ok(_) => Response::new(StatusCode::OK),
                Err(_) => Response::text(StatusCode::PAYLOAD_TOO_LARGE, "too much"),
            },
            limits,
            |builder| builder,
        );
        for bad in [chunked(&[0; 30_000], 30_000), b"nonsense\r\n".to_vec()] {
            let mut client = server.connect();
            client.send("POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n");
            let mut chunks = chunked(&[0; 180_000], 10_000);
            chunks.truncate(chunks.len() - 5);
            client.send([chunks, bad].concat());
            // The handler has answered.
            assert_eq!(client.head().split(' ').nth(1), Some("413"));
            for _ in 0..20 {
                client.send([0; 1000]);
                std::thread::sleep(Duration::from_millis(2));
            }
            assert_eq!(client.rest(), b"too much", "a clean end");
        }
    });
}

#[test]
fn a_handler_gets_an_error_if_its_client_disconnects() {
    on_each_driver(|driver| {
        let (errors, count) = (Arc::new(AtomicUsize::new(0)), 4);
        let seen = errors.clone();
        let handler = move |request: Request| {
            let answer = sum(request);
            if answer.status() == StatusCode::BAD_REQUEST {
                seen.fetch_add(1, Ordering::Relaxed);
            }
            answer
        };
        let limits = Limits { body_buffer_max: 64 * 1024, ..unhurried() };
        let server = TestServer::with(driver, handler, limits, |builder| builder);
        for _ in 0..count {
            let mut client = server.connect();
            client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 400000\r\n\r\n");
            client.send(vec![1; 100_000]);
        }
        crate::harness::eventually("all handlers saw the end", || errors.load(Ordering::Relaxed) == count);
    });
}

/// By default, a handler that reads a whole body cannot be made to read gigabytes.
#[test]
fn bodies_read_whole_have_a_limit() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, |mut request: Request| -> io::Result<String> {
            Ok(match request.path() {
                "/bytes" => request.body().bytes(2_000_000)?.len().to_string(),
                "/text" => request.body().text(10)?,
                "/json" => {
                    request.body().json_of_any_type::<std::collections::BTreeMap<String, u32>>(20)?.len().to_string()
                }
                _ => io::copy(request.body(), &mut io::sink())?.to_string(),
            })
        });
        let invalid = [b'"', 0xff, b'"'];
        for (path, body, answer) in [
            ("/bytes", &vec![1; 2_000_000][..], Ok("2000000")),
            ("/bytes", &vec![1; 2_000_001], Err(413)),
            ("/bytes", &vec![1; 1000], Ok("1000")),
            ("/text", "grün".as_bytes(), Ok("grün")),
            ("/text", b"12345678901", Err(413)),
            ("/text", &invalid, Err(400)),
            ("/json", b"{\"a\": 1}", Ok("1")),
            ("/json", b"{\"a\": \"b\"}", Err(400)),
            ("/json", b"{\"a\": 1}              ", Err(413)),
            ("/json", b"", Err(400)),
        ] {
            let mut client = server.connect();
            client.send(format!("POST {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n", body.len()));
            client.send(body);
            let got = client.answer();
            match answer {
                Ok(text) => assert_eq!((got.status, got.text().as_str()), (200, text), "{path}"),
                Err(status) => assert_eq!(got.status, status, "{path}"),
            }
        }
        let mut client = server.connect();
        client.send("POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 17000000\r\n\r\n");
        assert_eq!(client.answer().status, 413, "by default");
    });
}

#[test]
fn an_answer_that_needs_no_body_does_not_wait_for_one() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, |mut request: Request| match request.path() {
            "/refuse" => Response::text(StatusCode::METHOD_NOT_ALLOWED, "no"),
            _ => Response::text(StatusCode::OK, request.body().text(100).unwrap()),
        });
        for framing in ["Content-Length: 500", "Transfer-Encoding: chunked"] {
            let mut client = server.connect();
            client.send(format!("PATCH /refuse HTTP/1.1\r\nHost: t\r\n{framing}\r\n\r\n"));
            assert_eq!(client.answer().status, 405, "{framing}");
        }
        // The body is late, and the connection goes on behind it, whether the handler has read it or not.
        for (path, status) in [("/", 200), ("/refuse", 405)] {
            let mut client = server.connect();
            client.send(format!("PUT {path} HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\n\r\n"));
            std::thread::sleep(Duration::from_millis(300));
            client.send("later");
            let answer = client.answer();
            assert_eq!(answer.status, status);
            if answer.header("connection") != Some("close") {
                assert_eq!(client.get("/").status, 200);
            }
        }
    });
}
