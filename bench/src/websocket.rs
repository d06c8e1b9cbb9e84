//! The cost of WebSockets for a server: resident and kernel memory of idle ones, and the processor time of a message to
//! all of them.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::server::Server;
use crate::{Context, Result, failure, process};

/// One source address has some 28,000 ports for one destination.
const CONNECTIONS_PER_ADDRESS: usize = 20_000;
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// The sample key of RFC 6455, section 1.3. The server's answer to it is not checked.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
/// Time for a server to free what only the handshake needed.
const SETTLE: Duration = Duration::from_secs(2);

/// Opens WebSockets and prints by how much the server's memory grew.
///
/// # Errors
/// If the server does not switch protocols, or the limit on open files is too low.
pub fn run(server: &Server, connections: usize) -> Result<()> {
    raise_file_limit(connections + 100)?;
    let before = memory(server);
    let started = Instant::now();
    let mut open = Vec::with_capacity(connections);
    for number in 0..connections {
        let source = Ipv4Addr::from(0x7f00_0001 + u32::try_from(number / CONNECTIONS_PER_ADDRESS).unwrap_or(0));
        open.push(connect(server, source)?);
    }
    let opened = started.elapsed();
    std::thread::sleep(SETTLE);
    let after = memory(server);
    let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / connections as f64;
    println!(
        "  {:<16} {connections} idle WebSockets: {:.0} bytes of resident memory each, {:.0} bytes with the kernel's slabs \
         (both ends' sockets), opened in {:.2} s",
        server.name,
        each(before.0, after.0),
        each(before.0 + before.1, after.0 + after.1),
        opened.as_secs_f64()
    );
    Ok(())
}

/// Sends a message on one of many WebSockets, which the server broadcasts, and prints the cost of one delivery.
///
/// # Errors
/// If the server does not switch protocols, or sends something else.
pub fn broadcast(server: &Server, connections: usize, bytes: usize, rounds: usize) -> Result<()> {
    let mut open = Vec::with_capacity(connections);
    for number in 0..connections {
        let source = Ipv4Addr::from(0x7f00_0001 + u32::try_from(number / CONNECTIONS_PER_ADDRESS).unwrap_or(0));
        open.push(connect(server, source)?);
    }
    std::thread::sleep(SETTLE);
    let length = u16::try_from(bytes).ok().filter(|length| *length >= 126);
    let length =
        length.ok_or_else(|| failure!("a message of {bytes} bytes: 126 to 65535 are supported"))?.to_be_bytes();
    // A binary message in one frame, masked with zeros. The server's frame has no mask.
    let sent = [b"\x82\xfe".as_slice(), &length, &[0; 4], &vec![0x5a; bytes]].concat();
    let expected = [b"\x82\x7e".as_slice(), &length, &vec![0x5a; bytes]].concat();
    let mut received = vec![0; expected.len()];
    let resident = |server: &Server| server.pid.map_or(0, |pid| process::resident_bytes(pid).0);
    let cpu = |server: &Server| server.pid.map(process::CpuTime::of);
    let (resident_before, cpu_before, started) = (resident(server), cpu(server), Instant::now());
    for _ in 0..rounds {
        let mut first = open.first().ok_or_else(|| failure!("no connections"))?;
        first.write_all(&sent).context(|| "write".to_owned())?;
        for mut socket in &open {
            socket.read_exact(&mut received).context(|| format!("{}: read", server.name))?;
            if received != expected {
                return Err(failure!("{}: sent something else than the message", server.name));
            }
        }
    }
    let elapsed = started.elapsed();
    let cpu_ns = cpu(server).zip(cpu_before).map_or(0, |(now, before)| now.since(before));
    let deliveries = (connections * rounds) as f64;
    println!(
        "  {:<16} {bytes} bytes to {connections} WebSockets, {rounds} times: {:.2} µs of processor time per delivery, \
         {:.0} ms until all had read it (their reading included), {} KiB more resident memory",
        server.name,
        cpu_ns as f64 / 1000.0 / deliveries,
        elapsed.as_secs_f64() * 1000.0 / rounds as f64,
        resident(server).saturating_sub(resident_before) / 1024
    );
    Ok(())
}

/// Resident bytes of the server, and bytes of the kernel's slabs.
fn memory(server: &Server) -> (u64, u64) {
    let resident = server.pid.map(|pid| process::resident_bytes(pid).0).unwrap_or(0);
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let slab = text.lines().find_map(|line| line.strip_prefix("Slab:")?.split_whitespace().next()?.parse::<u64>().ok());
    (resident, slab.unwrap_or(0) * 1024)
}

fn connect(server: &Server, source: Ipv4Addr) -> Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).context(|| "socket".to_owned())?;
    bind(&socket, &SocketAddr::from((source, 0))).context(|| format!("cannot bind {source}"))?;
    connect(&socket, &server.base.address).context(|| format!("cannot connect to {}", server.base.address))?;
    let mut stream = TcpStream::from(socket);
    let path = if server.base.path.is_empty() { "/" } else { &server.base.path };
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: {KEY}\r\n\r\n",
        server.base.authority
    );
    stream.write_all(request.as_bytes()).context(|| "write".to_owned())?;
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = stream.read(&mut buffer).context(|| "read".to_owned())?;
        if count == 0 || head.len() > HEAD_BYTES_MAX {
            return Err(failure!("{}: no answer to the WebSocket handshake", server.name));
        }
        head.extend_from_slice(buffer.get(..count).unwrap_or_default());
    }
    if head.starts_with(b"HTTP/1.1 101 ") {
        Ok(stream)
    } else {
        let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
        Err(failure!("{}: not a WebSocket: {line}", server.name))
    }
}

/// Raises this process's limit on open files to the hard limit; servers started from here inherit it.
///
/// # Errors
/// If the hard limit is too low.
pub fn raise_file_limit(files: usize) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let wanted = files as u64;
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let maximum = limit.maximum.map(|maximum| maximum.max(wanted));
    let result = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    result.context(|| format!("cannot raise the limit of open files to {files} (ulimit -n)"))
}
