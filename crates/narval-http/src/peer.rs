use std::net::SocketAddr;

/// The client's side of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP client.
    Tcp(SocketAddr),
    /// A client on a unix socket.
    Unix,
}
