//! One connection: TCP, possibly with TLS, and bytes that are already buffered.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::connect::connect;
use super::proxy::Proxy;
use super::tls;
use crate::bounds::{Bounds, Host};
use crate::error::HttpError;
use crate::limits::HEAD_LEN_MAX;
use crate::message::head::Head;
use crate::url::{Origin, Scheme};

/// Size of a read for a head: most heads fit, and little of the body is copied twice.
const HEAD_READ_LEN: usize = 4 * 1024;

enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

/// An open connection to an origin.
pub(crate) struct Connection {
    stream: Stream,
    /// Received bytes that are not consumed yet, from `start` on.
    buffer: Vec<u8>,
    start: usize,
    stall: Duration,
}

/// Parameters of [`Connection::open`].
pub(crate) struct Dial<'a> {
    pub(crate) origin: &'a Origin,
    /// Called if it takes long.
    pub(crate) mention: &'a dyn Fn(),
    pub(crate) proxy: Option<&'a Proxy>,
    /// What the client may reach, and what the origin is to it.
    pub(crate) bounds: Option<(&'a Bounds, Host)>,
    pub(crate) tls: &'a Arc<ClientConfig>,
    pub(crate) connect_timeout: Duration,
    pub(crate) stall_timeout: Duration,
}

impl Connection {
    /// Connects, through the proxy if there is one, and performs the TLS handshake.
    pub(crate) fn open(dial: &Dial<'_>) -> Result<Self, HttpError> {
        let (host, port) = match dial.proxy {
            Some(proxy) => (proxy.host.as_str(), proxy.port),
            None => (dial.origin.host.as_str(), dial.origin.port),
        };
        // A proxy connects to addresses that it finds itself.
        let bounds = dial.bounds.filter(|_| dial.proxy.is_none());
        let tcp = connect(host, port, dial.connect_timeout, bounds, dial.mention)?;
        let socket_error = |source| HttpError::Connect { host: format!("{host}:{port}"), source };
        tcp.set_nodelay(true).map_err(socket_error)?;
        tcp.set_read_timeout(Some(dial.stall_timeout)).map_err(socket_error)?;
        tcp.set_write_timeout(Some(dial.stall_timeout)).map_err(socket_error)?;
        let mut connection =
            Self { stream: Stream::Plain(tcp), buffer: Vec::new(), start: 0, stall: dial.stall_timeout };
        if dial.origin.scheme == Scheme::Https {
            if let Some(proxy) = dial.proxy {
                connection.tunnel(dial.origin, proxy)?;
            }
            connection = connection.with_tls(dial)?;
        }
        Ok(connection)
    }

    /// Asks the proxy for a tunnel (RFC 9110 section 9.3.6).
    fn tunnel(&mut self, origin: &Origin, proxy: &Proxy) -> Result<(), HttpError> {
        let target = match origin.host.contains(':') {
            true => format!("[{}]:{}", origin.host, origin.port),
            false => format!("{}:{}", origin.host, origin.port),
        };
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some(credentials) = &proxy.authorization {
            request.push_str(&format!("Proxy-Authorization: {credentials}\r\n"));
        }
        request.push_str("\r\n");
        self.send(request.as_bytes())?;
        let head = self.read_head()?;
        if head.status != 200 || self.has_buffered() {
            let reason = format!("answered {} to CONNECT {target}", head.status);
            return Err(HttpError::Proxy { proxy: proxy.to_string(), reason });
        }
        Ok(())
    }

    fn with_tls(self, dial: &Dial<'_>) -> Result<Self, HttpError> {
        let failed = |reason: String| HttpError::Tls { host: dial.origin.host.clone(), reason };
        let Stream::Plain(mut tcp) = self.stream else { return Err(failed("already encrypted".into())) };
        let name = ServerName::try_from(dial.origin.host.clone()).map_err(|error| failed(error.to_string()))?;
        let mut session =
            ClientConnection::new(Arc::clone(dial.tls), name).map_err(|error| failed(error.to_string()))?;
        while session.is_handshaking() {
            session.complete_io(&mut tcp).map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData => failed(tls::reason(&error)),
                _ => HttpError::from_socket(error, "making the TLS handshake", dial.stall_timeout),
            })?;
        }
        Ok(Self { stream: Stream::Tls(Box::new(StreamOwned::new(session, tcp))), ..self })
    }

    /// The TLS session of an encrypted connection.
    pub(crate) fn session(&self) -> Option<&ClientConnection> {
        match &self.stream {
            Stream::Plain(_) => None,
            Stream::Tls(tls) => Some(&tls.conn),
        }
    }

    /// Changes the read timeout, until [`Connection::reset_timeout`].
    pub(crate) fn set_timeout(&mut self, timeout: Duration) -> Result<(), HttpError> {
        let tcp = match &self.stream {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => &tls.sock,
        };
        let set = tcp.set_read_timeout(Some(timeout));
        set.map_err(|source| HttpError::Broken { what: "setting a timeout", source })
    }

    /// Restores the default read timeout.
    pub(crate) fn reset_timeout(&mut self) -> Result<(), HttpError> {
        self.set_timeout(self.stall)
    }

    /// Sends all of `bytes`.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), HttpError> {
        let sent = match &mut self.stream {
            Stream::Plain(tcp) => tcp.write_all(bytes),
            Stream::Tls(tls) => tls.write_all(bytes).and_then(|()| tls.flush()),
        };
        sent.map_err(|source| HttpError::from_socket(source, "sending the request", self.stall))
    }

    /// Reads up to the end of a head; later bytes stay buffered. All of it must arrive within twice the time that a read may
    /// take.
    pub(crate) fn read_head(&mut self) -> Result<Head, HttpError> {
        let mut begun = None;
        loop {
            if let Some((head, len)) = Head::parse(self.buffered())? {
                self.consume(len);
                return Ok(head);
            }
            if self.buffered().len() >= HEAD_LEN_MAX {
                return Err(HttpError::Malformed("the head is too long"));
            }
            let begun = *begun.get_or_insert_with(Instant::now);
            if begun.elapsed() > self.stall.saturating_mul(2) {
                return Err(HttpError::Slow { received: self.buffered().len() as u64, elapsed: begun.elapsed() });
            }
            if self.fill("waiting for the answer")? == 0 {
                let source = io::ErrorKind::UnexpectedEof.into();
                return Err(HttpError::Broken { what: "waiting for the answer", source });
            }
        }
    }

    /// Reads the head of the final response: informational ones (RFC 9110 section 15.2) are skipped.
    pub(crate) fn read_final_head(&mut self) -> Result<Head, HttpError> {
        loop {
            let head = self.read_head()?;
            match head.status {
                101 => return Err(HttpError::Malformed("a protocol switch nobody asked for")),
                100..=199 => {}
                _ => return Ok(head),
            }
        }
    }

    /// The buffered bytes.
    pub(crate) fn buffered(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    /// Whether there are buffered bytes.
    pub(crate) fn has_buffered(&self) -> bool {
        self.start < self.buffer.len()
    }

    /// Consumes `len` of the buffered bytes.
    pub(crate) fn consume(&mut self, len: usize) {
        self.start = (self.start + len).min(self.buffer.len());
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
    }

    /// Receives once into the buffer; returns 0 at the end.
    pub(crate) fn fill(&mut self, what: &'static str) -> Result<usize, HttpError> {
        let mut chunk = [0; HEAD_READ_LEN];
        let len = self.receive(&mut chunk, what)?;
        self.buffer.extend_from_slice(chunk.get(..len).unwrap_or_default());
        Ok(len)
    }

    /// Reads buffered bytes, or directly from the socket into `out`; returns 0 at the end.
    pub(crate) fn read(&mut self, out: &mut [u8], what: &'static str) -> Result<usize, HttpError> {
        if !self.has_buffered() {
            return self.receive(out, what);
        }
        let len = self.buffered().len().min(out.len());
        if let (Some(to), Some(from)) = (out.get_mut(..len), self.buffered().get(..len)) {
            to.copy_from_slice(from);
        }
        self.consume(len);
        Ok(len)
    }

    fn receive(&mut self, out: &mut [u8], what: &'static str) -> Result<usize, HttpError> {
        loop {
            let read = match &mut self.stream {
                Stream::Plain(tcp) => tcp.read(out),
                Stream::Tls(tls) => tls.read(out),
            };
            match read {
                Ok(len) => return Ok(len),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(HttpError::from_socket(error, what, self.stall)),
            }
        }
    }

    /// Whether a read would not block.
    pub(crate) fn is_readable(&self) -> bool {
        self.becomes_readable(Duration::ZERO)
    }

    /// How long a read may wait for data.
    pub(crate) const fn stall(&self) -> Duration {
        self.stall
    }

    /// Waits until a read would not block; returns whether it would not.
    pub(crate) fn becomes_readable(&self, within: Duration) -> bool {
        self.has_buffered() || self.socket_is_readable(within)
    }

    /// Waits until there is data to read, or the end; returns whether there is. Of an encrypted connection, that is a whole record.
    pub(crate) fn wait_for_data(&mut self, within: Duration) -> bool {
        let until = Instant::now() + within;
        loop {
            let has_data = match &mut self.stream {
                Stream::Plain(_) => false,
                // The read reports what is wrong.
                Stream::Tls(tls) => tls
                    .conn
                    .process_new_packets()
                    .map_or(true, |state| state.plaintext_bytes_to_read() > 0 || state.peer_has_closed()),
            };
            let left = until.saturating_duration_since(Instant::now());
            if self.has_buffered() || has_data {
                return true;
            }
            if left.is_zero() || !self.socket_is_readable(left) {
                return false;
            }
            match &mut self.stream {
                Stream::Plain(_) => return true,
                Stream::Tls(tls) => match tls.conn.read_tls(&mut tls.sock) {
                    Ok(1..) => {}
                    Ok(0) | Err(_) => return true,
                },
            }
        }
    }

    fn socket_is_readable(&self, within: Duration) -> bool {
        let tcp = match &self.stream {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => &tls.sock,
        };
        let mut fds = [PollFd::new(tcp, PollFlags::IN)];
        // If poll fails, the read reports the error.
        let within = Timespec::try_from(within).unwrap_or_default();
        poll(&mut fds, Some(&within)).is_ok_and(|ready| ready > 0)
    }

    /// Whether it may be reused: it has no unexpected bytes, and the server has not closed it.
    pub(crate) fn is_clean(&self) -> bool {
        !self.is_readable()
    }
}
