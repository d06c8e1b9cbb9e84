//! The measuring client on one connection: blocking, one `send` and as few `recv` as possible.

use std::io::Write;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use rustix::net::{RecvFlags, recv};

use crate::response::ResponseReader;
use crate::{Context, Failure, Result, failure};

/// The buffer of one `recv`. One larger than the kernel's default socket buffer would not help.
const RECV_BYTES: usize = 256 * 1024;
/// With at least this many body bytes left, the kernel discards them without a copy.
const DISCARD_BYTES_MIN: u64 = 32 * 1024;
/// A server that is silent for this long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(120);

/// The base URL of a server: `http://HOST:PORT/PATH`, or the same with `https`.
#[derive(Debug, Clone)]
pub struct BaseUrl {
    /// The address to connect to.
    pub address: SocketAddr,
    /// The `Host` field.
    pub authority: String,
    /// The prefix of every request target, without a slash at its end.
    pub path: String,
    /// Use TLS, and accept any certificate.
    pub secure: bool,
}

impl std::str::FromStr for BaseUrl {
    type Err = Failure;

    fn from_str(url: &str) -> Result<BaseUrl> {
        let (rest, secure) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (rest, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => return Err(failure!("'{url}' does not begin with http:// or https://")),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let with_port = if authority.contains(':') {
            authority.to_owned()
        } else {
            format!("{authority}:{}", if secure { 443 } else { 80 })
        };
        let mut addresses = with_port.to_socket_addrs().context(|| format!("cannot resolve '{authority}'"))?;
        let address = addresses.next().ok_or_else(|| failure!("'{authority}' has no address"))?;
        Ok(BaseUrl { address, authority: authority.to_owned(), path: path.trim_end_matches('/').to_owned(), secure })
    }
}

/// A request and the expected response.
#[derive(Debug, Clone)]
pub struct Request {
    /// The request head.
    pub bytes: Vec<u8>,
    /// The target, for messages.
    pub target: String,
    /// The expected status.
    pub status: u16,
    /// The expected length of the body, if known.
    pub body_bytes: Option<u64>,
}

impl Request {
    /// A GET of `target` (which begins with a slash) below the base URL. `fields` are further field
    /// lines, each with its line ending.
    pub fn get(base: &BaseUrl, target: &str, fields: &str, status: u16) -> Request {
        let target = format!("{}{target}", base.path);
        let bytes = format!("GET {target} HTTP/1.1\r\nHost: {}\r\n{fields}\r\n", base.authority).into_bytes();
        Request { bytes, target, status, body_bytes: None }
    }

    /// Checks a response to this request.
    ///
    /// # Errors
    /// If the status or the length is not the expected one.
    pub fn check(&self, response: &ResponseReader) -> Result<()> {
        if response.status != self.status {
            return Err(failure!("GET {}: status {} in place of {}", self.target, response.status, self.status));
        }
        match self.body_bytes {
            Some(bytes) if bytes != response.body_bytes => {
                Err(failure!("GET {}: {} bytes in place of {bytes}", self.target, response.body_bytes))
            }
            _ => Ok(()),
        }
    }
}

/// A keep-alive connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    /// When nothing listens there.
    pub fn open(base: &BaseUrl) -> Result<Connection> {
        let stream = TcpStream::connect(base.address).context(|| format!("cannot connect to {}", base.address))?;
        stream.set_nodelay(true).context(|| "TCP_NODELAY".to_owned())?;
        stream.set_read_timeout(Some(SILENCE_MAX)).context(|| "SO_RCVTIMEO".to_owned())?;
        Ok(Connection { stream, buffer: vec![0; RECV_BYTES] })
    }

    /// Sends the request, and discards the body of its response.
    ///
    /// # Errors
    /// If the response is not the expected one, or the connection breaks.
    pub fn ask(&mut self, request: &Request) -> Result<ResponseReader> {
        let response = self.exchange(request, None)?;
        request.check(&response)?;
        Ok(response)
    }

    /// Like [`Connection::ask`], but returns the body.
    ///
    /// # Errors
    /// As [`Connection::ask`].
    pub fn fetch(&mut self, request: &Request) -> Result<Vec<u8>> {
        let mut body = Vec::new();
        let response = self.exchange(request, Some(&mut body))?;
        request.check(&response)?;
        Ok(body)
    }

    /// Returns the connection itself, to keep it open.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    fn exchange(&mut self, request: &Request, mut body: Option<&mut Vec<u8>>) -> Result<ResponseReader> {
        let doing = || format!("GET {}", request.target);
        self.stream.write_all(&request.bytes).context(doing)?;
        let mut response = ResponseReader::default();
        while !response.done() {
            if body.is_none() && response.discardable() >= DISCARD_BYTES_MIN {
                discard(&self.stream, &mut self.buffer, &mut response).context(doing)?;
                continue;
            }
            let (count, _) = recv(&self.stream, self.buffer.as_mut_slice(), RecvFlags::empty()).context(doing)?;
            if count == 0 {
                if response.complete_at_end_of_stream() {
                    break;
                }
                return Err(failure!("GET {}: the connection ended in the response", request.target));
            }
            response.feed(self.buffer.get(..count).unwrap_or_default(), body.as_deref_mut())?;
        }
        Ok(response)
    }
}

/// Makes the kernel discard available body bytes without copying them: `MSG_TRUNC`, tcp(7).
///
/// # Errors
/// Those of `recv`, and `UnexpectedEof`.
pub(crate) fn discard(stream: &TcpStream, buffer: &mut [u8], response: &mut ResponseReader) -> std::io::Result<()> {
    let most = usize::try_from(response.discardable()).unwrap_or(usize::MAX).min(buffer.len());
    let (_, count) = recv(stream, buffer.get_mut(..most).unwrap_or_default(), RecvFlags::TRUNC)?;
    if count == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    response.discarded(count as u64);
    Ok(())
}
