//! Listening sockets and their addresses.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use crate::io::socket::Socket;

/// What to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listen {
    /// An IPv4 or IPv6 address. Port 0 means any free port. An IPv6 address accepts only IPv6.
    Tcp(SocketAddr),
    /// A unix socket. A stale socket is replaced; one that is in use is an error.
    Unix(PathBuf),
    /// All sockets passed by the parent process (`LISTEN_FDS`, systemd.socket(5)).
    Inherited,
    /// A socket that the program has opened. It is closed when the server ends, and the file of a unix socket stays.
    Opened(OpenedListener),
}

/// A listening socket of the program: see [`Listen::Opened`], and make it by [`Listen::from`].
#[derive(Clone, Debug)]
pub struct OpenedListener(Arc<OwnedFd>);

impl PartialEq for OpenedListener {
    /// Whether they are the same socket.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for OpenedListener {}

impl From<TcpListener> for Listen {
    fn from(listener: TcpListener) -> Self {
        Self::Opened(OpenedListener(Arc::new(listener.into())))
    }
}

impl From<UnixListener> for Listen {
    fn from(listener: UnixListener) -> Self {
        Self::Opened(OpenedListener(Arc::new(listener.into())))
    }
}

/// The address of a listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// An IPv4 or IPv6 address, with the actual port.
    Tcp(SocketAddr),
    /// A unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Inherited => f.write_str("inherited sockets"),
            Self::Opened(_) => f.write_str("a socket of the program"),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "http://{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: Socket,
    pub(crate) address: ListenAddress,
    /// The socket's file was created by this server, and is removed when it ends.
    pub(crate) owned_path: Option<PathBuf>,
}

/// Opens the sockets of `listen`.
pub(crate) fn open(listen: &Listen, backlog: u32) -> io::Result<Vec<Listener>> {
    match listen {
        Listen::Tcp(address) => Ok(vec![tcp(*address, backlog)?]),
        Listen::Unix(path) => Ok(vec![unix(path, backlog)?]),
        Listen::Inherited => inherited(),
        Listen::Opened(OpenedListener(fd)) => Ok(vec![opened(fd.try_clone()?)?]),
    }
}

fn tcp(address: SocketAddr, backlog: u32) -> io::Result<Listener> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let fd = stream_socket(family)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&fd, true)?;
    }
    rustix::net::bind(&fd, &address)?;
    listener(fd, None, backlog)
}

fn unix(path: &Path, backlog: u32) -> io::Result<Listener> {
    let fd = stream_socket(AddressFamily::UNIX)?;
    let address = SocketAddrUnix::new(path)?;
    match rustix::net::bind(&fd, &address) {
        Err(rustix::io::Errno::ADDRINUSE) => {
            match UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
                _ => return Err(rustix::io::Errno::ADDRINUSE.into()),
            }
            rustix::net::bind(&fd, &address)?;
        }
        bound => bound?,
    }
    listener(fd, Some(path.to_owned()), backlog)
}

fn stream_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, None)?)
}

fn listener(fd: OwnedFd, owned_path: Option<PathBuf>, backlog: u32) -> io::Result<Listener> {
    rustix::net::listen(&fd, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    let address = prepare(fd.as_fd())?;
    Ok(Listener { socket: Socket::Os(fd), address, owned_path })
}

/// Sets up a listening socket; returns its address.
fn prepare(fd: BorrowedFd<'_>) -> io::Result<ListenAddress> {
    let name = rustix::net::getsockname(fd)?;
    if let Ok(address) = SocketAddr::try_from(name.clone()) {
        // Accepted sockets inherit this: a response that takes two sends must not wait for the client's delayed ACK.
        sockopt::set_tcp_nodelay(fd, true)?;
        return Ok(ListenAddress::Tcp(address));
    }
    let path = SocketAddrUnix::try_from(name)
        .ok()
        .and_then(|name| name.path().map(|path| path.to_string_lossy().into_owned()));
    Ok(ListenAddress::Unix(path.unwrap_or_default().into()))
}

fn inherited() -> io::Result<Vec<Listener>> {
    let mut passed = listenfd::ListenFd::from_env();
    let mut listeners = Vec::new();
    for at in 0..passed.len() {
        let fd: Option<OwnedFd> = match passed.take_tcp_listener(at) {
            Ok(listener) => listener.map(OwnedFd::from),
            Err(_) => passed.take_unix_listener(at)?.map(OwnedFd::from),
        };
        if let Some(fd) = fd {
            listeners.push(opened(fd)?);
        }
    }
    if listeners.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no socket was passed (LISTEN_FDS, LISTEN_PID)"));
    }
    Ok(listeners)
}

/// A socket that listens already.
fn opened(fd: OwnedFd) -> io::Result<Listener> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    let address = prepare(fd.as_fd())?;
    Ok(Listener { socket: Socket::Os(fd), address, owned_path: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backlog_is_the_one_that_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        for backlog in [1, 5] {
            let path = dir.path().join(backlog.to_string());
            let _listeners = open(&Listen::Unix(path.clone()), backlog).unwrap();
            let address = SocketAddrUnix::new(&path).unwrap();
            let mut waiting = Vec::new();
            // A non-blocking connect fails if the backlog is full, unix(7).
            let refused = loop {
                let client = stream_socket(AddressFamily::UNIX).unwrap();
                match rustix::net::connect(&client, &address) {
                    Ok(()) => waiting.push(client),
                    Err(error) => break error,
                }
            };
            assert_eq!((refused, waiting.len()), (rustix::io::Errno::AGAIN, backlog as usize + 1));
        }
    }
}
