//! HTTPS through the whole engine, with rustls and curl as clients. Where the kernel has kTLS (`tools/ktls-tests` runs
//! this under such a kernel) large files have to go through it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

mod pieces;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use narval_http::tls::{Identity, PemPair, TlsAcceptor, TlsConfig, probe};
use narval_http::{
    Body, Builder, DriverChoice, FileRange, Handler, HeadRef, Limits, Listen, ListenAddress, Peer, Request, Response,
    Server, ServerHandle, StatusCode, ws,
};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use pieces::{FILE_LENGTH, Mixed, content, events, pushed};

type Client = StreamOwned<ClientConnection, TcpStream>;

struct Running {
    handle: ServerHandle,
    address: SocketAddr,
    folder: tempfile::TempDir,
    cert: CertificateDer<'static>,
}

impl Running {
    fn start(ktls: bool, limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, content(FILE_LENGTH)).unwrap();
        let file = Arc::new(File::open(&path).unwrap());
        let handler = move |mut request: Request| {
            let body = match request.path() {
                "/small" => Body::bytes("small\n"),
                "/large" => Body::bytes(content(FILE_LENGTH)),
                "/file" => Body::file(FileRange { file: file.clone(), offset: 0, length: 3_000_000 }),
                "/part" => Body::file(FileRange { file: file.clone(), offset: 5, length: 20_000 }),
                "/mixed" => Body::source(Mixed { file: file.clone(), left: 3, has_trailers: false }, None),
                "/socket" => {
                    let Ok(upgrade) = ws::Upgrade::new(&request) else { return Response::new(StatusCode::BAD_REQUEST) };
                    let (response, socket) = upgrade.accept_with_handle(|socket: &ws::WebSocket, event| {
                        if let ws::WsEvent::Message(message) = event {
                            assert!(socket.send(message).is_accepted());
                        }
                    });
                    // Queued before the connection is a WebSocket: sealed behind the head of the answer.
                    assert!(socket.send("welcome").is_accepted());
                    return response;
                }
                "/pushed" => {
                    assert!(request.informational(StatusCode::EARLY_HINTS, &[]).unwrap());
                    pushed()
                }
                "/events" => return events(),
                "/hints" => {
                    // The body is read by another thread, which asks the client for it meanwhile.
                    let mut body = std::mem::take(request.body());
                    let received = std::thread::scope(|scope| {
                        let reader = scope.spawn(|| {
                            let mut received = Vec::new();
                            body.read_to_end(&mut received).map(|_| received)
                        });
                        for _ in 0..300 {
                            request.informational(StatusCode::EARLY_HINTS, &[]).unwrap();
                        }
                        reader.join().unwrap()
                    });
                    Body::bytes(received.unwrap())
                }
                "/echo" => {
                    let mut received = Vec::new();
                    request.body().read_to_end(&mut received).unwrap();
                    Body::bytes(received)
                }
                _ => return Response::text(StatusCode::NOT_FOUND, "no\n"),
            };
            Response::new(StatusCode::OK).body(body)
        };
        Self::with(folder, ktls, handler, |builder| builder.limits(limits))
    }

    fn with(
        folder: tempfile::TempDir,
        ktls: bool,
        handler: impl Handler,
        set: impl FnOnce(Builder) -> Builder,
    ) -> Self {
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let identities = vec![Identity { cert, key, ocsp: None }];
        let acceptor = TlsAcceptor::new(TlsConfig { identities, ktls, ..TlsConfig::default() }).unwrap();
        let builder =
            Server::builder(handler).listen(Listen::Tcp("127.0.0.1:0".parse().unwrap())).tls(Arc::new(acceptor));
        let server = set(builder).build().unwrap();
        let ListenAddress::Tcp(address) = server.addresses()[0].clone() else { panic!("not TCP") };
        Self { handle: server.spawn().unwrap(), address, folder, cert: made.cert.der().clone() }
    }

    fn client(&self, version: &'static rustls::SupportedProtocolVersion) -> Client {
        let mut roots = RootCertStore::empty();
        roots.add(self.cert.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown(Duration::from_secs(5));
    }
}

/// Reads one answer: status and body, chunked or with a length.
fn answer(client: &mut impl Read) -> (u16, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut body = Vec::new();
    if let Some(length) = head.lines().find_map(|line| line.strip_prefix("content-length: ")) {
        body.resize(length.trim().parse().unwrap(), 0);
        client.read_exact(&mut body).unwrap();
        return (status, body);
    }
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    loop {
        let mut size = String::new();
        while !size.ends_with("\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            size.push(byte[0].into());
        }
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        client.read_exact(&mut chunk).unwrap();
        body.extend_from_slice(&chunk[..size]);
        if size == 0 {
            return (status, body);
        }
    }
}

fn get(client: &mut Client, path: &str) -> (u16, Vec<u8>) {
    write!(client, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    client.flush().unwrap();
    answer(client)
}

fn mixed() -> Vec<u8> {
    let one = [b"<frame>", &content(FILE_LENGTH)[1000..1_501_000], b"</frame>"].concat();
    one.repeat(3)
}

#[test]
fn written_bodies_and_informational_responses() {
    let server = Running::start(false, Limits::default());
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let mut client = server.client(version);
        client.write_all(b"GET /pushed HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut early = [0; 28];
        client.read_exact(&mut early).unwrap();
        assert_eq!(&early, b"HTTP/1.1 103 Early Hints\r\n\r\n");
        let expected: Vec<u8> = (0..300_000).map(|at| b'0' + (at / 100_000) as u8).collect();
        assert!(answer(&mut client) == (200, expected));
        // The same connection stays open.
        client.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert_eq!(answer(&mut client), (200, b"data: 0\n\ndata: 1\n\ndata: 2\n\n".to_vec()));
    }
}

#[test]
fn every_kind_of_body_arrives_completely() {
    for ktls in [false, true] {
        let server = Running::start(ktls, Limits::default());
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let mut client = server.client(version);
            // Twice on one connection: the second round finds it as the first has left it, with kTLS in the kernel.
            for _ in 0..2 {
                assert_eq!(get(&mut client, "/small"), (200, b"small\n".to_vec()));
                assert!(get(&mut client, "/large") == (200, content(FILE_LENGTH)));
                assert!(get(&mut client, "/file") == (200, content(FILE_LENGTH)));
                assert!(get(&mut client, "/part") == (200, content(FILE_LENGTH)[5..20_005].to_vec()));
                assert!(get(&mut client, "/mixed") == (200, mixed()));
                assert_eq!(get(&mut client, "/none").0, 404);
            }
        }
    }
}

#[test]
fn large_files_use_ktls_if_it_is_available() {
    let sessions = || {
        let stat = std::fs::read_to_string("/proc/net/tls_stat").unwrap_or_default();
        let line = stat.lines().find(|line| line.starts_with("TlsTxSw ")).unwrap_or("TlsTxSw 0").to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let server = Running::start(true, Limits::default());
    let mut client = server.client(&rustls::version::TLS13);
    let before = sessions();
    assert!(get(&mut client, "/part").0 == 200 && sessions() == before, "small files stay in user space");
    assert!(get(&mut client, "/file") == (200, content(FILE_LENGTH)));
    assert_eq!(sessions() > before, probe().is_ok());
    // A key update by the client, answered in its turn by ours, between two answers. A kernel before 6.14 can't change its
    // key, and the connection would end.
    if probe().is_err() || kernel_is_at_least(6, 14) {
        client.conn.refresh_traffic_keys().unwrap();
        assert_eq!(get(&mut client, "/small"), (200, b"small\n".to_vec()));
        assert!(get(&mut client, "/file") == (200, content(FILE_LENGTH)));
    }
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

#[test]
fn a_key_update_between_answers_that_are_sealed_in_place() {
    let server = Running::start(false, Limits::default());
    let mut client = server.client(&rustls::version::TLS13);
    // The first answers are the library's, the later ones are sealed where they lie, with two keys.
    for path in ["/small", "/file", "/small", "/part"] {
        assert_eq!(get(&mut client, path).0, 200);
    }
    client.conn.refresh_traffic_keys().unwrap();
    assert!(get(&mut client, "/file") == (200, content(FILE_LENGTH)));
    assert_eq!(get(&mut client, "/small"), (200, b"small\n".to_vec()));
    assert!(get(&mut client, "/mixed") == (200, mixed()));
}

#[test]
fn key_updates_before_the_first_answer_that_is_sealed_in_place() {
    for ktls in [false, true] {
        let server = Running::start(ktls, Limits::default());
        for updates in 1..4 {
            let mut client = server.client(&rustls::version::TLS13);
            assert_eq!(get(&mut client, "/small").0, 200);
            for answered in 0..updates {
                client.conn.refresh_traffic_keys().unwrap();
                // One after the other, or several behind each other.
                if answered > 0 {
                    assert_eq!(get(&mut client, "/small"), (200, b"small\n".to_vec()));
                }
            }
            assert!(get(&mut client, "/file") == (200, content(FILE_LENGTH)), "after {updates} key updates");
            assert_eq!(get(&mut client, "/small"), (200, b"small\n".to_vec()));
        }
    }
}

#[test]
fn request_bodies_and_pipelined_requests() {
    let server = Running::start(false, Limits::default());
    let mut client = server.client(&rustls::version::TLS13);
    let upload = content(FILE_LENGTH);
    write!(client, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", upload.len()).unwrap();
    client.write_all(&upload).unwrap();
    client.flush().unwrap();
    assert!(answer(&mut client) == (200, upload));
    let many = "GET /small HTTP/1.1\r\nHost: a\r\n\r\n".repeat(50);
    client.write_all(many.as_bytes()).unwrap();
    client.flush().unwrap();
    for _ in 0..50 {
        assert_eq!(answer(&mut client), (200, b"small\n".to_vec()));
    }
}

/// Two threads send before an answer: records must be sent in the order in which they were sealed, and heads completely.
#[test]
fn early_hints_and_100_continue_from_two_threads() {
    let server = Running::start(false, Limits::default());
    let mut client = server.client(&rustls::version::TLS13);
    for _ in 0..15 {
        let head = "POST /hints HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 100000\r\n\r\n";
        client.write_all(head.as_bytes()).unwrap();
        client.flush().unwrap();
        let (mut hints, mut asked) = (0, false);
        while hints < 300 || !asked {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            match head.as_slice() {
                b"HTTP/1.1 103 Early Hints\r\n\r\n" => hints += 1,
                b"HTTP/1.1 100 Continue\r\n\r\n" => asked = true,
                other => panic!("{}", String::from_utf8_lossy(other)),
            }
        }
        client.write_all(&content(FILE_LENGTH)[..100_000]).unwrap();
        client.flush().unwrap();
        assert!(answer(&mut client) == (200, content(FILE_LENGTH)[..100_000].to_vec()));
    }
}

#[test]
fn a_connection_ends_with_a_close_notify() {
    let server = Running::start(false, Limits::default());
    let mut client = server.client(&rustls::version::TLS13);
    write!(client, "GET /small HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    client.flush().unwrap();
    let mut all = Vec::new();
    // rustls reports an end without close_notify as an error.
    client.read_to_end(&mut all).unwrap();
    assert!(all.ends_with(b"small\n"));
}

/// A client that half-closes the connection, in every way and at every stage: it gets its answers, and an end that can be
/// distinguished from a truncation.
#[test]
fn plain_http_is_told_to_use_https() {
    let server = Running::start(false, Limits::default());
    let mut client = TcpStream::connect(server.address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("https://"), "{answer}");
}

#[test]
fn a_client_that_half_closes_gets_its_answer_and_a_close_notify() {
    let server = Running::start(false, Limits::default());
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        for request in ["", "GET /small HTTP/1.1\r\nHost: a\r\n\r\n", "GET /file HTTP/1.1\r\nHost: a\r\n\r\n"] {
            for says_so in [true, false] {
                for with_the_handshake in [true, false] {
                    let StreamOwned { mut conn, mut sock } = server.client(version);
                    // TLS 1.2 sends nothing before the server's Finished.
                    while if with_the_handshake {
                        conn.is_handshaking()
                    } else {
                        conn.is_handshaking() || conn.wants_write()
                    } {
                        if conn.wants_write() {
                            conn.write_tls(&mut sock).unwrap();
                        } else {
                            conn.read_tls(&mut sock).unwrap();
                            conn.process_new_packets().unwrap();
                        }
                    }
                    conn.writer().write_all(request.as_bytes()).unwrap();
                    if says_so {
                        conn.send_close_notify();
                    }
                    let mut last = Vec::new();
                    while conn.wants_write() {
                        conn.write_tls(&mut last).unwrap();
                    }
                    sock.write_all(&last).unwrap();
                    sock.shutdown(std::net::Shutdown::Write).unwrap();
                    let mut answer = Vec::new();
                    // rustls reports an end without close_notify as an error.
                    let ended = StreamOwned::new(conn, sock).read_to_end(&mut answer);
                    let case = format!("{version:?} {request:?} {says_so} {with_the_handshake}");
                    assert!(ended.is_ok(), "{case}: {ended:?}");
                    assert_eq!(answer.starts_with(b"HTTP/1.1 200 "), !request.is_empty(), "{case}");
                    if request.contains("/file") {
                        assert!(answer.ends_with(&content(FILE_LENGTH)), "{case}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_failed_handshake_is_closed_and_others_are_served() {
    let limits = Limits { handshake_timeout: Duration::from_secs(3), ..Limits::default() };
    let server = Running::start(false, limits);
    let mut plain = TcpStream::connect(server.address).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut said = String::new();
    plain.read_to_string(&mut said).unwrap();
    let (head, body) = said.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 400 ") && body.contains("HTTPS"), "{said}");
    assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{said}");
    let mut plain = TcpStream::connect(server.address).unwrap();
    plain.write_all(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut said = String::new();
    plain.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 400 ") && said.ends_with("\r\n\r\n"), "{said}");

    let mut silent = TcpStream::connect(server.address).unwrap();
    let mut slow = TcpStream::connect(server.address).unwrap();
    // The start of a ClientHello record that never ends.
    slow.write_all(&[22, 3, 1, 2, 0, 1, 0]).unwrap();
    let mut client = server.client(&rustls::version::TLS13);
    assert_eq!(get(&mut client, "/small").0, 200);
    for stuck in [&mut silent, &mut slow] {
        stuck.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // An end or a reset, not a time-out of ours.
        match stuck.read(&mut [0; 16]) {
            Ok(n) => assert_eq!(n, 0),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
        }
    }
    let counters = server.handle.counters();
    assert!(counters.handshakes == 1 && counters.handshakes_failed >= 1 && counters.timeouts >= 2, "{counters:?}");
}

/// Handlers at `/stuck` do not return before they may.
#[derive(Clone, Default)]
struct Stuck(Arc<(Mutex<(usize, bool)>, Condvar)>);

impl Handler for Stuck {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        (head.path() == "/inline").then(|| Response::text(StatusCode::OK, "inline"))
    }

    fn handle(&self, mut request: Request) -> Response {
        if request.path() == "/stuck" {
            let (state, changed) = &*self.0;
            let mut state = state.lock().unwrap();
            state.0 += 1;
            changed.notify_all();
            drop(changed.wait_while(state, |(_, may_go)| !*may_go).unwrap());
        }
        let length = io::copy(request.body(), &mut io::sink());
        Response::text(StatusCode::OK, length.unwrap_or_default().to_string())
    }
}

#[test]
fn handshakes_do_not_wait_for_handlers() {
    for driver in DriverChoice::working() {
        let stuck = Stuck::default();
        let server = Running::with(tempfile::tempdir().unwrap(), false, stuck.clone(), |builder| {
            builder.workers(2).driver(driver)
        });
        let mut waiting: Vec<_> = (0..2).map(|_| server.client(&rustls::version::TLS13)).collect();
        for client in &mut waiting {
            client.write_all(b"GET /stuck HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        }
        let (state, changed) = &*stuck.0;
        drop(changed.wait_while(state.lock().unwrap(), |(count, _)| *count < 2).unwrap());
        for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
            assert_eq!(get(&mut server.client(version), "/inline").1, b"inline", "all workers are busy");
        }
        state.lock().unwrap().1 = true;
        changed.notify_all();
        for client in &mut waiting {
            assert_eq!(answer(client).0, 200);
        }
    }
}

#[test]
fn stalled_bodies_over_tls_do_not_block_other_requests() {
    for driver in DriverChoice::working() {
        let hour = Duration::from_secs(3600);
        let limits = Limits { body_stall_timeout: hour, body_busy_timeout: hour, ..Limits::default() };
        let server = Running::with(tempfile::tempdir().unwrap(), false, Stuck::default(), |builder| {
            builder.workers(2).driver(driver).limits(limits)
        });
        for field in ["", "Expect: 100-continue\r\n"] {
            let mut attackers: Vec<_> = (0..16).map(|_| server.client(&rustls::version::TLS13)).collect();
            for client in &mut attackers {
                write!(client, "POST / HTTP/1.1\r\nHost: a\r\n{field}Content-Length: 2000000\r\n\r\n").unwrap();
                if field.is_empty() {
                    client.write_all(&[b'x'; 100_000]).unwrap();
                }
            }
            let mut client = server.client(&rustls::version::TLS12);
            assert_eq!(get(&mut client, "/").1, b"0");
            client.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3000000\r\n\r\n").unwrap();
            client.write_all(&content(FILE_LENGTH)).unwrap();
            assert_eq!(answer(&mut client).1, b"3000000");
        }
    }
}

/// RFC 8446 section 6.2: a record that cannot be decrypted is answered with an alert, whatever was sent before.
#[test]
fn a_modified_record_is_answered_with_an_alert() {
    for driver in DriverChoice::working() {
        let server =
            Running::with(tempfile::tempdir().unwrap(), false, Stuck::default(), |builder| builder.driver(driver));
        for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
            for paths in [&[][..], &["/inline"], &["/worker"], &["/worker", "/inline"], &["/worker", "/worker"]] {
                let mut client = server.client(version);
                get(&mut client, "/inline");
                for path in paths {
                    assert_eq!(get(&mut client, path).0, 200);
                }
                let garbage = [&[23, 3, 3, 1, 0][..], &[7; 256]].concat();
                client.sock.write_all(&garbage).unwrap();
                let error = client.read(&mut [0; 16]).expect_err("an alert");
                assert!(error.to_string().contains("BadRecordMac"), "{paths:?}: {error}");
            }
            // Behind a request, in one write.
            for path in ["/inline", "/worker"] {
                let mut client = server.client(version);
                get(&mut client, "/inline");
                write!(client.conn.writer(), "GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                let mut records = Vec::new();
                client.conn.write_tls(&mut records).unwrap();
                records.extend([&[23, 3, 3, 1, 0][..], &[7; 256]].concat());
                client.sock.write_all(&records).unwrap();
                let mut got = Vec::new();
                let error = client.read_to_end(&mut got).expect_err("an alert");
                assert!(
                    error.to_string().contains("BadRecordMac"),
                    "{path} {version:?} {:?}: {error}",
                    String::from_utf8_lossy(&got)
                );
            }
        }
    }
}

#[test]
fn web_sockets_over_tls() {
    let server = Running::start(false, Limits::default());
    let stream = server.client(&rustls::version::TLS13);
    let (mut socket, _) = tungstenite::client("wss://localhost/socket", stream).unwrap();
    assert_eq!(socket.read().unwrap().into_text().unwrap().as_str(), "welcome");
    for length in [0, 5, 60_000] {
        let message = tungstenite::Message::binary(content(FILE_LENGTH)[..length].to_vec());
        socket.send(message.clone()).unwrap();
        assert_eq!(socket.read().unwrap(), message);
    }
    socket.close(None).unwrap();
    assert!(matches!(socket.read().unwrap(), tungstenite::Message::Close(_)));
}

/// What a connection must speak is a property of its listener. io_uring tells no address with a connection, and the kernel
/// does not tell who was at the other end of one that was reset.
#[test]
fn a_reset_before_accept_bypasses_neither_tls_nor_the_per_address_limit() {
    for driver in DriverChoice::working() {
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let pairs = vec![PemPair { cert: pair.cert.pem(), key: pair.signing_key.serialize_pem().into() }];
        let acceptor = Arc::new(TlsAcceptor::new(TlsConfig { pairs, ..TlsConfig::default() }).unwrap());
        for secure in [true, false] {
            let (called, peers) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
            let (calls, seen) = (called.clone(), peers.clone());
            let handler = move |request: Request| {
                calls.fetch_add(1, Ordering::SeqCst);
                seen.lock().unwrap().push(request.peer().clone());
                Response::text(StatusCode::OK, "secret")
            };
            let listen = Listen::Tcp("127.0.0.1:0".parse().unwrap());
            let builder = Server::builder(handler).listen(listen).driver(driver);
            let builder = if secure { builder.tls(acceptor.clone()) } else { builder };
            let server = builder.build().unwrap();
            let ListenAddress::Tcp(address) = server.addresses()[0].clone() else { panic!("not TCP") };
            // Nobody accepts yet: all that these clients do is done before the server sees them.
            for _ in 0..10 {
                let mut client = TcpStream::connect(address).unwrap();
                client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
                rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
            }
            let handle = server.spawn().unwrap();
            // Behind them in the queue.
            let mut last = TcpStream::connect(address).unwrap();
            last.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
            let mut said = String::new();
            last.read_to_string(&mut said).unwrap();
            assert!(said.starts_with(if secure { "HTTP/1.1 400 " } else { "HTTP/1.1 200 " }), "{said}");
            assert!(handle.shutdown(Duration::from_secs(60)));
            if secure {
                assert_eq!(called.load(Ordering::SeqCst), 0, "{driver:?}: a handler ran without TLS");
            }
            let peers = peers.lock().unwrap();
            assert!(!peers.contains(&Peer::Unix), "{driver:?}: a client of a TCP port without an address");
        }
    }
}

/// A socket that counts what it receives.
struct Counted {
    socket: TcpStream,
    received: u64,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.socket.read(buffer)?;
        self.received += n as u64;
        Ok(n)
    }
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// Each record adds 22 bytes: how many there are tells how often something was sent.
#[test]
fn consecutive_pings_are_answered_together() {
    let server = Running::start(false, Limits::default());
    let StreamOwned { conn, sock: socket } = server.client(&rustls::version::TLS13);
    let mut client = StreamOwned::new(conn, Counted { socket, received: 0 });
    client
        .write_all(
            b"GET /socket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
              Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\x81\x07welcome") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let before = client.sock.received;
    let count = 10_900;
    client.write_all(&b"\x89\x80\0\0\0\0".repeat(count)).unwrap();
    let mut pongs = vec![0; 2 * count];
    client.read_exact(&mut pongs).unwrap();
    assert!(pongs == b"\x8a\0".repeat(count), "each has its answer");
    let received = client.sock.received - before;
    assert!(received < 4 * count as u64, "{received} bytes for {count} pongs of two");
}

#[test]
fn curl_agrees() {
    let server = Running::start(false, Limits::default());
    let cert = server.folder.path().join("cert.pem");
    for (path, expected) in [("/small", b"small\n".to_vec()), ("/file", content(FILE_LENGTH)), ("/mixed", mixed())] {
        let out = std::process::Command::new("curl")
            .args(["--silent", "--show-error", "--fail", "--max-time", "60", "--cacert"])
            .arg(&cert)
            .arg(format!("https://localhost:{}{path}", server.address.port()))
            .args(["--resolve", &format!("localhost:{}:127.0.0.1", server.address.port())])
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(out.stdout == expected, "{path}");
    }
}

/// A proxy names its client before the TLS handshake, in one piece with it and alone.
#[test]
fn a_proxy_header_comes_before_tls() {
    let whose = |request: Request| {
        format!("{} {}", request.client_ip().map_or_else(String::new, |ip| ip.to_string()), request.scheme())
    };
    let running = Running::with(tempfile::tempdir().unwrap(), false, whose, |builder| {
        builder.trusted_proxies(["127.0.0.1"]).proxy_protocol(true)
    });
    let header = b"PROXY TCP6 2001:db8::7 2001:db8::1 4000 443\r\n";
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for with_hello in [false, true] {
            let mut client = running.client(version);
            let mut first = header.to_vec();
            if with_hello {
                client.conn.write_tls(&mut first).unwrap();
            }
            client.sock.write_all(&first).unwrap();
            for _ in 0..2 {
                assert_eq!(get(&mut client, "/"), (200, b"2001:db8::7 https".to_vec()));
            }
        }
    }
    // TLS without the header.
    let mut client = running.client(&rustls::version::TLS13);
    assert!(client.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").and_then(|()| client.read(&mut [0])).is_err());
}
