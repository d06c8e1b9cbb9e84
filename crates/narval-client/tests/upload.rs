//! Uploads against a server that does what a test says: late and early answers, broken connections.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use narval_client::{Answer, Client, ClientOptions, Extra, HttpError, Method, Payload, RetryPolicy, Upload, Url};

const LARGE: usize = 4_000_000;

/// A server of one test: each connection is handled by the next of these.
fn serve(turns: Vec<fn(&mut TcpStream)>) -> (Url, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = Url::parse(&format!("http://{}/file", listener.local_addr().unwrap())).unwrap();
    let thread = std::thread::spawn(move || {
        for turn in turns {
            turn(&mut listener.accept().unwrap().0);
        }
    });
    (url, thread)
}

/// Reads up to the end of a head.
fn head(stream: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{:?}", String::from_utf8_lossy(&head));
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn body(stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut body = vec![0; len];
    stream.read_exact(&mut body).unwrap();
    body
}

fn answer(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).unwrap();
}

fn client() -> Client {
    let retry =
        RetryPolicy { base: Duration::from_millis(1), overload_base: Duration::from_millis(1), ..Default::default() };
    Client::new(ClientOptions { proxies: Default::default(), retry, ..ClientOptions::default() })
}

fn put(url: &Url, payload: Payload<'_>) -> (Result<Answer, HttpError>, u64) {
    let sent = AtomicU64::new(0);
    let on_sent = |len| {
        sent.fetch_add(len, Ordering::Relaxed);
    };
    let upload = Upload {
        method: Method::Put,
        url,
        content_type: "a/b",
        extra: Extra::default(),
        payload,
        on_sent: &on_sent,
        answer_len_max: 100,
    };
    let answer = client().upload(&upload);
    (answer, sent.into_inner())
}

#[test]
fn a_small_body_is_sent_at_once_and_a_large_one_when_the_server_asks_for_it() {
    let (url, server) = serve(vec![|stream| {
        let head = head(stream);
        assert!(head.starts_with("PUT /file HTTP/1.1\r\n") && head.contains("\r\nContent-Type: a/b\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Length: 5\r\n") && !head.contains("Expect"), "{head}");
        assert_eq!(body(stream, 5), b"hello");
        answer(stream, "HTTP/1.1 201 Created\r\nContent-Length: 4\r\n\r\ndone");
    }]);
    let (got, sent) = put(&url, Payload::Bytes(b"hello"));
    let got = got.unwrap();
    assert_eq!((got.head.status, got.body, sent), (201, b"done".to_vec(), 5));
    server.join().unwrap();

    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![7; LARGE]).unwrap();
    let (url, server) = serve(vec![|stream| {
        assert!(head(stream).contains("\r\nExpect: 100-continue\r\n"));
        answer(stream, "HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(body(stream, LARGE), vec![7; LARGE]);
        answer(stream, "HTTP/1.1 204 No Content\r\n\r\n");
    }]);
    let (got, sent) = put(&url, Payload::File(&file, LARGE as u64));
    assert_eq!((got.unwrap().head.status, sent), (204, LARGE as u64));
    server.join().unwrap();
}

#[test]
fn an_early_answer_ends_the_upload() {
    // In place of 100 Continue: nothing is sent. Then in the middle: what the server said counts, not the broken pipe.
    let (url, server) = serve(vec![|stream| {
        head(stream);
        answer(stream, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 8\r\n\r\nno token");
        // The client does not send the body, and opens no other request on this connection.
        assert_eq!(stream.read(&mut [0; 10]).unwrap(), 0);
    }]);
    let large = vec![7; LARGE];
    let (got, sent) = put(&url, Payload::Bytes(&large));
    let got = got.unwrap();
    assert_eq!((got.head.status, got.body, sent), (401, b"no token".to_vec(), 0));
    server.join().unwrap();

    let (url, server) = serve(vec![|stream| {
        head(stream);
        answer(stream, "HTTP/1.1 100 Continue\r\n\r\n");
        body(stream, 100_000);
        answer(stream, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // Read what the client still sends: a reset would discard the response.
        std::io::copy(stream, &mut std::io::sink()).unwrap();
    }]);
    assert_eq!(put(&url, Payload::Bytes(&large)).0.unwrap().head.status, 413);
    server.join().unwrap();
}

#[test]
fn a_refused_upload_is_sent_again_from_its_start() {
    let (url, server) = serve(vec![
        |stream| {
            head(stream);
            answer(stream, "HTTP/1.1 100 Continue\r\n\r\n");
            // Cut in the middle.
            body(stream, 1_000_000);
        },
        |stream| {
            head(stream);
            answer(stream, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        },
        |stream| {
            head(stream);
            answer(stream, "HTTP/1.1 100 Continue\r\n\r\n");
            assert_eq!(body(stream, LARGE), vec![7; LARGE]);
            answer(stream, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        },
    ]);
    assert_eq!(put(&url, Payload::Bytes(&vec![7; LARGE])).0.unwrap().head.status, 200);
    server.join().unwrap();
}

#[test]
fn a_full_server_and_a_redirect_are_not_retried() {
    let (url, server) = serve(vec![
        |stream| {
            head(stream);
            body(stream, 1);
            answer(stream, "HTTP/1.1 507 Insufficient Storage\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfull");
        },
        |stream| {
            head(stream);
            body(stream, 1);
            answer(stream, "HTTP/1.1 307 Temporary Redirect\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n");
        },
    ]);
    let got = put(&url, Payload::Bytes(b"a")).0.unwrap();
    assert_eq!((got.head.status, got.body), (507, b"full".to_vec()));
    assert!(matches!(put(&url, Payload::Bytes(b"a")).0, Err(HttpError::Redirect(_))));
    server.join().unwrap();
}
