//! Bodies that are written while they are sent, event streams, trailers, and informational responses.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use narval_http::ws::SendStatus;
use narval_http::{
    Body, BodySource, BodyWaker, BodyWriter, Compression, Event, EventOptions, EventStream, Fill, Handler, HeaderName,
    HeaderValue, Request, Response, SegmentBuf, StatusCode, header, wrap,
};

use crate::harness::{Client, PATIENCE, TestServer, eventually, on_each_driver, unhurried};

fn ok(body: Body) -> Response {
    Response::new(StatusCode::OK).body(body)
}

fn fields(name: &'static str, value: &'static str) -> Vec<(HeaderName, HeaderValue)> {
    vec![(HeaderName::from_static(name), HeaderValue::from_static(value))]
}

#[test]
fn a_body_written_by_another_thread() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, |request: Request| {
            let length = 3_000_000;
            let (body, mut writer) = Body::writer((request.path() == "/length").then_some(length as u64));
            std::thread::spawn(move || {
                for line in 0..length / 10 {
                    writeln!(writer, "{line:9}").unwrap();
                }
                writer.finish().unwrap();
            });
            ok(body)
        });
        let expected: String = (0..300_000).map(|line| format!("{line:9}\n")).collect();
        let mut client = server.connect();
        for path in ["/length", "/chunked", "/chunked"] {
            let answer = client.get(path);
            assert!(answer.text() == expected, "{path}");
            assert_eq!(answer.header("content-length").is_some(), path == "/length");
        }
        let mut client = server.connect();
        client.send("GET / HTTP/1.0\r\n\r\n");
        assert!(client.answer().text() == expected, "ended by the end of the connection");
        assert_eq!(server.handle.counters().aborts, 0);
    });
}

#[test]
fn flushed_bytes_arrive_while_the_writer_is_idle_and_no_worker_waits() {
    on_each_driver(|driver| {
        let (give, take) = channel::<BodyWriter>();
        let give = Mutex::new(give);
        let server = TestServer::with(
            driver,
            move |request: Request| match request.path() {
                "/quick" => Response::text(StatusCode::OK, "quick"),
                _ => {
                    let (body, writer) = Body::writer(None);
                    give.lock().unwrap().send(writer).unwrap();
                    ok(body)
                }
            },
            unhurried(),
            |builder| builder.workers(1),
        );
        let mut clients: Vec<Client> = (0..5)
            .map(|_| {
                let mut client = server.connect();
                client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
                assert!(client.until("\r\n\r\n").starts_with("HTTP/1.1 200 OK\r\n"));
                client
            })
            .collect();
        let mut writers: Vec<BodyWriter> = take.iter().take(5).collect();
        for round in 0..3 {
            assert_eq!(server.get("/quick").text(), "quick", "the one worker is free");
            for (client, writer) in clients.iter_mut().zip(&mut writers) {
                write!(writer, "round {round}").unwrap();
                writer.flush().unwrap();
                assert_eq!(client.until(&format!("{round}\r\n")), format!("7\r\nround {round}\r\n"));
            }
        }
        writers.drain(1..).for_each(|writer| writer.finish().unwrap());
        for client in &mut clients[1..] {
            assert_eq!(client.until("0\r\n\r\n"), "0\r\n\r\n");
            client.send("GET /quick HTTP/1.1\r\nHost: t\r\n\r\n");
            assert_eq!(client.answer().text(), "quick", "and the connection goes on");
        }
        // The last one gets a request for which its answer must be over first.
        clients[0].send("GET /quick HTTP/1.1\r\nHost: t\r\n\r\n");
        writers.pop().unwrap().finish().unwrap();
        assert_eq!(clients[0].until("0\r\n\r\n"), "0\r\n\r\n");
        assert_eq!(clients[0].answer().text(), "quick");
    });
}

#[test]
fn a_writer_blocks_on_a_slow_client_and_fails_when_it_disconnects() {
    on_each_driver(|driver| {
        let (tell, told) = channel();
        let tell = Mutex::new(tell);
        let server = TestServer::start(driver, move |_: Request| {
            let (body, mut writer) = Body::writer(None);
            let tell: Sender<_> = tell.lock().unwrap().clone();
            std::thread::spawn(move || {
                let mut written = 0_usize;
                let error = loop {
                    match writer.write_all(&[b'x'; 100_000]) {
                        Ok(()) => written += 100_000,
                        Err(error) => break error.kind(),
                    }
                    assert!(written < 1 << 30, "nobody takes that much");
                };
                tell.send((error, writer.is_open())).unwrap();
            });
            ok(body)
        });
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        client.head();
        drop(client);
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), (ErrorKind::BrokenPipe, false));
        eventually("the connection is gone", || server.handle.counters().connections_open == 0);
    });
}

#[test]
fn a_writer_that_is_dropped_or_has_the_wrong_length_aborts() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, |request: Request| {
            let (body, mut writer) = Body::writer((request.path() != "/dropped").then_some(5));
            let path = request.path().to_owned();
            std::thread::spawn(move || match path.as_str() {
                "/dropped" => write!(writer, "hello").and_then(|()| writer.flush()),
                "/short" => write!(writer, "hell").and_then(|()| writer.finish()),
                _ => write!(writer, "hello!").and_then(|()| writer.finish()),
            });
            ok(body)
        });
        for path in ["/dropped", "/short", "/long"] {
            let mut client = server.connect();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n"));
            let ended = client.stream.read_to_end(&mut Vec::new());
            assert_eq!(ended.expect_err(path).kind(), ErrorKind::ConnectionReset, "{path}");
        }
        eventually("all are counted", || server.handle.counters().aborts == 3);
    });
}

#[test]
fn trailers_of_writers_and_sources() {
    struct Sums(bool);
    impl BodySource for Sums {
        fn fill(&mut self, out: &mut SegmentBuf) -> std::io::Result<Fill> {
            out.memory().extend_from_slice(b"body");
            Ok(Fill::Done)
        }
        fn trailers(&mut self) -> Vec<(HeaderName, HeaderValue)> {
            assert!(!std::mem::replace(&mut self.0, true), "asked once");
            [fields("x-sum", "a5"), fields("content-length", "4")].concat()
        }
    }
    on_each_driver(|driver| {
        let app = |request: Request| match request.path() {
            "/source" => ok(Body::source(Sums(false), None)),
            "/length" => ok(Body::source(Sums(false), Some(4))),
            _ => {
                let (body, mut writer) = Body::writer(None);
                writer.write_all(b"body").unwrap();
                writer.finish_with(fields("x-sum", "a5")).unwrap();
                ok(body).header(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"))
            }
        };
        let server = TestServer::start(driver, wrap(Compression::default(), app));
        let mut client = server.connect();
        for path in ["/source", "/writer"] {
            client.send(format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n"));
            client.head();
            // Framing fields are not allowed as trailers.
            assert_eq!(client.until("\r\n\r\n"), "4\r\nbody\r\n0\r\nx-sum: a5\r\n\r\n", "{path}");
        }
        assert_eq!(client.get("/length").body, b"body", "no chunks, no trailers");
    });
}

/// Streams whose heartbeat is longer than the test.
fn quiet() -> EventOptions {
    EventOptions::default().heartbeat(Duration::from_secs(3600))
}

/// A server whose handler hands its event streams out.
fn event_server(
    driver: narval_http::DriverChoice,
    options: EventOptions,
) -> (TestServer, std::sync::mpsc::Receiver<EventStream>) {
    let (give, take) = channel();
    let give = Mutex::new(give);
    let handler = move |_: Request| {
        let (response, events) = Response::events(options.clone());
        give.lock().unwrap().send(events).unwrap();
        response
    };
    (TestServer::start(driver, wrap(Compression::default(), handler)), take)
}

#[test]
fn events_reach_every_stream_and_end_with_the_last_handle() {
    on_each_driver(|driver| {
        let (server, streams) = event_server(driver, quiet());
        let mut clients: Vec<Client> = (0..10)
            .map(|_| {
                let mut client = server.connect();
                client.send("GET / HTTP/1.1\r\nHost: t\r\nAccept-Encoding: gzip\r\n\r\n");
                let head = client.until("\r\n\r\n");
                assert!(head.contains("content-type: text/event-stream\r\n") && !head.contains("gzip"), "{head}");
                client
            })
            .collect();
        let streams: Vec<EventStream> = streams.iter().take(10).collect();
        let event = Event::new("hello\nworld").name("greeting").id("1");
        assert!(streams.iter().all(|stream| stream.send(&event) == SendStatus::Queued));
        for client in &mut clients {
            let sent = "id: 1\nevent: greeting\ndata: hello\ndata: world\n\n";
            assert_eq!(client.until("world\n\n\r\n"), format!("{:x}\r\n{sent}\r\n", sent.len()));
        }
        streams[0].close();
        assert_eq!(streams[0].send(&event), SendStatus::Closed);
        drop(streams);
        for client in &mut clients {
            assert_eq!(client.until("0\r\n\r\n"), "0\r\n\r\n");
        }
    });
}

#[test]
fn idle_streams_send_heartbeats_and_notice_disconnects_at_once() {
    on_each_driver(|driver| {
        let (server, streams) = event_server(driver, EventOptions::default().heartbeat(Duration::from_millis(20)));
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        for _ in 0..3 {
            assert!(client.until("3\r\n:\n\n\r\n").ends_with("3\r\n:\n\n\r\n"));
        }
        let stream = streams.recv().unwrap();
        assert!(stream.is_open());
        drop(client);
        eventually("the stream is closed", || !stream.is_open());
        eventually("the connection, too", || server.handle.counters().connections_open == 0);

        // Also with a heartbeat that is longer than the test.
        let (server, streams) = event_server(driver, quiet());
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        client.head();
        let stream = streams.recv().unwrap();
        drop(client);
        eventually("the stream is closed", || !stream.is_open());
    });
}

#[test]
fn a_stream_nobody_reads_fills_up_and_drops() {
    on_each_driver(|driver| {
        let (server, streams) = event_server(driver, quiet().queue_bytes(20_000, 100_000));
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        client.head();
        let stream = streams.recv().unwrap();
        let event = Event::new("x".repeat(10_000));
        let (mut pressed, mut sent) = (false, 0);
        loop {
            match stream.send(&event) {
                SendStatus::Queued => sent += 1,
                SendStatus::Backpressure => (pressed, sent) = (true, sent + 1),
                SendStatus::Dropped => break,
                SendStatus::Closed => panic!("the client is there"),
            }
            assert!(sent < 100_000, "a gigabyte does not fit into any socket buffer");
        }
        assert!(pressed && stream.queued_bytes() <= 100_000);
        // It reads after all, and has everything that was not dropped.
        stream.close();
        let body = client.until("0\r\n\r\n");
        assert!(body.bytes().filter(|&byte| byte == b'x').count() >= sent * 10_000);
    });
}

#[test]
fn a_server_that_stops_ends_its_event_streams() {
    on_each_driver(|driver| {
        let (server, streams) = event_server(driver, quiet());
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        client.head();
        let stream = streams.recv().unwrap();
        eventually("nothing runs", || server.handle.counters().queue_depth == 0);
        assert!(server.handle.shutdown(PATIENCE), "and does not wait for them");
        assert_eq!(client.rest(), b"0\r\n\r\n");
        assert!(!stream.is_open());
    });
}

#[test]
fn informational_responses_precede_the_answer() {
    on_each_driver(|driver| {
        let (give, kept) = channel::<Request>();
        let give = Mutex::new(give);
        let server = TestServer::start(driver, move |request: Request| {
            let hint = fields("link", "</style.css>; rel=preload; as=style");
            let refused = request.informational(StatusCode::OK, &[]).map_err(|error| error.kind());
            assert_eq!(refused, Err(ErrorKind::InvalidInput));
            assert!(request.informational(StatusCode::EARLY_HINTS, &fields("content-length", "1")).is_err());
            let sent = request.informational(StatusCode::EARLY_HINTS, &hint).unwrap();
            let give = give.lock().unwrap().clone();
            // Any thread may, until the answer begins.
            let elsewhere = std::thread::spawn(move || {
                let again = request.informational(StatusCode::PROCESSING, &[]).unwrap();
                give.send(request).unwrap();
                again
            });
            Response::text(StatusCode::OK, format!("{sent} {}", elsewhere.join().unwrap()))
        });
        let mut client = server.connect();
        for _ in 0..3 {
            client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
            assert_eq!(client.head(), "HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload; as=style\r\n\r\n");
            assert_eq!(client.head(), "HTTP/1.1 102 Processing\r\n\r\n");
            assert_eq!(client.answer().text(), "true true");
            // A request that is kept sends nothing into the next one's answer.
            let kept = kept.recv_timeout(PATIENCE).unwrap();
            assert!(!kept.informational(StatusCode::PROCESSING, &[]).unwrap());
        }
        let mut client = server.connect();
        client.send("GET / HTTP/1.0\r\n\r\n");
        assert_eq!(client.answer().text(), "false false", "not for HTTP/1.0");
    });
}

#[test]
fn informational_responses_before_a_late_answer() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, |_: Request| {
            let (response, responder) = Response::later();
            std::thread::spawn(move || {
                // Until the handler has returned, nobody but it may write.
                while !responder.informational(StatusCode::PROCESSING, &[]).unwrap() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                responder.respond(Response::text(StatusCode::OK, "late"));
            });
            response
        });
        let mut client = server.connect();
        for _ in 0..3 {
            client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
            assert_eq!(client.head(), "HTTP/1.1 102 Processing\r\n\r\n");
            assert_eq!(client.answer().text(), "late");
        }
    });
}

/// A socket that is nearly full takes a part of one. An answer after that part would be read as its fields.
#[test]
fn nothing_follows_a_part_of_an_informational_response() {
    on_each_driver(|driver| {
        let (tell, told) = channel();
        let tell = Mutex::new(tell);
        let server = TestServer::start(driver, move |request: Request| {
            let hint = vec![(header::LINK, HeaderValue::try_from("x".repeat(7001)).unwrap())];
            let failed = (0..10_000).any(|_| request.informational(StatusCode::EARLY_HINTS, &hint).is_err());
            tell.lock().unwrap().send(failed).unwrap();
            // Until the client has made room.
            std::thread::sleep(Duration::from_millis(300));
            Response::text(StatusCode::OK, "an answer")
        });
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        assert!(told.recv_timeout(PATIENCE).unwrap(), "the socket took no part of one");
        let mut got = Vec::new();
        let mut buffer = vec![0; 1 << 16];
        // The connection is reset.
        while let Ok(n @ 1..) = client.stream.read(&mut buffer) {
            got.extend_from_slice(&buffer[..n]);
        }
        assert!(!got.is_empty());
        let text = String::from_utf8(got).unwrap();
        assert!(!text.contains("HTTP/1.1 200"), "{}", &text[text.len() - 200..]);
    });
}

/// A handler that panics while it holds the lease returns the lease.
#[test]
fn a_panic_after_an_informational_response_is_a_500() {
    struct Panics;
    impl Handler for Panics {
        fn handle(&self, request: Request) -> Response {
            request.informational(StatusCode::EARLY_HINTS, &[]).unwrap();
            panic!("a bug in a handler")
        }
    }
    on_each_driver(|driver| {
        let server = TestServer::start(driver, Panics);
        let mut client = server.connect();
        for _ in 0..2 {
            client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
            assert_eq!(client.head(), "HTTP/1.1 103 Early Hints\r\n\r\n");
            assert_eq!(client.answer().status, 500);
        }
    });
}

/// An endless body that keeps its wakers.
struct Endless(Sender<BodyWaker>);

impl BodySource for Endless {
    fn fill(&mut self, _: &mut SegmentBuf) -> std::io::Result<Fill> {
        Ok(Fill::Wait)
    }

    fn wait(&mut self, waker: BodyWaker) -> Duration {
        self.0.send(waker).unwrap();
        PATIENCE
    }

    fn hang_up(&mut self) -> bool {
        true
    }
}

#[test]
fn a_kept_waker_keeps_no_connection_open_and_the_end_of_an_endless_body_is_no_abort() {
    on_each_driver(|driver| {
        let (give, take) = channel();
        let give = Mutex::new(give);
        let server =
            TestServer::start(driver, move |_: Request| ok(Body::source(Endless(give.lock().unwrap().clone()), None)));
        let mut client = server.connect();
        client.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
        let waker = take.recv_timeout(PATIENCE).unwrap();
        client.stream.shutdown(Shutdown::Write).unwrap();
        // Only closing the last descriptor of the connection ends it: nothing else is sent.
        client.rest();
        waker.wake();
        assert_eq!(server.handle.counters().aborts, 0);
    });
}
