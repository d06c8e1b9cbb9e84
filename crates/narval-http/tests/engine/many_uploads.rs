//! More uploads at the same time than a server has threads and memory for. None is refused: bodies that wait are not received
//! meanwhile, and other requests are served. `NARVAL_UPLOADS` changes their number.

use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use narval_http::{Limits, Request, Response, StatusCode};

use crate::harness::{Client, TestServer, on_each_driver, unhurried};

/// Bytes of each upload.
pub(crate) const LENGTH: usize = 200_000;

pub(crate) fn count() -> usize {
    std::env::var("NARVAL_UPLOADS").map_or(300, |count| count.parse().unwrap())
}

/// Memory for less than a quarter of what is uploaded, few threads, and a short queue for the workers.
pub(crate) fn small(count: usize) -> Limits {
    Limits {
        body_buffer_max: 64 * 1024,
        body_memory_max: count * 48 * 1024,
        streamed_bodies_max: 8,
        queue_max: 16,
        ..unhurried()
    }
}

/// Answers with the length of the body.
pub(crate) fn measure(mut request: Request) -> Response {
    match io::copy(request.body(), &mut io::sink()) {
        Ok(length) => Response::text(StatusCode::OK, length.to_string()),
        Err(error) => Response::text(StatusCode::BAD_REQUEST, error.to_string()),
    }
}

/// Runs `uploads` while the server's reads and memory are checked. Reads are answered while most of the memory is in use, which is
/// as long as uploads wait for each other.
pub(crate) fn beside_reads(server: &TestServer, limits: &Limits, uploads: impl FnOnce() + Send, read: impl Fn()) {
    let (mut most, mut meanwhile) = (0, 0);
    let is_full = || server.handle.counters().body_memory_bytes as usize > limits.body_memory_max / 2;
    thread::scope(|scope| {
        let uploads = scope.spawn(uploads);
        while !uploads.is_finished() {
            let was_full = is_full();
            read();
            meanwhile += usize::from(was_full && is_full());
            most = most.max(server.handle.counters().body_memory_bytes);
            thread::sleep(Duration::from_millis(5));
        }
        uploads.join().unwrap();
    });
    let counters = server.handle.counters();
    eprintln!("{most} bytes of {}, {meanwhile} reads meanwhile", limits.body_memory_max);
    assert_eq!((counters.overloaded, counters.timeouts), (0, 0));
    assert!(most as usize > limits.body_memory_max / 2, "there was enough memory for all: {most} bytes");
    assert!(most as usize <= 2 * limits.body_memory_max, "{most} bytes");
    assert!(meanwhile > 0, "no read was answered while uploads waited for memory");
}

/// Sends a body slowly, and returns the answer. It continues once all others have begun.
fn upload(address: std::net::SocketAddr, is_chunked: bool, all_have_begun: &Barrier) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    // Uploads at the end of the queue wait for all others.
    stream.set_write_timeout(None).unwrap();
    let framing = if is_chunked { "Transfer-Encoding: chunked" } else { "Content-Length: 200000" };
    stream.write_all(format!("PUT / HTTP/1.1\r\nHost: t\r\n{framing}\r\n\r\n").as_bytes()).unwrap();
    let piece = [b'x'; LENGTH / 8];
    for number in 0..8 {
        if number == 1 {
            all_have_begun.wait();
        }
        if is_chunked {
            write!(stream, "{:x}\r\n", piece.len()).unwrap();
        }
        stream.write_all(&piece).unwrap();
        if is_chunked {
            stream.write_all(b"\r\n").unwrap();
        }
        thread::sleep(Duration::from_millis(20));
    }
    if is_chunked {
        stream.write_all(b"0\r\n\r\n").unwrap();
    }
    let mut client = Client::new(stream);
    client.stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
    let answer = client.answer();
    format!("{} {}", answer.status, answer.text())
}

#[test]
fn every_one_of_many_uploads_is_answered() {
    on_each_driver(|driver| {
        let (count, limits) = (count(), small(count()));
        let server = TestServer::with(driver, measure, limits.clone(), |builder| builder);
        let (address, all_have_begun) = (server.address, Barrier::new(count));
        let uploads = || {
            thread::scope(|scope| {
                let all_have_begun = &all_have_begun;
                let uploads: Vec<_> = (0..count)
                    .map(|number| scope.spawn(move || upload(address, number % 4 == 0, all_have_begun)))
                    .collect();
                for upload in uploads {
                    assert_eq!(upload.join().unwrap(), "200 200000");
                }
            });
        };
        beside_reads(&server, &limits, uploads, || assert_eq!(server.get("/").text(), "0"));
    });
}
