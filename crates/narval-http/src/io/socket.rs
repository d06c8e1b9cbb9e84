use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendFlags, Shutdown, SocketAddrAny};

use crate::io::out_buf::OutBuf;
#[cfg(any(test, feature = "sim"))]
use crate::io::sim::SimSocket;
use crate::io::unsafe_calls::{self, bytes_in_flight};
use crate::peer::Peer;

/// A non-blocking stream socket of the kernel or of the simulated kernel.
#[derive(Debug)]
pub(crate) enum Socket {
    Os(OwnedFd),
    /// A socket of the simulated kernel.
    #[cfg(any(test, feature = "sim"))]
    Sim(SimSocket),
}

impl Socket {
    /// The descriptor, if there is one.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Os(fd) => Some(fd.as_fd()),
            #[cfg(any(test, feature = "sim"))]
            Self::Sim(_) => None,
        }
    }

    /// Whether it belongs to the simulated kernel.
    pub(crate) fn is_simulated(&self) -> bool {
        !matches!(self, Self::Os(_))
    }

    /// Receives into `buffer`. Returns 0 if the peer has ended its side.
    #[inline(always)]
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            #[cfg(any(test, feature = "sim"))]
            Self::Sim(socket) => socket.receive(buffer),
            Self::Os(fd) => loop {
                match rustix::net::recv(fd, &mut *buffer, rustix::net::RecvFlags::DONTWAIT) {
                    Ok((n, _)) => return Ok(n),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            },
        }
    }

    /// Sends without blocking. `more` says that a file or the connection's end follows immediately.
    #[inline(always)]
    pub(crate) fn send(&self, bytes: &[u8], more: bool) -> io::Result<usize> {
        match self {
            #[cfg(any(test, feature = "sim"))]
            Self::Sim(socket) => socket.send(bytes),
            Self::Os(fd) => loop {
                match rustix::net::send(fd, bytes, send_flags(more)) {
                    Err(rustix::io::Errno::INTR) => {}
                    sent => return Ok(sent?),
                }
            },
        }
    }

    /// Sends several slices as one.
    pub(crate) fn send_slices(&self, slices: &[IoSlice<'_>], more: bool) -> io::Result<usize> {
        match self {
            #[cfg(any(test, feature = "sim"))]
            Self::Sim(_) => self.send(slices.iter().find(|slice| !slice.is_empty()).map_or(&[], |slice| slice), more),
            Self::Os(fd) => loop {
                match rustix::net::sendmsg(fd, slices, &mut SendAncillaryBuffer::default(), send_flags(more)) {
                    Err(rustix::io::Errno::INTR) => {}
                    sent => return Ok(sent?),
                }
            },
        }
    }

    /// Sends as much of `out` as fits, and removes what was sent.
    #[inline(always)]
    pub(crate) fn send_buf(&self, out: &mut OutBuf) -> io::Result<usize> {
        let sent = match (out.rest(), &out.tail) {
            (rest, tail) if tail.is_empty() => self.send(rest, out.ends)?,
            ([], tail) => self.send(tail, out.ends)?,
            (rest, tail) => self.send_slices(&[IoSlice::new(rest), IoSlice::new(tail)], out.ends)?,
        };
        out.advance(sent);
        Ok(sent)
    }

    /// Sends up to `count` bytes of `file` from `offset`. Returns 0 at the end of the file.
    pub(crate) fn send_file(&self, file: &File, offset: u64, count: usize) -> io::Result<usize> {
        match self {
            #[cfg(any(test, feature = "sim"))]
            Self::Sim(socket) => socket.send_file(file, offset, count),
            Self::Os(fd) => loop {
                let mut at = offset;
                match rustix::fs::sendfile(fd, file, Some(&mut at), count) {
                    Err(rustix::io::Errno::INTR) => {}
                    sent => return Ok(sent?),
                }
            },
        }
    }

    /// Whether there is unreceived data from the client. Closing the socket would then reset the connection.
    pub(crate) fn has_unread(&self) -> bool {
        match self {
            #[cfg(any(test, feature = "sim"))]
            Self::Sim(socket) => socket.has_unread(),
            Self::Os(fd) => rustix::io::ioctl_fionread(fd).is_ok_and(|bytes| bytes > 0),
        }
    }

    /// Whether the connection is reset, or closed by both sides. Costs a system call.
    pub(crate) fn is_broken(&self) -> bool {
        match self {
            #[cfg(any(test, feature = "sim"))]
            Self::Sim(_) => false,
            Self::Os(fd) => poll(fd.as_fd(), PollFlags::empty(), Duration::ZERO),
        }
    }

    /// Whether sent data has not been acknowledged by the client's kernel, as far as that is known.
    pub(crate) fn has_in_flight(&self) -> bool {
        match self {
            #[cfg(any(test, feature = "sim"))]
            Self::Sim(_) => false,
            Self::Os(fd) => bytes_in_flight(fd.as_fd()).is_ok_and(|bytes| bytes > 0),
        }
    }

    /// Waits until there may be something to receive, at most this long. Returns `false` if there is nothing.
    pub(crate) fn await_readable(&self, at_most: Duration) -> bool {
        match self {
            #[cfg(any(test, feature = "sim"))]
            Self::Sim(socket) => {
                crate::io::sim::yield_now();
                socket.is_readable()
            }
            Self::Os(fd) => poll(fd.as_fd(), PollFlags::IN, at_most),
        }
    }

    /// Whether there is room for more to send, or sending fails.
    pub(crate) fn is_writable(&self) -> bool {
        self.fd().is_none_or(|fd| poll(fd, PollFlags::OUT, Duration::ZERO))
    }

    /// Accepts a connection from a listening socket.
    pub(crate) fn accept(&self) -> io::Result<(Self, Peer)> {
        use rustix::net::{SocketFlags, acceptfrom_with};
        match self {
            #[cfg(any(test, feature = "sim"))]
            Self::Sim(_) => Err(io::ErrorKind::WouldBlock.into()),
            Self::Os(fd) => {
                let (socket, address) = acceptfrom_with(fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
                Ok((Self::Os(socket), peer(address)?))
            }
        }
    }

    /// Limits the bytes that the kernel takes before they are sent.
    pub(crate) fn limit_unsent(&self, bytes: u32) {
        if let Some(fd) = self.fd()
            && let Err(error) = unsafe_calls::limit_unsent(fd, bytes)
        {
            // The kernel buffers more.
            tracing::trace!(%error, "cannot limit a socket's unsent bytes");
        }
    }

    /// Sets whether a partial packet is held back until more data or the connection's end follows (`TCP_CORK`; the
    /// kernel waits for at most 200 ms).
    pub(crate) fn cork(&self, waits: bool) {
        if let Some(fd) = self.fd() {
            // Not a TCP socket: there are no packets to save.
            let _ = rustix::net::sockopt::set_tcp_cork(fd, waits);
        }
    }

    /// Whether packets arrive on this thread's processor (`SO_INCOMING_CPU`). `false` if that is unknown.
    pub(crate) fn comes_in_here(&self) -> bool {
        let incoming = self.fd().and_then(|fd| rustix::net::sockopt::socket_incoming_cpu(fd).ok());
        // Through libc: rustix panics if the kernel's vDSO has no getcpu, as in User-Mode Linux.
        incoming.is_some_and(|cpu| nix::sched::sched_getcpu().is_ok_and(|here| cpu as usize == here))
    }

    /// Shuts down the sending side. This fails only if the connection is already gone.
    pub(crate) fn end_output(&self) {
        match self {
            #[cfg(any(test, feature = "sim"))]
            Self::Sim(socket) => socket.end_output(),
            Self::Os(fd) => {
                let _ = rustix::net::shutdown(fd, Shutdown::Write);
            }
        }
    }

    /// Aborts, and sends nothing more: each further send fails. The peer sees an end without a reset first, so this is only for the middle of a head,
    /// which nobody takes for a whole message.
    pub(crate) fn cut_off(&self) {
        self.abort();
        match self {
            #[cfg(any(test, feature = "sim"))]
            Self::Sim(socket) => socket.cut_off(),
            Self::Os(fd) => drop(rustix::net::shutdown(fd, Shutdown::Both)),
        }
    }

    /// Makes the next close a reset, so that the peer never takes a truncated body for a complete one.
    pub(crate) fn abort(&self) {
        match self {
            #[cfg(any(test, feature = "sim"))]
            Self::Sim(socket) => socket.abort(),
            Self::Os(fd) => {
                // Errors do not matter: they mean that the connection is already gone. A job that still holds the
                // descriptor finds it shut down; the reset is sent with the last close.
                let _ = rustix::net::sockopt::set_socket_linger(fd, Some(Duration::ZERO));
                let _ = rustix::net::shutdown(fd, Shutdown::Read);
            }
        }
    }
}

/// Waits for one of these events, at most this long. An error (a signal, no memory) ends the wait like a timeout: the caller checks
/// again, or waits for the next event.
fn poll(fd: BorrowedFd<'_>, events: PollFlags, at_most: Duration) -> bool {
    let tv_sec = i64::try_from(at_most.as_secs()).unwrap_or(i64::MAX);
    let timeout = Timespec { tv_sec, tv_nsec: i64::from(at_most.subsec_nanos()) };
    let mut polled = [PollFd::from_borrowed_fd(fd, events)];
    rustix::event::poll(&mut polled, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

fn send_flags(more: bool) -> SendFlags {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    if more { flags | SendFlags::MORE } else { flags }
}

/// The socket that a driver sends and receives on.
pub(crate) trait HasSocket {
    fn socket(&self) -> &Socket;
}

impl HasSocket for Socket {
    fn socket(&self) -> &Socket {
        self
    }
}

/// The family of a listening socket. It, and not the connection itself, determines the protocol of its connections and
/// the limits that they count towards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Tcp,
    Unix,
}

impl Family {
    /// Returns the family of a listening socket.
    ///
    /// # Errors
    /// It is neither a TCP nor a unix socket, or not a socket at all.
    pub(crate) fn of(listener: BorrowedFd<'_>) -> io::Result<Self> {
        match rustix::net::getsockname(listener)?.address_family() {
            AddressFamily::INET | AddressFamily::INET6 => Ok(Self::Tcp),
            AddressFamily::UNIX => Ok(Self::Unix),
            _ => Err(io::Error::new(io::ErrorKind::Unsupported, "neither a TCP nor a unix socket")),
        }
    }

    /// Returns the peer of a connection that was accepted from a listener of this family.
    ///
    /// # Errors
    /// The peer is unknown: a TCP client has already reset the connection.
    pub(crate) fn peer_of(self, accepted: &OwnedFd) -> io::Result<Peer> {
        match self {
            Self::Unix => Ok(Peer::Unix),
            Self::Tcp => match peer(rustix::net::getpeername(accepted)?)? {
                Peer::Unix => Err(nameless()),
                peer => Ok(peer),
            },
        }
    }
}

fn peer(address: Option<SocketAddrAny>) -> io::Result<Peer> {
    let address = address.ok_or_else(nameless)?;
    if address.address_family() == AddressFamily::UNIX {
        return Ok(Peer::Unix);
    }
    Ok(Peer::Tcp(address.try_into()?))
}

/// The error that accept(2) returns for a connection that is gone.
fn nameless() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the client of an accepted connection has no address")
}
