//! The test client answers as a server does; and what a server rejects before it has a handler has the form that the router wants.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use narval_http::{
    BodyLimit, Compression, Limits, Listen, ListenAddress, Method, Next, Problems, Reject, Request, Response, Router,
    RoutingTable, Server, ServerHandle, StatusCode, test,
};

fn length(mut request: Request) -> io::Result<String> {
    Ok(io::copy(request.body(), &mut io::sink())?.to_string())
}

fn marked(request: Request, next: Next<'_>) -> Result<Response, Reject> {
    if request.header("x-stop").is_some() {
        return Err(Reject::new(StatusCode::FORBIDDEN, "stopped"));
    }
    Ok(next.run(request).header("x-marked", "yes"))
}

fn later() -> Response {
    let (response, responder) = Response::later();
    std::thread::spawn(|| responder.respond(Response::text(StatusCode::ACCEPTED, "later")));
    response
}

fn routes() -> RoutingTable {
    let api = Router::new()
        .layer(BodyLimit::new(10))
        .post("/length", length)
        .get("/panics", || -> StatusCode { panic!("a handler's bug") })
        .get("/fails", || Err::<String, _>(io::Error::other("secret detail")))
        .get("/items/@id", |request: Request| request.params().parse::<u32>("id").map(|id| id.to_string()));
    Router::new()
        .layer(Compression::default())
        .layer(marked)
        .get("/", || "hello\n")
        .get("/long", || "all work and no play\n".repeat(1000))
        .get("/later", later)
        .get("/nothing", || ())
        .post("/length", length)
        .get("/panics", || -> StatusCode { panic!("a handler's bug") })
        .nest("/api", api)
        .errors(Problems::json())
        .build()
        .expect("valid routes")
}

fn limits() -> Limits {
    Limits { body_max: 1000, ..Limits::default() }
}

struct Running {
    handle: ServerHandle,
    address: SocketAddr,
}

impl Running {
    fn start() -> Self {
        let server = Server::builder(routes()).limits(limits()).listen(Listen::Tcp((Ipv4Addr::LOCALHOST, 0).into()));
        let handle = server.build().expect("listens").spawn().expect("starts");
        let ListenAddress::Tcp(address) = handle.addresses()[0].clone() else { panic!("TCP") };
        Self { handle, address }
    }

    /// The answer to these bytes, as head and body.
    fn send(&self, request: &[u8]) -> (String, Vec<u8>) {
        let mut socket = TcpStream::connect(self.address).expect("connects");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        socket.write_all(request).expect("sent");
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).expect("received");
        let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a head") + 4;
        (String::from_utf8(answer[..end].to_vec()).expect("ASCII"), answer.split_off(end))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown(Duration::from_secs(5));
    }
}

/// Fields of the engine, and of the connection.
fn is_of_the_application(line: &str) -> bool {
    !["date", "content-length", "connection", "transfer-encoding"]
        .iter()
        .any(|name| line.split(':').next().is_some_and(|have| have.eq_ignore_ascii_case(name)))
}

#[test]
fn answers_are_those_of_a_server() {
    let (server, client) = (Running::start(), test::client(routes()).limits(limits()));
    let long = "x".repeat(1001);
    for (method, target, field, body) in [
        ("GET", "/", "", ""),
        ("HEAD", "/", "", ""),
        ("OPTIONS", "/length", "", ""),
        ("DELETE", "/", "", ""),
        ("GET", "/", "X-Stop: 1", ""),
        ("GET", "/later", "", ""),
        ("GET", "/nothing", "", ""),
        ("GET", "/nowhere", "", ""),
        ("GET", "/panics", "", ""),
        ("GET", "/api/panics", "", ""),
        ("GET", "/api/fails", "", ""),
        ("GET", "/api/items/7", "", ""),
        ("GET", "/api/items/x", "", ""),
        ("GET", "/api/items/%zz", "", ""),
        ("GET", "/a b", "", ""),
        ("GET", "/", "X Y: invalid", ""),
        ("POST", "/length", "", "1234567890"),
        ("POST", "/api/length", "", "1234567890"),
        ("POST", "/api/length", "", "12345678901"),
        ("POST", "/length", "", &long),
    ] {
        let fields = if field.is_empty() { String::new() } else { format!("{field}\r\n") };
        let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let bytes =
            format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}{length}Connection: close\r\n\r\n{body}");
        let (head, sent) = server.send(bytes.as_bytes());
        let mut ask = client.request(Method::from_bytes(method.as_bytes()).expect("a method"), target);
        if let Some((name, value)) = field.split_once(": ") {
            ask = ask.header(name, value);
        }
        let answer = ask.body(body.to_owned()).send();
        let what = format!("{method} {target} {field}");
        assert_eq!(head.split(' ').nth(1), Some(answer.status().as_str()), "{what}: {head}");
        let mut had: Vec<String> = head
            .lines()
            .skip(1)
            .filter(|line| !line.is_empty() && is_of_the_application(line))
            .map(str::to_lowercase)
            .collect();
        let mut has: Vec<String> = answer
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().expect("ASCII")).to_lowercase())
            .filter(|line| is_of_the_application(line))
            .collect();
        had.sort();
        has.sort();
        assert_eq!(had, has, "{what}");
        assert_eq!(answer.bytes().expect("whole"), sent, "{what}");
    }
}

#[test]
fn what_is_rejected_before_a_handler_runs_has_the_form_of_the_router() {
    let server = Running::start();
    let large = format!("GET / HTTP/1.1\r\nHost: h\r\nX-Large: {}\r\n\r\n", "x".repeat(1 << 20));
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\nHost: h\r\nBad Name: x\r\n\r\n".to_owned(), 400),
        ("POST /length HTTP/1.1\r\nHost: h\r\nContent-Length: 5000\r\n\r\n".to_owned(), 413),
        (large, 431),
    ] {
        let (head, body) = server.send(request.as_bytes());
        let start = format!("HTTP/1.1 {status} ");
        assert!(head.starts_with(&start) && head.contains("content-type: application/problem+json\r\n"), "{head}");
        assert!(head.to_lowercase().contains("\r\nconnection: close\r\n"), "{head}");
        let problem: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert!(problem["status"] == status && !problem["detail"].as_str().unwrap().is_empty(), "{problem}");
    }
}
