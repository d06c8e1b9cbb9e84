//! A TCP proxy that makes the loopback interface resemble a distant and unreliable server. It delays
//! every byte, and can cut connections in the middle of a response.
//!
//! ```no_run
//! # fn main() -> std::io::Result<()> {
//! use narval_bench::proxy::{Proxy, ProxyOptions};
//! let server = "127.0.0.1:8080".parse().map_err(std::io::Error::other)?;
//! let far = Proxy::start(ProxyOptions {
//!     round_trip: std::time::Duration::from_millis(50),
//!     ..ProxyOptions::to(server)
//! })?;
//! println!("http://{}", far.address());
//! # Ok(())
//! # }
//! ```

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes in transit in one direction of one connection: chunks × their size.
const CHUNKS_UNDER_WAY_MAX: usize = 256;
const CHUNK_BYTES: usize = 64 * 1024;

/// What the proxy does with each connection.
#[derive(Debug, Clone)]
pub struct ProxyOptions {
    /// The address to forward connections to.
    pub target: SocketAddr,
    /// The address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Each direction is delayed by half of it, and the first request by one more: the TCP handshake
    /// with a distant server takes one round trip, with the proxy none.
    pub round_trip: Duration,
    /// Cut a connection after this many bytes from the target.
    pub cut_after_bytes: Option<u64>,
    /// Cut at most this many connections.
    pub cuts_max: u64,
}

impl ProxyOptions {
    /// Forwards everything without delay.
    pub fn to(target: SocketAddr) -> ProxyOptions {
        ProxyOptions {
            target,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            round_trip: Duration::ZERO,
            cut_after_bytes: None,
            cuts_max: u64::MAX,
        }
    }
}

/// A running proxy; it stops accepting when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: ProxyOptions,
    stopped: AtomicBool,
    connections: AtomicU64,
    cuts: AtomicU64,
    bytes_back: AtomicU64,
    turns: AtomicU64,
}

impl Proxy {
    /// Starts to listen.
    ///
    /// # Errors
    /// If it cannot listen on the address.
    pub fn start(options: ProxyOptions) -> io::Result<Proxy> {
        let listener = TcpListener::bind(options.listen)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            options,
            stopped: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            bytes_back: AtomicU64::new(0),
            turns: AtomicU64::new(0),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.stopped.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(client) = client {
                    accepting.connections.fetch_add(1, Ordering::SeqCst);
                    let shared = Arc::clone(&accepting);
                    thread::spawn(move || shared.carry(client));
                }
            }
        });
        Ok(Proxy { address, shared })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Connections cut so far.
    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::SeqCst)
    }

    /// Bytes from the target that were forwarded.
    pub fn bytes_back(&self) -> u64 {
        self.shared.bytes_back.load(Ordering::SeqCst)
    }

    /// How often a client has waited for the target: bytes that were the first of a connection, or that followed a response on it.
    pub fn turns(&self) -> u64 {
        self.shared.turns.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // wakes the accepting thread; if that fails, the thread has already ended
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    /// Forwards one connection in both directions. An error on either side ends both.
    fn carry(self: Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.options.target) else {
            return; // dropping the client's socket tells the client
        };
        for socket in [&client, &server] {
            // an error only affects the delay
            let _ = socket.set_nodelay(true);
        }
        let half = self.options.round_trip / 2;
        let asked = AtomicBool::new(false);
        let mut left = self.options.cut_after_bytes;
        let passes = |bytes: &[u8]| {
            let allowed = left.map_or(bytes.len(), |left| usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len()));
            let whole = allowed == bytes.len() || !self.may_cut();
            let count = if whole { bytes.len() } else { allowed };
            left = left.map(|left| left.saturating_sub(count as u64));
            self.bytes_back.fetch_add(count as u64, Ordering::SeqCst);
            asked.store(false, Ordering::SeqCst);
            count
        };
        let asks = |bytes: &[u8]| {
            if !asked.swap(true, Ordering::SeqCst) {
                self.turns.fetch_add(1, Ordering::SeqCst);
            }
            bytes.len()
        };
        thread::scope(|scope| {
            scope.spawn(|| delayed(&client, &server, half * 3, half, asks));
            delayed(&server, &client, half, half, passes);
        });
    }

    fn may_cut(&self) -> bool {
        let allowed = |cuts: u64| (cuts < self.options.cuts_max).then_some(cuts + 1);
        self.cuts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, allowed).is_ok()
    }
}

/// Copies until the end of the stream, each chunk `delay` after it arrived (the first one
/// `first_delay`). `passes` sees each chunk and returns how much of it may pass. Less than all of it
/// cuts the connection, as does an error on either side.
fn delayed(
    mut from: &TcpStream,
    mut to: &TcpStream,
    first_delay: Duration,
    delay: Duration,
    mut passes: impl FnMut(&[u8]) -> usize,
) {
    let (queue, due) = sync_channel::<(Instant, Vec<u8>)>(CHUNKS_UNDER_WAY_MAX);
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut buffer = vec![0; CHUNK_BYTES];
            let first_due = Instant::now() + first_delay;
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                let Some(bytes) = buffer.get(..count) else { return };
                let due = (Instant::now() + delay).max(first_due);
                if queue.send((due, bytes.to_vec())).is_err() {
                    return;
                }
            }
        });
        let mut whole = true;
        for (due, bytes) in due {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            let count = passes(&bytes);
            let sent = bytes.get(..count).is_some_and(|bytes| to.write_all(bytes).is_ok());
            whole = sent && count == bytes.len();
            if !whole {
                break;
            }
        }
        if whole {
            // a half-closed connection stays half-closed; if the peer has disconnected there is nothing to close
            let _ = to.shutdown(Shutdown::Write);
        } else {
            // shut down both sides, which also ends the reading thread and the other direction
            let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers each line with itself.
    fn line_echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(count @ 1..) = stream.read(&mut bytes) {
                        stream.write_all(&bytes[..count]).unwrap();
                    }
                });
            }
        });
        address
    }

    #[test]
    fn a_request_takes_the_round_trip_and_the_first_one_the_handshake_too() {
        let round_trip = Duration::from_millis(40);
        let proxy = Proxy::start(ProxyOptions { round_trip, ..ProxyOptions::to(line_echo()) }).unwrap();
        let mut stream = TcpStream::connect(proxy.address()).unwrap();
        for expected in [round_trip * 2, round_trip, round_trip] {
            let started = Instant::now();
            stream.write_all(b"hello").unwrap();
            let mut answer = [0; 5];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, b"hello");
            assert!(started.elapsed() >= expected, "{:?} < {expected:?}", started.elapsed());
        }
        assert_eq!(proxy.turns(), 3);
    }

    #[test]
    fn a_connection_is_cut_after_so_many_bytes_and_only_so_often() {
        let options = ProxyOptions { cut_after_bytes: Some(3), cuts_max: 1, ..ProxyOptions::to(line_echo()) };
        let proxy = Proxy::start(options).unwrap();
        let ask = || {
            let mut stream = TcpStream::connect(proxy.address()).unwrap();
            stream.write_all(b"hello").unwrap();
            let mut answer = [0; 5];
            stream.read_exact(&mut answer)
        };
        assert!(ask().is_err());
        assert!(ask().is_ok());
        assert_eq!((proxy.connections(), proxy.cuts()), (2, 1));
    }
}
