//! The pushing client: one connection, request bodies from files, and `Expect: 100-continue` as curl does it.

use std::fs::File;
use std::io::{self, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, recv};

use super::trace::Exchange;
use crate::client::BaseUrl;
use crate::response::ResponseReader;
use crate::{Context, Result, failure};

/// Bytes of one `sendfile`.
const SEND_BYTES: usize = 1024 * 1024;
/// One piece of a body that is sent slowly.
const DRIBBLE_BYTES: u64 = 4096;
const RECV_BYTES: usize = 64 * 1024;
/// A server that is silent for this long has failed. It may have hundreds of megabytes to write to disk.
const SILENCE_MAX: Duration = Duration::from_secs(300);
/// As curl: after this long without a `100 Continue` the body is sent anyway.
const CONTINUE_MAX: Duration = Duration::from_secs(1);

/// Options of a client.
#[derive(Debug, Clone, Default)]
pub struct Sending {
    /// `Authorization` field value.
    pub authorization: Option<String>,
    /// The most body bytes per second, sent in small pieces; unlimited if `None`.
    pub bytes_per_second: Option<u64>,
    /// Closes the connection at this moment, in the middle of a slow body.
    pub until: Option<Instant>,
}

/// A keep-alive connection. It is opened again if the server has closed it.
#[derive(Debug)]
pub struct Pushing<'a> {
    base: &'a BaseUrl,
    sending: Sending,
    stream: Option<TcpStream>,
    buffer: Vec<u8>,
}

/// A response.
#[derive(Debug)]
pub struct Answered {
    /// The final status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

impl<'a> Pushing<'a> {
    /// A client whose connection is opened with the first request.
    pub fn new(base: &'a BaseUrl, sending: Sending) -> Pushing<'a> {
        Pushing { base, sending, stream: None, buffer: vec![0; RECV_BYTES] }
    }

    /// Sends a request, with its body from the trace's folder, and returns the response, whatever it is; `None` if it was
    /// stopped at [`Sending::until`].
    ///
    /// # Errors
    /// If the connection breaks before a response.
    pub fn send(&mut self, exchange: &Exchange, folder: &Path) -> Result<Option<Answered>> {
        let doing = || format!("{} {}", exchange.method, exchange.target);
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.open()?,
        };
        stream.write_all(self.head(exchange).as_bytes()).context(doing)?;
        let mut response = ResponseReader::default();
        let mut body = Vec::new();
        let mut sent = exchange.body.is_none();
        if expects(exchange) {
            stream.set_read_timeout(Some(CONTINUE_MAX)).context(doing)?;
            while response.status == 0 && self.receive(&stream, &mut response, &mut body).context(doing)? {}
            stream.set_read_timeout(Some(SILENCE_MAX)).context(doing)?;
        }
        // a final response in place of `100 Continue` is the response
        if response.status < 200
            && let Some(name) = &exchange.body
        {
            let path = folder.join(name);
            let file = File::open(&path).context(|| format!("cannot read {}", path.display()))?;
            sent = match self.send_body(&stream, &file, exchange.body_bytes) {
                Ok(whole) => whole,
                // the server may have sent a response that explains it
                Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                    false
                }
                Err(error) => return Err(failure!("{}: {error}", doing())),
            };
            if !sent && self.sending.until.is_some_and(|until| Instant::now() >= until) {
                return Ok(None);
            }
        }
        let has_body = exchange.method != "HEAD";
        while !response.done() && (has_body || response.status < 200) {
            if !self.receive(&stream, &mut response, &mut body).context(doing)? {
                if response.complete_at_end_of_stream() {
                    break;
                }
                return Err(failure!("{}: the connection ended before the answer did", doing()));
            }
        }
        if sent && !response.closes && (response.done() || !has_body) {
            self.stream = Some(stream);
        }
        Ok(Some(Answered { status: response.status, body }))
    }

    fn open(&self) -> Result<TcpStream> {
        let address = self.base.address;
        let stream = TcpStream::connect(address).context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true).context(|| "TCP_NODELAY".to_owned())?;
        stream.set_read_timeout(Some(SILENCE_MAX)).context(|| "SO_RCVTIMEO".to_owned())?;
        stream.set_write_timeout(Some(SILENCE_MAX)).context(|| "SO_SNDTIMEO".to_owned())?;
        Ok(stream)
    }

    fn head(&self, exchange: &Exchange) -> String {
        let Exchange { method, target, fields, body, body_bytes, .. } = exchange;
        let mut head = format!("{method} {}{target} HTTP/1.1\r\nHost: {}\r\n", self.base.path, self.base.authority);
        head.extend(fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")));
        if let Some(authorization) = &self.sending.authorization {
            head += &format!("Authorization: {authorization}\r\n");
        }
        if body.is_some() {
            head += &format!("Content-Length: {body_bytes}\r\n");
        }
        head + "\r\n"
    }

    /// Sends a body, and returns whether all of it was sent.
    fn send_body(&self, stream: &TcpStream, file: &File, length: u64) -> io::Result<bool> {
        let started = Instant::now();
        let mut offset = 0;
        while offset < length {
            let mut most = SEND_BYTES;
            if let Some(rate) = self.sending.bytes_per_second {
                let due = Duration::from_secs_f64(offset as f64 / rate.max(1) as f64);
                let now = Instant::now();
                if self.sending.until.is_some_and(|until| now.max(started + due) >= until) {
                    std::thread::sleep(self.sending.until.map_or(Duration::ZERO, |until| until - now.min(until)));
                    return Ok(false);
                }
                std::thread::sleep(due.saturating_sub(started.elapsed()));
                most = usize::try_from(DRIBBLE_BYTES.min(length - offset)).unwrap_or(usize::MAX);
            }
            if rustix::fs::sendfile(stream, file, Some(&mut offset), most)? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a body of the trace is too short"));
            }
        }
        Ok(true)
    }

    /// Reads once, and returns whether the connection is still open (true as well if a `100 Continue` is late).
    fn receive(&mut self, stream: &TcpStream, response: &mut ResponseReader, body: &mut Vec<u8>) -> io::Result<bool> {
        let count = match recv(stream, self.buffer.as_mut_slice(), RecvFlags::empty()) {
            Ok((count, _)) => count,
            // the read timeout while waiting for `100 Continue`
            Err(rustix::io::Errno::AGAIN) if response.status == 0 => return Ok(false),
            Err(rustix::io::Errno::CONNRESET) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        response.feed(self.buffer.get(..count).unwrap_or_default(), Some(body)).map_err(io::Error::other)?;
        Ok(count > 0)
    }
}

fn expects(exchange: &Exchange) -> bool {
    exchange.fields.iter().any(|(name, value)| name == "expect" && value.eq_ignore_ascii_case("100-continue"))
}
