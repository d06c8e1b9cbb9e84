use std::net::SocketAddr;

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP client.
    Tcp(SocketAddr),
    /// A client on a unix socket.
    Unix,
}
