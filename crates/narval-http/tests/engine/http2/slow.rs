//! Slow and silent clients on HTTP/2: the deadlines of HTTP/1 apply, and memory is bounded.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use narval_http::Limits;

use super::client::*;
use super::server::{Site, certificate};
use crate::harness::{PATIENCE, eventually, on_each_driver, unhurried};
use crate::stopping::{Process, example};

const SOON: Duration = Duration::from_secs(2);

/// Every client that stops within something is disconnected after the timeout for that, here two seconds; a test that waits
/// for another timeout, which is an hour, fails because it takes longer than [`PATIENCE`].
fn is_disconnected(limits: Limits, stop: impl Fn(&mut Client), start: impl Fn(std::net::SocketAddr) -> Client) {
    on_each_driver(|driver| {
        let (site, server) = Site::start(driver, limits.clone());
        let started = Instant::now();
        let mut client = start(server.address);
        stop(&mut client);
        client.wait_for_end();
        assert!(started.elapsed() >= SOON / 2, "disconnected at once");
        Client::start(server.address).still_serves();
        site.open_gate();
    });
}

#[test]
fn a_silent_client() {
    is_disconnected(Limits { head_timeout: SOON, ..unhurried() }, |_| {}, Client::silent);
}

#[test]
fn an_incomplete_preface() {
    let limits = Limits { head_timeout: SOON, ..unhurried() };
    is_disconnected(limits, |client| client.send("PRI * HTTP/2.0\r\n"), Client::silent);
}

#[test]
fn an_incomplete_frame() {
    let limits = Limits { head_timeout: SOON, ..unhurried() };
    is_disconnected(limits, |client| client.send([0, 0, 8, PING]), Client::start);
}

#[test]
fn an_incomplete_header_block() {
    let limits = Limits { head_timeout: SOON, ..unhurried() };
    is_disconnected(limits, |client| client.send(frame(HEADERS, END_STREAM, 1, block(&get("/")))), Client::start);
}

#[test]
fn a_connection_without_streams() {
    let limits = Limits { keep_alive_timeout: SOON, ..unhurried() };
    is_disconnected(limits, Client::still_serves, Client::start);
}

/// PING does not keep a connection open: the idle deadline is about requests.
#[test]
fn a_connection_that_only_pings() {
    let limits = Limits { keep_alive_timeout: SOON, ..unhurried() };
    on_each_driver(|driver| {
        let (_, server) = Site::start(driver, limits.clone());
        let mut client = Client::start(server.address);
        // The time begins with the end of a request.
        client.still_serves();
        let started = Instant::now();
        while client.try_send(frame(PING, 0, 0, [1; 8])).is_ok() && !client.ended_meanwhile() {
            assert!(started.elapsed() < PATIENCE, "kept open by PING");
            std::thread::sleep(SOON / 40);
        }
    });
}

/// A window that is never opened: the deadline for responses applies as for a full socket.
#[test]
fn a_window_that_is_never_opened() {
    let limits = Limits { write_stall_timeout: SOON, ..unhurried() };
    on_each_driver(|driver| {
        let (_, server) = Site::start(driver, limits.clone());
        let mut client = Client::with_settings(server.address, &[(INITIAL_WINDOW_SIZE, 0)]);
        let stream = client.get("/large");
        let ended = client.ends(stream);
        assert!(ended, "the stream waits for ever");
    });
}

/// The same with updates that are much too small.
#[test]
fn a_window_that_is_opened_one_byte_at_a_time() {
    let limits = Limits { write_stall_timeout: SOON, ..unhurried() };
    on_each_driver(|driver| {
        let (_, server) = Site::start(driver, limits.clone());
        let mut client = Client::with_settings(server.address, &[(INITIAL_WINDOW_SIZE, 0)]);
        let stream = client.get("/large");
        let started = Instant::now();
        while client.try_send(frame(WINDOW_UPDATE, 0, stream, 1_u32.to_be_bytes())).is_ok() {
            assert!(started.elapsed() < PATIENCE, "the stream goes on, a byte at a time");
            if client.ended_meanwhile() {
                break;
            }
            std::thread::sleep(SOON / 80);
        }
    });
}

/// A stalled request body: its stream is answered or reset, others continue.
#[test]
fn a_body_that_never_arrives() {
    let limits = Limits { body_stall_timeout: SOON, body_busy_timeout: SOON, ..unhurried() };
    on_each_driver(|driver| {
        let (_, server) = Site::start(driver, limits.clone());
        let mut client = Client::start(server.address);
        let stream = client.open(&post("/length"), false);
        client.send(frame(DATA, 0, stream, "some"));
        match client.outcome(stream) {
            Outcome::Response(response) => assert_eq!(response.status, 408),
            Outcome::Reset(_) => {}
        }
        client.still_serves();
    });
}

/// While bodies wait for a thread, a client must make progress in each `body_busy_timeout`. It has all of that time even if the
/// connection's timer fires earlier for another stream. An hour here, so that no machine is too slow.
#[test]
fn a_body_keeps_its_deadline_while_other_streams_wait() {
    on_each_driver(|driver| {
        let limits = Limits { streamed_bodies_max: 1, body_buffer_max: 1000, ..unhurried() };
        let (site, server) = Site::start(driver, limits);
        let mut client = Client::start(server.address);
        client.get("/ticks");
        let bodies: Vec<u32> = (0..2).map(|_| client.open(&post("/length"), false)).collect();
        for _ in 0..20 {
            for stream in &bodies {
                client.send(frame(DATA, 0, *stream, vec![7; 500]));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        for stream in bodies {
            client.send(frame(DATA, END_STREAM, stream, []));
            assert_eq!(client.response(stream).text(), "10000");
        }
        site.open_gate();
    });
}

/// Connections that request much on all their streams, and read nothing: memory is bounded as `docs/http2.md` says, to 2 MiB per
/// connection and 20 MiB for the process. `NARVAL_CONNECTIONS` changes their number.
#[test]
fn slow_readers_with_many_streams_take_bounded_memory() {
    let connections: usize = std::env::var("NARVAL_CONNECTIONS").map_or(24, |count| count.parse().unwrap());
    let [cert, key] = certificate().paths();
    let child = Command::new(example("https"))
        .args(["--port", "0", "--certificate"])
        .arg(cert)
        .arg("--key")
        .arg(key)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut process = Process { child };
    let mut line = String::new();
    BufReader::new(process.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().rsplit('/').next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    let mut clients: Vec<Client> = (0..connections)
        .map(|_| {
            let mut client = Client::with_settings(address, &[(INITIAL_WINDOW_SIZE, 0x7fff_ffff)]);
            client.window(0, 0x7fff_0000);
            for _ in 0..128 {
                client.get("/bytes/100000000");
            }
            client
        })
        .collect();
    // Each has received something, so all of their requests were read.
    for client in &mut clients {
        client.until(|frame| frame.kind == DATA);
    }
    let resident = (0..10).map(|_| {
        std::thread::sleep(Duration::from_millis(100));
        crate::memory::resident_kib(process.child.id())
    });
    let resident = resident.max().unwrap();
    eprintln!("{resident} KiB for {connections} connections");
    assert!(resident < 20 * 1024 + 2048 * connections as u64, "{resident} KiB for {connections} connections");
    clients[0].get("/");
}

/// With many connections, the kernel buffers little for each. Otherwise clients that read nothing use up the memory that it has for
/// all TCP connections of the machine.
#[test]
fn many_connections_limit_their_kernel_send_buffers() {
    on_each_driver(|driver| {
        let (_, server) = Site::start(driver, unhurried());
        let others: Vec<_> = (0..300).map(|_| TcpStream::connect(server.address).unwrap()).collect();
        eventually("all are accepted", || server.handle.counters().connections_open == 300);
        let mut client = Client::with_settings(server.address, &[(INITIAL_WINDOW_SIZE, 0x7fff_ffff)]);
        client.window(0, 0x7fff_0000);
        client.get("/endless");
        client.until(|frame| frame.kind == DATA);
        let mut before = 0;
        eventually("the server stops sending", || {
            std::thread::sleep(SOON / 8);
            let now = queued_bytes(server.address.port());
            std::mem::replace(&mut before, now) == now && now > 0
        });
        // 128 KiB, in packets of up to 64 KiB.
        assert!(before < 256 << 10, "{before} bytes wait in the kernel");
        drop(others);
    });
}

/// The most bytes that wait in the send buffer of a connection of this port (proc(5), `/proc/net/tcp`).
fn queued_bytes(port: u16) -> u64 {
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!(":{port:04X}");
    let queues = sockets.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let is_local = fields.next()?.ends_with(&local);
        u64::from_str_radix(fields.nth(2)?.split(':').next()?, 16).ok().filter(|_| is_local)
    });
    queues.max().unwrap()
}

impl Client {
    /// Whether a stream or the connection ends.
    fn ends(&mut self, stream: u32) -> bool {
        loop {
            match self.try_frame() {
                None => return true,
                Some(frame) if frame.kind == GOAWAY || (frame.kind == RST_STREAM && frame.stream == stream) => {
                    return true;
                }
                Some(_) => {}
            }
        }
    }
}
