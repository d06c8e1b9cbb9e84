//! Requirements of the RFCs beyond answering requests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use narval_http::{Body, Request, Response, StatusCode};

use crate::harness::{PATIENCE, TestServer, on_each_driver};

/// Answers `/big` with 3 MB, and reads no body.
fn careless(request: Request) -> Response {
    match request.path() {
        "/big" => Response::new(StatusCode::OK).body(Body::bytes(vec![b'z'; 3_000_000])),
        _ => Response::text(StatusCode::OK, "hello"),
    }
}

/// RFC 9110 section 9.3.2: an answer to HEAD has no body, whatever it says.
#[test]
fn errors_in_answer_to_head_have_no_body() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, careless);
        let long = format!("/{} HTTP/1.1\r\nHost: h\r\n\r\n", "a".repeat(9000));
        let many = format!("/ HTTP/1.1\r\nHost: h\r\n{}\r\n", "X: y\r\n".repeat(200));
        for (status, rest) in [
            (400, "/ HTTP/1.1\r\n\r\n"),
            (400, "/ HTTP/1.1\r\nHost: a b\r\n\r\n"),
            (400, "/ HTTP/1.1\r\nHost: h\r\nX Y: z\r\n\r\n"),
            (505, "/ HTTP/2.0\r\nHost: h\r\n\r\n"),
            (417, "/ HTTP/1.1\r\nHost: h\r\nExpect: x\r\n\r\n"),
            (400, "/ HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: x\r\n\r\n"),
            (414, &long),
            (431, &many),
            (413, "/ HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n"),
            (413, "/ HTTP/1.1\r\nHost: h\r\nContent-Length: 9000000000000000\r\n\r\n"),
            (400, "/ HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"),
        ] {
            for start in ["", "\r\n", "GET / HTTP/1.1\r\nHost: h\r\n\r\n"] {
                let mut client = server.connect();
                client.send(format!("{start}HEAD {rest}"));
                if start.starts_with("GET") {
                    assert_eq!(client.answer().text(), "hello");
                }
                let answer = client.answer_to_head();
                assert_eq!((answer.status, answer.header("connection")), (status, Some("close")), "{rest:.60}");
                assert!(client.rest().is_empty(), "{rest:.60}");
            }
        }
    });
}

/// RFC 9110 section 9.3.7.
#[test]
fn options_asterisk_is_for_the_server() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, careless);
        let mut client = server.connect();
        for _ in 0..2 {
            client.send("OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n");
            assert_eq!(client.answer().status, 204);
            assert_eq!(client.get("/").text(), "hello");
        }
    });
}

/// RFC 9112 section 9.6: the answer arrives although nobody reads the body, and the client reads only when it has sent all.
#[test]
fn the_answer_to_an_unread_body_arrives_completely() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, careless);
        for (size, close) in
            [(1000, ""), (60_000, ""), (300_000, ""), (3_000_000, ""), (3_000_000, "Connection: close\r\n")]
        {
            let mut client = server.connect();
            client.send(format!("GET /big HTTP/1.1\r\nHost: h\r\n{close}Content-Length: {size}\r\n\r\n"));
            client.send(vec![b'x'; size]);
            // Slowly, so that it is still on its way when the server is done.
            let mut left = 3_000_000;
            let head = client.head();
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            let mut piece = vec![0; 256 * 1024];
            left -= client.take_received();
            while left > 0 {
                std::thread::sleep(Duration::from_millis(2));
                let n = client.stream.read(&mut piece).expect("no reset");
                assert!(n > 0, "{left} bytes are missing, body of {size}");
                left -= n.min(left);
            }
        }
    });
}

#[test]
fn a_stopping_server_does_not_wait_for_a_client_that_has_its_answer() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, careless);
        let mut clients: Vec<_> = (0..3).map(|_| server.connect()).collect();
        for client in &mut clients {
            assert_eq!(client.get("/big").body.len(), 3_000_000);
        }
        // A client that keeps its connection although the server has asked it to close.
        let mut told = server.connect();
        told.send("GET /big HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        assert_eq!(told.answer().body.len(), 3_000_000);
        // The clients keep their connections, whose deadlines are an hour.
        assert!(server.handle.shutdown(PATIENCE), "all is done");
        drop((clients, told));
    });
}

#[test]
fn a_stopping_server_waits_for_a_client_that_is_still_reading() {
    on_each_driver(|driver| {
        let server = TestServer::start(driver, careless);
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /big HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        let mut first = vec![0; 1000];
        stream.read_exact(&mut first).unwrap();
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| server.handle.shutdown(PATIENCE));
            // It still reads long after the server was told to stop.
            std::thread::sleep(Duration::from_millis(600));
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).expect("no reset");
            assert!(rest.len() + first.len() > 3_000_000);
            assert!(stopping.join().unwrap());
        });
    });
}
