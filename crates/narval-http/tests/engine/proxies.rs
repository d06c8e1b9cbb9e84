//! Behind trusted proxies: whose request it is.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use narval_http::{
    DriverChoice, Handler, HeadRef, Limits, Listen, LogFormat, LogWriter, Request, Response, Server, ServerError,
    StatusCode,
};

use crate::harness::{Client, TestServer, eventually, on_each_driver, unhurried};

/// Answers who asks for what.
struct Who;

fn who(head: &HeadRef<'_>) -> Response {
    let client = head.client_ip().map_or_else(|| "nobody".to_owned(), |ip| ip.to_string());
    let text = format!("{client} {} {}", head.scheme(), head.host().unwrap_or_default());
    Response::text(StatusCode::OK, text)
}

impl Handler for Who {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        (head.path() == "/inline").then(|| who(head))
    }

    fn handle(&self, request: Request) -> Response {
        assert_eq!(request.client_ip(), request.head().client_ip());
        who(&request.head())
    }
}

fn server(driver: DriverChoice, trusted: &[&str], proxy_protocol: bool, limits: Limits) -> TestServer {
    TestServer::with(driver, Who, limits, |builder| {
        builder.trusted_proxies(trusted.iter().copied()).proxy_protocol(proxy_protocol)
    })
}

fn asked(client: &mut Client, path: &str, fields: &str) -> String {
    client.send(format!("GET {path} HTTP/1.1\r\nHost: own\r\n{fields}\r\n"));
    client.answer().text()
}

const FIELDS: &str = "X-Forwarded-For: 1.1.1.1, 192.0.2.9\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: outer\r\n";

#[test]
fn fields_count_from_trusted_proxies_only() {
    on_each_driver(|driver| {
        for (trusted, want) in [
            (&["127.0.0.0/8"][..], "192.0.2.9 https outer"),
            (&["10.0.0.1", "::1", "127.0.0.1"], "192.0.2.9 https outer"),
            (&["127.0.0.2", "unix"], "127.0.0.1 http own"),
            (&[], "127.0.0.1 http own"),
        ] {
            let server = server(driver, trusted, false, unhurried());
            let mut client = server.connect();
            for path in ["/inline", "/worker"] {
                assert_eq!(asked(&mut client, path, FIELDS), want);
                assert_eq!(asked(&mut client, path, ""), "127.0.0.1 http own");
            }
        }
    });
}

#[test]
fn unix_sockets_are_trusted_by_name() {
    on_each_driver(|driver| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("http");
        for (trusted, want) in [(&["unix"][..], "192.0.2.9 https outer"), (&["127.0.0.1"], "nobody http own")] {
            let server = TestServer::with(driver, Who, unhurried(), |builder| {
                builder.listen(Listen::Unix(path.clone())).trusted_proxies(trusted.iter().copied())
            });
            let mut stream = UnixStream::connect(&path).unwrap();
            write!(stream, "GET / HTTP/1.1\r\nHost: own\r\nConnection: close\r\n{FIELDS}\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with(want), "{answer}");
            drop(server);
        }
    });
}

#[test]
fn a_header_of_the_proxy_protocol_names_the_client() {
    on_each_driver(|driver| {
        let server = server(driver, &["127.0.0.1", "10.0.0.0/8"], true, unhurried());
        let text = |source: &str| format!("PROXY TCP4 {source} 192.0.2.2 4000 443\r\n").into_bytes();
        let mut binary = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
        binary.extend([192, 0, 2, 9, 192, 0, 2, 2, 15, 160, 1, 187]);
        let local = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".to_vec();
        for (header, want) in [
            (text("192.0.2.9"), "192.0.2.9 http own"),
            (binary, "192.0.2.9 http own"),
            // The proxy behind that proxy is trusted, too.
            (text("10.0.0.5"), "192.0.2.9 https outer"),
            // A client of whom the proxy knows nothing.
            (b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1 http own"),
            (local, "127.0.0.1 http own"),
        ] {
            for pieces in [1, header.len()] {
                let mut client = server.connect();
                header.chunks(header.len() / pieces).for_each(|piece| client.send(piece));
                assert_eq!(asked(&mut client, "/worker", FIELDS), want, "{header:?}");
                assert_eq!(asked(&mut client, "/inline", FIELDS), want, "the next request");
            }
            // With the request, in one piece.
            let mut client = server.connect();
            client.send([&header, format!("GET / HTTP/1.1\r\nHost: own\r\n{FIELDS}\r\n").as_bytes()].concat());
            assert_eq!(client.answer().text(), want);
        }
        // Without a header, the connection ends without an answer.
        for wrong in ["GET / HTTP/1.1\r\nHost: own\r\n\r\n", "PROXY TCP4 x y 1 2\r\n"] {
            let mut client = server.connect();
            client.send(wrong);
            client.wait_for_end();
            assert_eq!(client.take_received(), 0);
        }
    });
}

#[test]
fn others_than_trusted_proxies_have_no_proxy_header() {
    on_each_driver(|driver| {
        let server = server(driver, &["127.0.0.2"], true, unhurried());
        assert_eq!(asked(&mut server.connect(), "/", FIELDS), "127.0.0.1 http own");
        let mut client = server.connect();
        client.send("PROXY TCP4 192.0.2.9 192.0.2.2 4000 443\r\nGET / HTTP/1.1\r\nHost: own\r\n\r\n");
        assert_eq!(client.answer().status, 400);
    });
}

#[test]
fn a_header_that_does_not_come_meets_the_deadline_for_heads() {
    on_each_driver(|driver| {
        let limits = Limits { head_timeout: std::time::Duration::from_millis(100), ..unhurried() };
        let server = server(driver, &["127.0.0.1"], true, limits);
        let mut client = server.connect();
        client.send("PROXY TCP4 ");
        client.wait_for_end();
        assert_eq!(server.handle.counters().timeouts, 1);
    });
}

#[test]
fn connections_are_counted_for_the_client_that_the_proxy_names() {
    on_each_driver(|driver| {
        let limits = Limits { connections_per_ip_max: Some(2), ..unhurried() };
        let server = server(driver, &["127.0.0.1"], true, limits);
        let connect = |source: &str| {
            let mut client = server.connect();
            client.send(format!("PROXY TCP4 {source} 192.0.2.2 4000 443\r\n"));
            client.send("GET / HTTP/1.1\r\nHost: own\r\n\r\n");
            client
        };
        let mut open: Vec<Client> = ["192.0.2.1", "192.0.2.1", "192.0.2.3", "192.0.2.3"].map(connect).into();
        for client in &mut open {
            assert_eq!(client.answer().status, 200);
        }
        let mut refused = TcpStream::connect(server.address).unwrap();
        refused.write_all(b"PROXY TCP4 192.0.2.1 192.0.2.2 4000 443\r\n").unwrap();
        assert_eq!(Client::new(refused).answer().status, 503);
        assert_eq!(server.handle.counters().connections_refused, 1);
        open.remove(0);
        eventually("one has left", || server.handle.counters().connections_open == 3);
        assert_eq!(connect("192.0.2.1").answer().status, 200);
    });
}

#[test]
fn the_access_log_names_the_client() {
    on_each_driver(|driver| {
        let (reader, writer) = std::io::pipe().unwrap();
        let server = TestServer::with(driver, Who, unhurried(), |builder| {
            builder.trusted_proxies(["127.0.0.1"]).access_log(LogWriter::new(LogFormat::Combined, writer))
        });
        asked(&mut server.connect(), "/", FIELDS);
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(reader), &mut line).unwrap();
        assert!(line.starts_with("192.0.2.9 - - ["), "{line}");
    });
}

#[test]
fn invalid_proxies_are_refused_before_anything_listens() {
    let build = |trusted: &[&str], proxy_protocol| {
        let builder = Server::builder(Who).listen(Listen::Tcp("127.0.0.1:0".parse().unwrap()));
        builder.trusted_proxies(trusted.iter().copied()).proxy_protocol(proxy_protocol).build().map(drop)
    };
    let error = build(&["10.0.0.0/8", "proxy.example"], false).unwrap_err();
    assert!(error.to_string().contains("'proxy.example'"), "{error}");
    assert!(matches!(build(&[], true), Err(ServerError::NoTrustedProxies)));
}
