use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use narval_http::{Body, BodySource, FileRange, Fill, Handler, HeadRef, Request, Response, SegmentBuf, StatusCode};

use crate::harness::{TestServer, eventually, on_each_driver, unhurried};

fn ok(body: Body) -> Response {
    Response::new(StatusCode::OK).body(body)
}

/// Bytes that tell where they are.
fn pattern(offset: usize, length: usize) -> Vec<u8> {
    (offset..offset + length).map(|at| (at / 251 + at) as u8).collect()
}

fn file_of(length: usize) -> Arc<File> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&pattern(0, length)).unwrap();
    Arc::new(file)
}

/// Makes `pattern(0, length)` in pieces, some of them ranges of a file.
struct Pattern {
    at: usize,
    length: usize,
    piece: usize,
    file: Option<Arc<File>>,
}

impl BodySource for Pattern {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let piece = self.piece.min(self.length - self.at).min(out.room());
        match &self.file {
            Some(file) if (self.at / self.piece) % 2 == 1 => {
                // Memory, a file, and memory again in one piece.
                let third = piece / 3;
                out.memory().extend(pattern(self.at, third));
                let range = FileRange { file: file.clone(), offset: (self.at + third) as u64, length: third as u64 };
                out.push_file(range);
                out.memory().extend(pattern(self.at + 2 * third, piece - 2 * third));
            }
            _ => out.memory().extend(pattern(self.at, piece)),
        }
        self.at += piece;
        Ok(if self.at == self.length { Fill::Done } else { Fill::More })
    }
}

#[test]
fn bytes_of_all_sizes() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, |request: Request| {
            let length: usize = request.path()[1..].parse().unwrap();
            ok(Body::bytes(pattern(0, length)))
        });
        let mut client = server.connect();
        for length in [0, 1, 600, 16 * 1024, 16 * 1024 + 1, 100_000, 10_000_000, 3] {
            assert_eq!(client.get(&format!("/{length}")).body, pattern(0, length), "{length} bytes");
        }
    });
}

#[test]
fn files_and_their_ranges() {
    on_each_driver(|driver| {
        let file = file_of(3_000_000);
        let shared = file.clone();
        let server = TestServer::start(driver, move |request: Request| {
            let (offset, length) = request.path()[1..].split_once('-').unwrap();
            let (offset, length) = (offset.parse().unwrap(), length.parse().unwrap());
            ok(Body::file(FileRange { file: shared.clone(), offset, length }))
        });
        let mut client = server.connect();
        for (offset, length) in
            [(0, 3_000_000), (5, 10), (100, 128 * 1024), (1, 128 * 1024 - 1), (2_999_999, 1), (7, 0)]
        {
            let answer = client.get(&format!("/{offset}-{length}"));
            assert_eq!(answer.header("content-length"), Some(length.to_string().as_str()));
            assert!(answer.body == pattern(offset, length), "{length} bytes from {offset}");
        }
    });
}

#[test]
fn a_file_shorter_than_announced_never_ends_cleanly() {
    on_each_driver(|driver| {
        let (small, large) = (file_of(1000), file_of(300_000));
        let server = TestServer::start(driver, move |request: Request| {
            let (file, length) = if request.path() == "/small" { (&small, 1001) } else { (&large, 300_001) };
            ok(Body::file(FileRange { file: file.clone(), offset: 0, length }))
        });
        for path in ["/small", "/large"] {
            let mut client = server.connect();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n"));
            let mut all = Vec::new();
            let error = client.stream.read_to_end(&mut all).expect_err("a reset, not a clean end");
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{path}");
        }
        assert_eq!(server.handle.counters().aborts, 2);
    });
}

#[test]
fn sources_with_and_without_a_length() {
    on_each_driver(|driver| {
        let length = 2_000_000;
        let file = file_of(length);
        let server = TestServer::start(driver, move |request: Request| {
            let file = request.path().contains("file").then(|| file.clone());
            let promised = request.path().contains("length").then_some(length as u64);
            ok(Body::source(Pattern { at: 0, length, piece: 100_000, file }, promised))
        });
        let mut client = server.connect();
        for path in ["/length", "/chunked", "/file-length", "/file-chunked"] {
            let answer = client.get(path);
            assert!(answer.body == pattern(0, length), "{path}");
            assert_eq!(answer.header("content-length").is_some(), path.contains("length"));
        }
        let mut client = server.connect();
        client.send("GET /until-close HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        let answer = client.answer();
        assert_eq!(answer.header("connection"), Some("close"));
        assert!(answer.body == pattern(0, length));
    });
}

#[test]
fn empty_pieces_and_empty_sources() {
    struct Empty(u8);
    impl BodySource for Empty {
        fn fill(&mut self, _: &mut SegmentBuf) -> io::Result<Fill> {
            self.0 -= 1;
            Ok(if self.0 == 0 { Fill::Done } else { Fill::More })
        }
    }
    on_each_driver(|driver| {
        let server = TestServer::start(driver, |request: Request| {
            ok(Body::source(Empty(3), (request.path() == "/length").then_some(0)))
        });
        let mut client = server.connect();
        for path in ["/length", "/chunked", "/length"] {
            assert!(client.get(path).body.is_empty());
        }
    });
}

#[test]
fn a_source_that_fails_or_has_the_wrong_length_aborts() {
    struct Makes(usize, bool);
    impl BodySource for Makes {
        fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
            if self.1 {
                return Err(io::Error::other("the disk is gone"));
            }
            out.memory().extend(vec![1; self.0]);
            self.1 = self.0 == 7;
            Ok(if self.1 { Fill::More } else { Fill::Done })
        }
    }
    struct Panics;
    impl BodySource for Panics {
        fn fill(&mut self, _: &mut SegmentBuf) -> io::Result<Fill> {
            panic!("a bug in a source")
        }
    }
    on_each_driver(|driver| {
        let server = TestServer::start(driver, |request: Request| match request.path() {
            "/short" => ok(Body::source(Makes(999, false), Some(1000))),
            "/long" => ok(Body::source(Makes(1001, false), Some(1000))),
            "/fails-chunked" => ok(Body::source(Makes(7, false), None)),
            "/fine" => ok(Body::source(Makes(10, false), Some(10))),
            "/panics" => ok(Body::source(Panics, None)),
            _ => ok(Body::source(Makes(7, false), Some(1000))),
        });
        for path in ["/short", "/long", "/fails", "/fails-chunked", "/panics"] {
            let mut client = server.connect();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n"));
            let mut all = Vec::new();
            let ended = client.stream.read_to_end(&mut all);
            assert_eq!(ended.expect_err(path).kind(), io::ErrorKind::ConnectionReset, "{path}");
        }
        assert_eq!(server.get("/fine").body, [1; 10], "the workers live on");
    });
}

#[test]
fn a_slow_client_holds_no_worker_and_little_memory() {
    on_each_driver(|driver| {
        let filled = Arc::new(AtomicUsize::new(0));
        let count = filled.clone();
        struct Counted(Pattern, Arc<AtomicUsize>);
        impl BodySource for Counted {
            fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
                let fill = self.0.fill(out);
                self.1.fetch_add(out.memory().len(), Ordering::Relaxed);
                fill
            }
        }
        let length = 200_000_000;
        let file = file_of(60_000_000);
        let server = TestServer::with(
            driver,
            move |request: Request| match request.path() {
                "/quick" => Response::text(StatusCode::OK, "quick"),
                "/file" => ok(Body::file(FileRange { file: file.clone(), offset: 0, length: 60_000_000 })),
                _ => {
                    let pattern = Pattern { at: 0, length, piece: 256 * 1024, file: None };
                    ok(Body::source(Counted(pattern, count.clone()), Some(length as u64)))
                }
            },
            unhurried(),
            |builder| builder.workers(1),
        );
        let mut slow: Vec<_> = (0..8)
            .map(|at| {
                let mut client = server.connect();
                client.send(if at % 2 == 0 {
                    "GET /source HTTP/1.1\r\nHost: t\r\n\r\n"
                } else {
                    "GET /file HTTP/1.1\r\nHost: t\r\n\r\n"
                });
                client.head();
                client
            })
            .collect();
        for _ in 0..20 {
            assert_eq!(server.get("/quick").text(), "quick");
        }
        std::thread::sleep(Duration::from_millis(100));
        let made = filled.load(Ordering::Relaxed);
        assert!(made < 4 * 20_000_000, "{made} bytes made for clients that read nothing");
        // They are slow, not gone: one of them reads on.
        let mut buffer = vec![0; 1 << 20];
        let mut got = 0;
        while got < 30_000_000 {
            got += slow[0].stream.read(&mut buffer).unwrap();
        }
        drop(slow);
        eventually("their connections are closed", || server.handle.counters().connections_open == 0);
    });
}

#[test]
fn what_is_kept_with_a_body_is_dropped_when_it_ends() {
    const LENGTH: usize = 30_000_000;
    struct Keeping {
        file: Arc<File>,
        kept: Arc<()>,
        sent: Arc<AtomicU64>,
    }
    impl Keeping {
        fn answer(&self, path: &str) -> Response {
            let body = match path.rsplit('/').next() {
                Some("file") => Body::file(FileRange { file: self.file.clone(), offset: 0, length: LENGTH as u64 }),
                Some("memory") => Body::bytes("in memory"),
                _ => Body::source(Pattern { at: 0, length: LENGTH, piece: 256 * 1024, file: None }, None),
            };
            ok(body).keep_counted(self.kept.clone(), self.sent.clone())
        }
    }
    impl Handler for Keeping {
        fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
            head.path().starts_with("/inline/").then(|| self.answer(head.path()))
        }

        fn handle(&self, request: Request) -> Response {
            self.answer(request.path())
        }
    }
    on_each_driver(|driver| {
        let (kept, sent) = (Arc::new(()), Arc::new(AtomicU64::new(0)));
        // Ours, and the handler's.
        let nothing_is_sent = || Arc::strong_count(&kept) == 2;
        let server =
            TestServer::start(driver, Keeping { file: file_of(LENGTH), kept: kept.clone(), sent: sent.clone() });
        for path in ["/inline/file", "/inline/source", "/worker/file", "/worker/source"] {
            let mut client = server.connect();
            client.send(format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n"));
            client.head();
            assert_eq!(Arc::strong_count(&kept), 3, "{path}: it is being sent");
            eventually("it is said how much was sent", || {
                (1..LENGTH as u64 / 2).contains(&sent.load(Ordering::Relaxed))
            });
            drop(client);
            eventually("the response is aborted", nothing_is_sent);
            // The connection stays open.
            let mut client = server.connect();
            assert!(client.get(path).body == pattern(0, LENGTH), "{path}");
            eventually("the response is sent", nothing_is_sent);
            // With its head, and the framing of chunks.
            let bytes = sent.swap(0, Ordering::Relaxed);
            assert!((LENGTH as u64..LENGTH as u64 * 101 / 100).contains(&bytes), "{path}: {bytes}");
            assert_eq!(client.get(&path.replace("file", "memory").replace("source", "memory")).text(), "in memory");
            eventually("the small response is sent", nothing_is_sent);
            client.send(format!("HEAD {path} HTTP/1.1\r\nHost: t\r\n\r\n"));
            assert_eq!(client.answer_to_head().status, 200);
            eventually("a response without a body is sent", nothing_is_sent);
        }
    });
}

#[test]
fn many_clients_read_large_answers_at_once() {
    on_each_driver(|driver| {
        let file = file_of(5_000_000);
        let server = TestServer::with(
            driver,
            move |request: Request| match request.path() {
                "/file" => ok(Body::file(FileRange { file: file.clone(), offset: 0, length: 5_000_000 })),
                "/bytes" => ok(Body::bytes(pattern(0, 5_000_000))),
                _ => ok(Body::source(Pattern { at: 0, length: 5_000_000, piece: 70_000, file: None }, None)),
            },
            unhurried(),
            |builder| builder.workers(2).shards(2),
        );
        let expected = pattern(0, 5_000_000);
        std::thread::scope(|scope| {
            for at in 0..9 {
                let (server, expected) = (&server, &expected);
                scope.spawn(move || {
                    let mut client = server.connect();
                    for round in 0..3 {
                        let path = ["/file", "/bytes", "/source"][(at + round) % 3];
                        assert!(client.get(path).body == *expected, "{path}");
                    }
                });
            }
        });
    });
}

/// RFC 9112 section 9.6: what the client sent behind the request that ends the connection must not take the answer back.
#[test]
fn unread_input_does_not_lose_the_last_answer() {
    struct WhenSent {
        sent: Mutex<mpsc::Receiver<()>>,
        file: Arc<File>,
    }
    impl Handler for WhenSent {
        fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
            self.sent.lock().unwrap().recv().unwrap();
            let length: u64 = head.path().trim_start_matches('/').parse().unwrap();
            let range = FileRange { file: self.file.clone(), offset: 0, length };
            let in_memory = pattern(0, if length < 50_000 { length as usize } else { 0 });
            Some(ok(if in_memory.is_empty() { Body::file(range) } else { Body::bytes(in_memory) }))
        }

        fn handle(&self, _: Request) -> Response {
            Response::new(StatusCode::NOT_FOUND)
        }
    }
    on_each_driver(|driver| {
        let (told, sent) = mpsc::channel();
        let server = TestServer::start(driver, WhenSent { sent: Mutex::new(sent), file: file_of(1_500_000) });
        for length in [10, 60_000, 200_000, 1_500_000] {
            for more in [false, true] {
                let mut client = server.connect();
                client.send(format!("GET /{length} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n"));
                if more {
                    // The shard is in the handler, or will receive it with the head.
                    std::thread::sleep(Duration::from_millis(20));
                    client.send("GET /never HTTP/1.1\r\nHost: t\r\n\r\n");
                }
                told.send(()).unwrap();
                let answer = client.answer();
                assert!(answer.body == pattern(0, length), "{length} {more}");
                assert!(client.rest().is_empty(), "a clean end");
            }
        }
    });
}
