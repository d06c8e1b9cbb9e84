//! The demo's client: one keep-alive connection, GET, responses with a length. Just enough HTTP to check the server
//! with code that is not the server's.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The largest head of a response, in bytes.
const HEAD_BYTES_MAX: u64 = 16 * 1024;
/// A read or write that takes longer fails.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to the demo's server.
#[derive(Debug)]
pub(super) struct Client {
    stream: BufReader<TcpStream>,
    host: String,
}

impl Client {
    /// Connects.
    pub(super) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::with_capacity(256 * 1024, stream), host: address.to_string() })
    }

    /// Requests a path, and returns the body of a 200. Read it to its end before the next request.
    pub(super) fn get(&mut self, path: &str) -> io::Result<impl Read + use<'_>> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nAccept-Encoding: identity\r\n\r\n", self.host);
        self.stream.get_mut().write_all(request.as_bytes())?;
        let (status, length) = self.read_head()?;
        if status != 200 {
            return Err(io::Error::other(format!("GET {path}: status {status}")));
        }
        Ok(Exactly { inner: &mut self.stream, left: length })
    }

    /// The whole body, of at most `bytes_max` bytes.
    pub(super) fn get_bytes(&mut self, path: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        self.get(path)?.take(bytes_max + 1).read_to_end(&mut body)?;
        if body.len() as u64 > bytes_max {
            return Err(io::Error::other(format!("GET {path}: more than {bytes_max} bytes")));
        }
        Ok(body)
    }

    fn read_head(&mut self) -> io::Result<(u16, u64)> {
        let mut head = (&mut self.stream).take(HEAD_BYTES_MAX);
        let mut line = String::new();
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("the server sent {what}"));
        let mut next = |line: &mut String| -> io::Result<()> {
            line.clear();
            head.read_line(line)?;
            if line.ends_with("\r\n") { Ok(()) } else { Err(bad("a truncated response")) }
        };
        next(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| bad("no status"))?;
        let mut length = None;
        loop {
            next(&mut line)?;
            if line == "\r\n" {
                break;
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok();
            }
        }
        Ok((status, length.ok_or_else(|| bad("no Content-Length"))?))
    }
}

/// Reads exactly `left` bytes, or fails if the connection ends before.
struct Exactly<'a> {
    inner: &'a mut BufReader<TcpStream>,
    left: u64,
}

impl Read for Exactly<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(out.len());
        if want == 0 {
            return Ok(0);
        }
        let got = self.inner.read(out.get_mut(..want).unwrap_or_default())?;
        if got == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server truncated the response"));
        }
        self.left -= got as u64;
        Ok(got)
    }
}
