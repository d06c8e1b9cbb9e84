//! Connects to a host with several addresses (RFC 8305): a slow address does not delay the others, and the first one
//! that connects is used. The system's resolver is asked for both families at once, and its order is kept within each.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto};

use crate::bounds::{Bounds, Host};
use crate::error::HttpError;
use crate::limits::MENTIONED_AFTER;

/// The delay before the next address is tried in parallel (RFC 8305 section 5).
pub const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// The maximum number of addresses tried per host.
const ADDRESSES_MAX: usize = 16;

/// Connects to a host within a timeout, at an address where it may be. Calls `mention` if that takes long.
pub(crate) fn connect(
    host: &str,
    port: u16,
    timeout: Duration,
    bounds: Option<(&Bounds, Host)>,
    mention: &dyn Fn(),
) -> Result<TcpStream, HttpError> {
    let resolve_error = |source| HttpError::Resolve { host: host.to_owned(), source };
    let mut addresses: Vec<_> = (host, port).to_socket_addrs().map_err(resolve_error)?.collect();
    if let Some((bounds, of)) = bounds
        && !addresses.is_empty()
    {
        addresses.retain(|address| bounds.admits(of, address.ip()));
        if addresses.is_empty() {
            return Err(Bounds::no_address(host));
        }
    }
    let connected = race(&in_turn(addresses), timeout, mention);
    let tcp = connected.map_err(|source| HttpError::Connect { host: format!("{host}:{port}"), source })?;
    if let (Some((bounds, of)), Ok(address)) = (bounds, tcp.peer_addr()) {
        bounds.reached(of, address.ip());
    }
    Ok(tcp)
}

/// The addresses with alternating families, starting with the resolver's first choice.
fn in_turn(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let first_is_v6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut first, mut second): (VecDeque<_>, VecDeque<_>) =
        addresses.into_iter().partition(|address| address.is_ipv6() == first_is_v6);
    let mut ordered = Vec::new();
    while !(first.is_empty() && second.is_empty()) && ordered.len() < ADDRESSES_MAX {
        ordered.extend(first.pop_front().into_iter().chain(second.pop_front()));
    }
    ordered
}

fn race(addresses: &[SocketAddr], timeout: Duration, mention: &dyn Fn()) -> io::Result<TcpStream> {
    let mut mention_at = Some(Instant::now() + MENTIONED_AFTER);
    let deadline = Instant::now() + timeout;
    let (mut untried, mut pending) = (addresses.iter(), Vec::<TcpStream>::new());
    let mut next_at = Instant::now();
    let mut last_error = io::Error::from(io::ErrorKind::NotFound);
    loop {
        if Instant::now() >= next_at || pending.is_empty() {
            match untried.next().map(begin) {
                Some(Ok(socket)) => {
                    pending.push(socket);
                    next_at = Instant::now() + ATTEMPT_DELAY;
                }
                Some(Err(error)) => {
                    last_error = error;
                    continue;
                }
                None if pending.is_empty() => return Err(last_error),
                None => {}
            }
        }
        let until = if untried.len() > 0 { next_at.min(deadline) } else { deadline };
        wait(&pending, mention_at.map_or(until, |at| until.min(at)))?;
        if mention_at.take_if(|at| *at <= Instant::now()).is_some() {
            mention();
        }
        let mut index = 0;
        while let Some(socket) = pending.get(index) {
            match outcome(socket) {
                Outcome::Pending => index += 1,
                Outcome::Connected => {
                    let socket = pending.swap_remove(index);
                    socket.set_nonblocking(false)?;
                    return Ok(socket);
                }
                Outcome::Failed(error) => {
                    drop(pending.swap_remove(index));
                    (last_error, next_at) = (error, Instant::now());
                }
            }
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// Starts connecting.
fn begin(address: &SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    match rustix::net::connect(&socket, address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}

fn wait(sockets: &[TcpStream], until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut all: Vec<_> = sockets.iter().map(|socket| PollFd::new(socket, PollFlags::OUT)).collect();
    match poll(&mut all, Some(&left)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

enum Outcome {
    Pending,
    Connected,
    Failed(io::Error),
}

fn outcome(socket: &TcpStream) -> Outcome {
    match socket.take_error() {
        Ok(Some(error)) | Err(error) => Outcome::Failed(error),
        // It is connected if it has a peer.
        Ok(None) => match socket.peer_addr() {
            Ok(_) => Outcome::Connected,
            Err(_) => Outcome::Pending,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Longer than any test.
    const FOREVER: Duration = Duration::from_secs(600);

    /// An address that never answers: its queue is full, so the kernel drops new connections.
    fn silent() -> (SocketAddr, Vec<TcpStream>, TcpListener) {
        let socket =
            rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let listener = TcpListener::from(socket);
        let address = listener.local_addr().unwrap();
        let mut held = Vec::new();
        while let Ok(socket) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
            held.push(socket);
        }
        (address, held, listener)
    }

    #[test]
    fn a_silent_address_does_not_delay_others() {
        let (silent, _held, _listener) = silent();
        let good = TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let addresses = [silent, closed, silent, good.local_addr().unwrap(), silent];
        // One after the other, this would take twenty minutes.
        let socket = race(&addresses, FOREVER, &|| ()).unwrap();
        assert_eq!(socket.peer_addr().unwrap(), good.local_addr().unwrap());
        assert_eq!(race(&[closed], FOREVER, &|| ()).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(
            race(&[silent, silent], Duration::from_millis(500), &|| ()).unwrap_err().kind(),
            io::ErrorKind::TimedOut
        );
        assert!(race(&[], FOREVER, &|| ()).is_err());
    }

    #[test]
    fn families_take_turns() {
        let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
        let mixed = parse(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"]);
        assert_eq!(in_turn(mixed), parse(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"]));
    }
}
