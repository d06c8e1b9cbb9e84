use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Random;
use crate::peer::Peer;

/// The address of all TCP clients (RFC 5737).
const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 1024);

/// More than the server sends in a handshake.
const HANDSHAKE_BYTES: usize = 8 * 1024;

/// The simulated network: connections between simulated clients and the server.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    state: Arc<Mutex<State>>,
    now: Arc<AtomicU64>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) random: Random,
    pub(crate) wires: Vec<Wire>,
    /// Connections that have not been accepted.
    backlog: VecDeque<usize>,
}

/// What a client speaks from its first byte on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Speaks {
    #[default]
    Http1,
    /// Without TLS, which no real client does.
    Http2,
    Tls,
}

/// One connection.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    speaks: Speaks,
    is_accepted: bool,
    /// In flight to the server.
    pub(crate) to_server: VecDeque<u8>,
    /// The client has shut down its side.
    pub(crate) client_ended: bool,
    /// The client has reset the connection.
    pub(crate) client_reset: bool,
    /// What the server sent.
    pub(crate) to_client: Vec<u8>,
    /// How many more bytes the client accepts now.
    pub(crate) window: usize,
    /// The server's socket counts as writable only if it accepts more than this.
    pub(crate) unwritable_up_to: usize,
    /// The last send was short.
    pub(crate) was_short: bool,
    /// The server has shut down its side.
    pub(crate) server_ended: bool,
    /// The server has closed the connection, with a reset if `server_aborts`.
    pub(crate) server_closed: bool,
    pub(crate) server_aborts: bool,
    /// The server sends nothing more.
    pub(crate) is_cut_off: bool,
}

/// The server's end of a connection.
#[derive(Debug)]
pub(crate) struct SimSocket {
    network: Network,
    wire: usize,
}

impl Network {
    pub(crate) fn new(seed: u64) -> Self {
        let state = State { random: Random::new(seed), wires: Vec::new(), backlog: VecDeque::new() };
        Self { state: Arc::new(Mutex::new(state)), now: Arc::new(AtomicU64::new(1000)) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The simulated time, for the server's clock.
    pub(crate) fn time(&self) -> Arc<AtomicU64> {
        self.now.clone()
    }

    /// Advances the time.
    pub(crate) fn pass(&self, millis: u64) {
        self.now.fetch_add(millis, Ordering::Relaxed);
    }

    /// The number of bytes in flight to the server, and of bytes that it has sent.
    pub(crate) fn traffic(&self) -> (usize, usize) {
        let state = self.lock();
        state.wires.iter().fold((0, 0), |(to, from), wire| (to + wire.to_server.len(), from + wire.to_client.len()))
    }

    /// Client: opens a connection.
    pub(crate) fn connect(&self, speaks: Speaks) -> usize {
        let mut state = self.lock();
        // A handshake must fit into the socket, as it always does into a real one.
        let window = if speaks == Speaks::Tls { HANDSHAKE_BYTES } else { 0 };
        state.wires.push(Wire { speaks, window, ..Wire::default() });
        let wire = state.wires.len() - 1;
        state.backlog.push_back(wire);
        wire
    }

    /// Server: accepts a connection.
    pub(crate) fn accept(&self) -> Option<(SimSocket, Peer)> {
        let mut state = self.lock();
        let at = state.backlog.pop_front()?;
        let wire = state.wires.get_mut(at)?;
        wire.is_accepted = true;
        // Connections over TCP are the ones with TLS.
        let peer = if wire.speaks == Speaks::Tls { Peer::Tcp(CLIENT) } else { Peer::Unix };
        Some((SimSocket { network: self.clone(), wire: at }, peer))
    }

    /// The number of connections that the server has accepted and not closed.
    pub(crate) fn held(&self) -> usize {
        self.lock().wires.iter().filter(|wire| wire.is_accepted && !wire.server_closed).count()
    }
}

impl SimSocket {
    /// What the simulated driver listens on. It never looks at it.
    pub(crate) fn listener() -> Self {
        Self { network: Network::new(0), wire: usize::MAX }
    }

    fn wire<T>(&self, act: impl FnOnce(&mut Wire, &mut Random) -> T) -> Option<T> {
        let mut state = self.network.lock();
        let State { wires, random, .. } = &mut *state;
        wires.get_mut(self.wire).map(|wire| act(wire, random))
    }

    pub(crate) fn speaks_http2(&self) -> bool {
        self.wire(|wire, _| wire.speaks == Speaks::Http2).unwrap_or(false)
    }

    /// Whether receiving would not block.
    pub(crate) fn is_readable(&self) -> bool {
        self.wire(|wire, _| !wire.to_server.is_empty() || wire.client_ended || wire.client_reset).unwrap_or(true)
    }

    /// Whether there are bytes to receive.
    pub(crate) fn has_unread(&self) -> bool {
        self.wire(|wire, _| !wire.to_server.is_empty()).unwrap_or(false)
    }

    /// Whether sending would not block.
    pub(crate) fn is_writable(&self) -> bool {
        self.wire(|wire, _| wire.window > wire.unwritable_up_to || wire.client_reset).unwrap_or(true)
    }

    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wire(|wire, random| {
            if wire.client_reset {
                return Err(io::ErrorKind::ConnectionReset.into());
            }
            if wire.to_server.is_empty() {
                return if wire.client_ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
            }
            let most = wire.to_server.len().min(buffer.len());
            let n = if random.one_in(3) { 1 + random.below(most) } else { most };
            for (place, byte) in buffer.iter_mut().zip(wire.to_server.drain(..n)) {
                *place = byte;
            }
            Ok(n)
        })
        .unwrap_or(Ok(0))
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.wire(|wire, random| {
            assert!(!wire.server_ended && !wire.server_closed, "the server sends after its end");
            if wire.client_reset || wire.is_cut_off {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if bytes.is_empty() {
                return Ok(0);
            }
            let most = wire.window.min(bytes.len());
            wire.was_short = most == 0;
            if most == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let n = if random.one_in(3) { 1 + random.below(most) } else { most };
            wire.was_short = n < bytes.len();
            wire.window -= n;
            wire.to_client.extend_from_slice(bytes.get(..n).unwrap_or_default());
            Ok(n)
        })
        .unwrap_or_else(|| Err(io::ErrorKind::BrokenPipe.into()))
    }

    pub(crate) fn send_file(&self, file: &File, offset: u64, count: usize) -> io::Result<usize> {
        let mut bytes = vec![0; count.min(64 * 1024)];
        let n = file.read_at(&mut bytes, offset)?;
        bytes.truncate(n);
        self.send(&bytes)
    }

    pub(crate) fn end_output(&self) {
        self.wire(|wire, _| wire.server_ended = true);
    }

    pub(crate) fn abort(&self) {
        self.wire(|wire, _| wire.server_aborts = true);
    }

    pub(crate) fn cut_off(&self) {
        self.wire(|wire, _| wire.is_cut_off = true);
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        self.wire(|wire, _| wire.server_closed = true);
    }
}
