//! What clients do not read is bounded for the whole process. The server is a process of its own, so that its memory can be
//! measured.
#![cfg(all(feature = "tls", target_env = "gnu"))]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use narval_http::codecs::ws::deflate;
use narval_http::tls::{Identity, TlsAcceptor, TlsConfig};
use narval_http::ws::{CloseCode, Options, Upgrade, UpgradeError, WebSocket, WsCompression, WsEvent, WsLimits};
use narval_http::{
    Body, FileRange, Limits, Listen, ListenAddress, Request, Response, Server, Snapshot, StatusCode,
    give_back_large_blocks,
};

use crate::harness::{self, PATIENCE, eventually, on_each_driver, unhurried};
use crate::http2;
use crate::http2::client::{Client, DATA, END_HEADERS, END_STREAM, HEADERS, INITIAL_WINDOW_SIZE, block, frame, get};
use crate::http2::server::certificate;
use crate::stopping::Process;

/// Tells the test binary to be the server of one of its tests.
const IS_SERVER: &str = "NARVAL_TEST_OUTPUT_MEMORY_SERVER";
const CERTIFICATE: &str = "NARVAL_TEST_CERTIFICATE";
const KEY: &str = "NARVAL_TEST_KEY";
const LIMIT: usize = 64 << 20;
/// What a server may use beyond the limit and what it had at its start, and what it may keep.
const BEYOND_KIB: u64 = 64 << 10;
const KEPT_KIB: u64 = 32 << 10;
/// One answer in memory; no client of the tests reads it.
const ANSWER: usize = 2 << 20;
const MESSAGE: usize = 8 << 20;

type Source = Arc<OnceLock<Box<dyn Fn() -> Snapshot + Send + Sync>>>;

/// Not a test: the server of the others, which runs until its input ends.
#[test]
fn the_server() {
    if std::env::var_os(IS_SERVER).is_none() {
        return;
    }
    give_back_large_blocks();
    let source = Source::default();
    let counters = source.clone();
    let handler = move |request: Request| match request.path() {
        "/large" => Ok(Response::new(StatusCode::OK).body(Body::bytes(vec![7; ANSWER]))),
        "/ws" => echo(&request),
        "/metrics" => Ok(Response::text(StatusCode::OK, counters.get().expect("runs")().openmetrics())),
        _ => Ok(Response::text(StatusCode::OK, "hello\n")),
    };
    let limits = Limits { output_memory_max: LIMIT, ..unhurried() };
    let mut builder =
        Server::builder(handler).listen(Listen::Tcp(([127, 0, 0, 1], 0).into())).limits(limits).workers(4);
    if let (Ok(cert), Ok(key)) = (std::env::var(CERTIFICATE), std::env::var(KEY)) {
        let identities = vec![Identity { cert: cert.into(), key: key.into(), ocsp: None }];
        let acceptor = TlsAcceptor::new(TlsConfig { identities, ..TlsConfig::default() }).unwrap();
        builder = builder.tls(Arc::new(acceptor)).http2(true);
    }
    let handle = builder.build().unwrap().spawn().unwrap();
    assert!(source.set(Box::new(handle.counter_source())).is_ok());
    let Some(ListenAddress::Tcp(address)) = handle.addresses().first().cloned() else { panic!("listens on TCP") };
    println!("\nserves {address}");
    drop(std::io::stdin().read(&mut [0]));
    handle.shutdown(Duration::ZERO);
}

fn echo(request: &Request) -> Result<Response, UpgradeError> {
    let options = Options {
        limits: WsLimits { message_bytes_max: MESSAGE },
        ping_interval: None,
        write_timeout: Duration::from_secs(3600),
        ..Options::default()
    };
    // Messages come compressed, and are sent as they are.
    let compression = WsCompression { bytes_min: usize::MAX, ..WsCompression::default() };
    let upgrade = Upgrade::new(request)?.compress(compression)?.options(options);
    Ok(upgrade.accept(|socket: &WebSocket, event| {
        if let WsEvent::Message(message) = event
            && !socket.send(message).is_accepted()
        {
            socket.close(CloseCode::POLICY_VIOLATION, "too slow");
        }
    }))
}

/// The server's process.
struct Served {
    process: Process,
    address: SocketAddr,
    /// Its memory at the start.
    start_kib: u64,
    /// What it prints has a reader.
    _output: ChildStdout,
}

impl Served {
    fn start(tls: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "output_memory::the_server", "--nocapture"]).env(IS_SERVER, "1");
        if tls {
            let [cert, key] = certificate().paths();
            command.env(CERTIFICATE, cert).env(KEY, key);
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut process = Process { child };
        let mut output = BufReader::new(process.child.stdout.take().unwrap());
        let line = output.by_ref().lines().map_while(Result::ok).find(|line| line.starts_with("serves ")).unwrap();
        let address = line.trim_start_matches("serves ").parse().unwrap();
        let start_kib = status_kib(process.child.id(), "VmRSS:");
        Self { process, address, start_kib, _output: output.into_inner() }
    }

    /// The most that the process used at any time stays within the limit.
    fn check_peak(&self) {
        let used = status_kib(self.process.child.id(), "VmHWM:") - self.start_kib;
        let most = (LIMIT >> 10) as u64 + BEYOND_KIB;
        println!("{} MiB at most, of {} MiB", used >> 10, most >> 10);
        assert!(used <= most, "{} MiB were used, of {} MiB", used >> 10, most >> 10);
    }

    fn is_given_back(&self) {
        eventually("memory is given back", || {
            // Something happens on the server.
            drop(TcpStream::connect(self.address));
            status_kib(self.process.child.id(), "VmRSS:") <= self.start_kib + KEPT_KIB
        });
    }
}

fn metric(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).expect(name);
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Without the budget, 160 answers of 2 MiB would be held.
#[test]
fn answers_in_memory_that_nobody_reads() {
    let server = Served::start(true);
    let mut attackers: Vec<Client> = Vec::new();
    for _ in 0..10 {
        let mut client = Client::with_settings(server.address, &[(INITIAL_WINDOW_SIZE, 0)]);
        // It fails once the connection is closed.
        let _ = (0..16).try_for_each(|_| {
            let stream = client.stream();
            client.try_send(frame(HEADERS, END_HEADERS | END_STREAM, stream, block(&get("/large"))))
        });
        attackers.push(client);
    }
    // What small requests need is there, and those that hold most make room for larger ones.
    let started = Instant::now();
    loop {
        let mut client = Client::start(server.address);
        client.still_serves();
        let stream = client.get("/large");
        let response = client.response(stream);
        if response.status == 200 {
            assert_eq!(response.body.len(), ANSWER);
            break;
        }
        assert_eq!(response.status, 503);
        assert!(response.fields.iter().any(|(name, _)| name == "retry-after"), "{response:?}");
        assert!(started.elapsed() < PATIENCE, "no room is made");
    }
    let mut client = Client::start(server.address);
    let stream = client.get("/metrics");
    let text = client.response(stream).text();
    assert_eq!(metric(&text, "narval_http_output_memory_max_bytes"), LIMIT as u64);
    assert!(metric(&text, "narval_http_output_memory_bytes") <= LIMIT as u64);
    let acted = ["closed", "refused"].map(|what| metric(&text, &format!("narval_http_output_memory_{what}_total")));
    assert!(acted.iter().sum::<u64>() > 0, "{acted:?}");
    server.check_peak();
    drop((attackers, client));
    server.is_given_back();
}

/// A WebSocket whose client writes what it is told, and reads nothing.
fn websocket(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    let head = "GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    stream
}

/// A binary message in one frame, with an empty mask. `rsv1`: it is compressed.
fn message(rsv1: bool, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![if rsv1 { 0xc2 } else { 0x82 }];
    match u16::try_from(payload.len()) {
        Ok(length) => frame.extend([&[0x80 | 126], &length.to_be_bytes()[..]].concat()),
        Err(_) => frame.extend([&[0x80 | 127], &(payload.len() as u64).to_be_bytes()[..]].concat()),
    }
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(payload);
    frame
}

/// Without the budget, each of 200 sockets would hold its inbox, its outbox and most of a message: 1.5 MiB.
#[test]
fn websockets_that_send_and_read_nothing() {
    let server = Served::start(false);
    let message = message(false, &vec![7; 1 << 20]);
    let mut attackers: Vec<TcpStream> = (0..200).map(|_| websocket(server.address)).collect();
    std::thread::scope(|scope| {
        for part in attackers.chunks_mut(50) {
            let message = &message;
            scope.spawn(move || {
                for stream in part {
                    // Until it is not taken any longer, or the connection is closed.
                    let _ = (0..16).try_for_each(|_| stream.write_all(message));
                }
            });
        }
    });
    let mut client = harness::Client::new(TcpStream::connect(server.address).unwrap());
    assert_eq!(client.get("/").text(), "hello\n");
    let text = client.get("/metrics").text();
    assert!(metric(&text, "narval_http_output_memory_closed_total") > 0, "{text}");
    server.check_peak();
    drop((attackers, client));
    server.is_given_back();
}

/// Without the budget, each of 40 sockets would hold 16 MiB for 24 KiB of input; the kernel takes some.
#[test]
fn compressed_bombs() {
    let server = Served::start(false);
    let settings = deflate::Settings { level: 6, window_bits: 15 };
    let bomb = message(true, &deflate::compress(settings, &vec![0; MESSAGE]));
    assert!(bomb.len() < 16_000);
    let mut attackers: Vec<TcpStream> = (0..40).map(|_| websocket(server.address)).collect();
    for stream in &mut attackers {
        // It fails once the connection is closed.
        let _ = stream.write_all(&bomb.repeat(3));
    }
    let mut client = harness::Client::new(TcpStream::connect(server.address).unwrap());
    assert_eq!(client.get("/").text(), "hello\n");
    eventually("something is refused or closed", || {
        let text = client.get("/metrics").text();
        ["closed", "refused"].iter().any(|what| metric(&text, &format!("narval_http_output_memory_{what}_total")) > 0)
    });
    server.check_peak();
    drop((attackers, client));
    server.is_given_back();
}

fn status_kib(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// With 128 KiB of sealed records each, 40 slow downloads would need 5 MiB; when memory is tight, they hold less instead of
/// being closed.
#[test]
fn slow_downloads_hold_less_when_memory_is_tight() {
    slow_downloads_of(|| tempfile::tempfile().unwrap());
}

/// The same where the shard cannot tell whether reading blocks, as on tmpfs: workers read, in pieces of 256 KiB.
#[test]
fn slow_downloads_read_by_workers_hold_less_when_memory_is_tight() {
    slow_downloads_of(|| tempfile::tempfile_in("/dev/shm").unwrap());
}

fn slow_downloads_of(file: fn() -> std::fs::File) {
    on_each_driver(|driver| {
        let file = file();
        file.set_len(64 << 20).unwrap();
        let file = Arc::new(file);
        let handler = move |_: Request| {
            let range = FileRange { file: file.clone(), offset: 0, length: 64 << 20 };
            Response::new(StatusCode::OK).body(Body::file(range))
        };
        let limits = Limits { output_memory_max: 3 << 20, ..unhurried() };
        let server = http2::server::serve(driver, limits, handler);
        let mut clients: Vec<Client> = Vec::new();
        for _ in 0..40 {
            let mut client = Client::with_settings(server.address, &[(INITIAL_WINDOW_SIZE, 1 << 30)]);
            client.window(0, 1 << 30);
            client.get("/file");
            clients.push(client);
        }
        eventually("the sockets are full", || {
            let before = server.handle.counters().output_memory_bytes;
            std::thread::sleep(Duration::from_millis(200));
            before > (2 << 20) && server.handle.counters().output_memory_bytes == before
        });
        assert_eq!(server.handle.counters().output_memory_closed, 0);
        clients.iter_mut().for_each(|client| drop(client.until(|frame| frame.kind == DATA)));
    });
}
