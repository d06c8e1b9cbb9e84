//! Servers that send, but so slowly that nobody waits for the end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails so")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use narval_client::{Client, ClientOptions, HttpError, Url};

/// How often a byte is sent: each arrives long before a single read is given up.
const EVERY: Duration = Duration::from_millis(50);
const STALL: Duration = Duration::from_secs(1);

/// The answer for a small file whose server sends `at_once`, and then one byte at a time for as long as it is read.
fn small_file(at_once: &'static str) -> Result<Option<Vec<u8>>, HttpError> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = Url::parse(&format!("http://{}/nix-cache-info", listener.local_addr().unwrap())).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        assert_ne!(stream.read(&mut request).unwrap(), 0);
        stream.write_all(at_once.as_bytes()).unwrap();
        // Until the client has closed the connection.
        while stream.write_all(b"x").is_ok() {
            std::thread::sleep(EVERY);
        }
    });
    let options = ClientOptions { proxies: Default::default(), stall_timeout: STALL, ..ClientOptions::default() };
    let answer = Client::new(options).metadata_once(&url, 1 << 20);
    server.join().unwrap();
    answer
}

#[test]
fn a_small_file_that_trickles_is_given_up() {
    let answer = small_file("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n");
    assert!(matches!(answer, Err(HttpError::Slow { received: 1.., .. })), "{answer:?}");
}

#[test]
fn a_head_that_trickles_is_given_up() {
    let answer = small_file("HTTP/1.1 200 OK\r\nServer: ");
    assert!(matches!(answer, Err(HttpError::Slow { received: 1.., .. })), "{answer:?}");
}
