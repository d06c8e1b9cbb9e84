//! Who a request is from: the peer of its connection, and the client behind it if the peer is a trusted proxy.

mod proxies;
pub(crate) mod proxy_header;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;

pub(crate) use self::proxies::Proxies;
pub use self::proxies::{InvalidProxy, TrustedProxy};
use self::proxy_header::Source;

/// The client's side of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP client.
    Tcp(SocketAddr),
    /// A client on a unix socket.
    Unix,
}

impl Peer {
    /// Its address; an IPv4-mapped IPv6 address is returned as IPv4. `None` for a unix socket.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip().to_canonical()),
            Self::Unix => None,
        }
    }
}

/// What counts as one client in limits: an IPv4 address, or an IPv6 network of 64 bits, because one customer usually has at
/// least that. IPv4-mapped addresses count as IPv4.
///
/// ```
/// use narval_http::network;
///
/// let network = |text: &str| network(text.parse().unwrap()).to_string();
/// assert_eq!(network("::ffff:192.0.2.1"), "192.0.2.1");
/// assert_eq!(network("2001:db8::1:2:3:4"), "2001:db8::");
/// ```
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
    }
}

/// The other side of a connection: its peer, whether it uses TLS, its certificates, and whether it is a trusted proxy.
#[derive(Clone, Debug)]
pub struct Remote {
    peer: Peer,
    is_secure: bool,
    /// The trusted proxies, if the peer is one of them.
    proxies: Option<Arc<Proxies>>,
    /// What the peer has presented, if that is not nothing. Most have not, so this is one pointer.
    certificates: Option<Arc<Vec<Bytes>>>,
}

impl From<Peer> for Remote {
    /// A peer that is no trusted proxy, on a connection without TLS.
    fn from(peer: Peer) -> Self {
        Self { peer, is_secure: false, proxies: None, certificates: None }
    }
}

impl Remote {
    pub(crate) fn new(peer: Peer, is_secure: bool, proxies: Option<&Arc<Proxies>>) -> Self {
        let proxies = proxies.filter(|proxies| proxies.trust(&peer)).cloned();
        Self { peer, is_secure, proxies, certificates: None }
    }

    /// The same connection after a header of the PROXY protocol, which only trusted proxies send.
    pub(crate) fn after(&self, source: Source) -> Self {
        match source {
            Source::Address(address) => Self::new(Peer::Tcp(address), self.is_secure, self.proxies.as_ref()),
            // Of a client of whom the proxy knows nothing, the fields of its requests say nothing either.
            Source::Unknown => Self { proxies: None, ..self.clone() },
        }
    }

    /// The same peer after it has presented certificates, its own first.
    pub(crate) fn with_certificates(&self, chain: Vec<Bytes>) -> Self {
        Self { certificates: Some(Arc::new(chain)), ..self.clone() }
    }

    /// See [`HeadRef::peer_certificates`](crate::HeadRef::peer_certificates).
    pub(crate) fn certificates(&self) -> &[Bytes] {
        self.certificates.as_deref().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.is_secure
    }

    /// The trusted proxies, if the peer is one of them.
    pub(crate) fn proxies(&self) -> Option<&Proxies> {
        self.proxies.as_deref()
    }

    /// The network of the peer; `None` for a unix socket.
    pub(crate) fn network(&self) -> Option<IpAddr> {
        self.peer.ip().map(network)
    }

    /// The client whose connections are counted. `None` for unix sockets and trusted proxies, which are many clients.
    pub(crate) fn counted(&self) -> Option<IpAddr> {
        if self.proxies.is_some() { None } else { self.network() }
    }
}
