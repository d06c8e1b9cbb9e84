//! The library's surface over real sockets: routes, middlewares, forms, compression, errors.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

use std::io::{self, Read, Write, copy, sink};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use narval_http::{
    Compression, Cors, Listen, ListenAddress, Request, Response, Router, Server, ServerHandle, StatusCode,
};

struct Running {
    handle: ServerHandle,
    address: SocketAddr,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown(Duration::from_secs(5));
    }
}

fn upload(mut request: Request) -> io::Result<String> {
    let mut form = request.multipart()?;
    let mut answer = String::new();
    while let Some(mut part) = form.next_part()? {
        let name = part.head().name.clone();
        answer += &format!("{name}={};", copy(&mut part, &mut sink())?);
    }
    Ok(answer)
}

fn start() -> Running {
    let app = Router::new()
        .layer(Cors::any_origin())
        .layer(Compression::default())
        .get("/", |_: Request| "hello\n")
        .get("/long", |_: Request| "all work and no play\n".repeat(100_000))
        .get("/items/@id", |request: Request| request.params().get("id").unwrap_or_default().to_owned())
        .get("/search", |request: Request| request.query_value("q").unwrap_or_default().into_owned())
        .get("/old", |_: Request| Response::redirect("/new"))
        .get("/panics", |_: Request| -> StatusCode { panic!("a handler's bug") })
        .get("/fails", |_: Request| Err::<String, _>(io::Error::other("secret detail")))
        .post("/upload", upload)
        .build()
        .expect("valid routes");
    let server = Server::builder(app).listen(Listen::Tcp((Ipv4Addr::LOCALHOST, 0).into())).build().expect("listens");
    let handle = server.spawn().expect("starts");
    let ListenAddress::Tcp(address) = handle.addresses()[0].clone() else { panic!("TCP") };
    Running { handle, address }
}

impl Running {
    /// The answer to a request, as head and body. The request asks to close the connection.
    fn ask(&self, method: &str, target: &str, fields: &str, body: &[u8]) -> (String, Vec<u8>) {
        let mut socket = TcpStream::connect(self.address).expect("connects");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        let head = format!("{method} {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{fields}\r\n");
        socket.write_all(head.as_bytes()).expect("sent");
        socket.write_all(body).expect("sent");
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).expect("received");
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
        (String::from_utf8(answer[..end].to_vec()).expect("ASCII"), answer[end..].to_vec())
    }

    fn get(&self, target: &str) -> (String, String) {
        let (head, body) = self.ask("GET", target, "", b"");
        (head, String::from_utf8(body).expect("UTF-8"))
    }
}

#[track_caller]
fn status(head: &str) -> u16 {
    head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status")
}

#[test]
fn routes_parameters_and_queries() {
    let server = start();
    assert_eq!(server.get("/").1, "hello\n");
    assert_eq!(server.get("/items/a%20b%2Fc").1, "a b/c");
    assert_eq!(server.get("/search?x&q=two+words%21").1, "two words!");
    let (head, body) = server.get("/nowhere");
    assert_eq!((status(&head), body.as_str()), (404, "not found\n"));
    let (head, _) = server.get("/old");
    assert!(status(&head) == 302 && head.contains("location: /new\r\n"), "{head}");
}

#[test]
fn head_options_and_unsupported_methods() {
    let server = start();
    let (head, body) = server.ask("HEAD", "/", "", b"");
    assert!(status(&head) == 200 && head.contains("content-length: 6\r\n") && body.is_empty(), "{head}");
    let (head, body) = server.ask("OPTIONS", "/upload", "", b"");
    assert!(status(&head) == 204 && head.contains("allow: POST, OPTIONS\r\n") && body.is_empty(), "{head}");
    let (head, _) = server.ask("DELETE", "/", "", b"");
    assert!(status(&head) == 405 && head.contains("allow: GET, HEAD, OPTIONS\r\n"), "{head}");
}

#[test]
fn errors_and_panics_are_500_without_details() {
    let server = start();
    for target in ["/fails", "/panics", "/fails", "/panics"] {
        let (head, body) = server.get(target);
        assert_eq!(status(&head), 500);
        assert!(!body.contains("secret") && !body.contains("bug"), "{body}");
    }
    assert_eq!(server.get("/").1, "hello\n");
}

#[test]
fn large_forms_are_streamed() {
    let server = start();
    let mut form = b"--B\r\nContent-Disposition: form-data; name=\"big\"; filename=\"f\"\r\n\r\n".to_vec();
    form.extend(std::iter::repeat_n(b'x', 700_000));
    form.extend_from_slice(b"\r\n--B\r\nContent-Disposition: form-data; name=note\r\n\r\nhi\r\n--B--\r\n");
    let content_type = "Content-Type: multipart/form-data; boundary=B\r\n";
    let with_length = format!("{content_type}Content-Length: {}\r\n", form.len());
    assert_eq!(server.ask("POST", "/upload", &with_length, &form).1, b"big=700000;note=2;");
    let mut chunked = Vec::new();
    for chunk in form.chunks(10_007) {
        narval_http::codecs::chunked::encode_chunk(chunk, &mut chunked);
    }
    narval_http::codecs::chunked::encode_end(&[], &mut chunked);
    let fields = format!("{content_type}Transfer-Encoding: chunked\r\n");
    assert_eq!(server.ask("POST", "/upload", &fields, &chunked).1, b"big=700000;note=2;");
    let cut = &form[..form.len() - 10];
    let fields = format!("{content_type}Content-Length: {}\r\n", cut.len());
    assert_eq!(status(&server.ask("POST", "/upload", &fields, cut).0), 400);
    assert_eq!(status(&server.ask("POST", "/upload", "Content-Length: 1\r\n", b"x").0), 415);
}

#[test]
fn responses_are_compressed_while_they_are_sent() {
    let server = start();
    let (head, body) = server.ask("GET", "/long", "Accept-Encoding: gzip\r\n", b"");
    assert!(head.contains("content-encoding: gzip\r\n") && head.contains("vary: accept-encoding\r\n"), "{head}");
    assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
    let mut decoder = narval_http::codecs::chunked::ChunkedDecoder::new();
    let (mut compressed, mut rest) = (Vec::new(), body.as_slice());
    while !decoder.is_done() {
        let step = decoder.decode(rest).expect("well-formed chunks");
        assert!(step.consumed > 0, "the body ends early");
        compressed.extend_from_slice(step.data);
        rest = &rest[step.consumed..];
    }
    let mut plain = String::new();
    flate2::read::GzDecoder::new(compressed.as_slice()).read_to_string(&mut plain).expect("gzip");
    assert!(plain == "all work and no play\n".repeat(100_000));
    let (head, body) = server.get("/long");
    assert!(!head.contains("content-encoding") && body.len() == plain.len(), "{head}");
}

#[test]
fn cors_allows_other_origins() {
    let server = start();
    let fields = "Origin: https://a.example\r\nAccess-Control-Request-Method: POST\r\n";
    let (head, _) = server.ask("OPTIONS", "/upload", fields, b"");
    assert!(status(&head) == 204 && head.contains("access-control-allow-origin: *\r\n"), "{head}");
    let (head, _) = server.ask("GET", "/nowhere", "Origin: https://a.example\r\n", b"");
    assert!(status(&head) == 404 && head.contains("access-control-allow-origin: *\r\n"), "{head}");
}
