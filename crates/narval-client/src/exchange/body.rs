//! The body of a response, read directly from the socket into the caller's buffer.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::HttpError;
use crate::limits::{DRAIN_LEN_MAX, SMALL_RATE_MIN};
use crate::message::head::Head;
use crate::url::Origin;
use crate::wire::pool::{Pool, Pooled};

const WHAT: &str = "reading the body";
/// The longest line that starts a chunk: 16 hex digits and an extension or two.
const CHUNK_LINE_LEN_MAX: usize = 256;
/// Bytes of trailer fields after the last chunk.
const TRAILER_LEN_MAX: usize = 8 * 1024;

enum Framing {
    /// The remaining bytes.
    Length(u64),
    /// The remaining bytes of the current chunk; `None` before the first.
    Chunked(Option<u64>),
    /// The end of the connection is the end of the body.
    UntilClose,
    Done,
}

/// The body of a response. Reading it to its end returns the connection to the pool; dropping it earlier closes the
/// connection.
pub struct Body {
    /// `None` once it was returned, and for a body that did not come from a connection.
    connection: Option<Pooled>,
    /// The pool to return the connection to.
    home: Option<(Arc<Pool>, Origin)>,
    framing: Framing,
    keeps_alive: bool,
    received: u64,
    expected: Option<u64>,
}

impl Body {
    pub(crate) fn network(
        connection: Pooled,
        head: &Head,
        has_body: bool,
        pool: &Arc<Pool>,
        origin: &Origin,
    ) -> Result<Self, HttpError> {
        let (length, chunked) = (head.content_length()?, head.is_chunked()?);
        let framing = match (has_body, chunked, length) {
            (false, ..) => Framing::Length(0),
            (true, true, _) => Framing::Chunked(None),
            (true, false, Some(length)) => Framing::Length(length),
            (true, false, None) => Framing::UntilClose,
        };
        // Both lengths at once may be request smuggling (RFC 9112 section 6.3): read the body, but do not reuse the
        // connection.
        let keeps_alive = head.keeps_alive() && !(chunked && length.is_some());
        let expected = if chunked || !has_body { None } else { length };
        let (connection, home) = (Some(connection), Some((Arc::clone(pool), origin.clone())));
        let mut body = Self { connection, home, framing, keeps_alive, received: 0, expected };
        body.finish_if_done();
        Ok(body)
    }

    /// An empty body without a connection.
    pub(crate) const fn empty() -> Self {
        let (connection, home, framing) = (None, None, Framing::Done);
        Self { connection, home, framing, keeps_alive: true, received: 0, expected: Some(0) }
    }

    /// The announced length, if any.
    pub const fn expected_len(&self) -> Option<u64> {
        self.expected
    }

    /// The number of bytes read.
    pub const fn received_len(&self) -> u64 {
        self.received
    }

    /// Whether a read would probably not block.
    pub fn is_readable(&self) -> bool {
        self.connection.as_ref().is_none_or(|connection| connection.is_readable())
    }

    /// Waits until there is something to read, or the end; returns whether there is.
    pub fn wait_for_data(&mut self, within: Duration) -> bool {
        self.connection.as_mut().is_none_or(|connection| connection.wait_for_data(within))
    }

    /// Reads some bytes. Returns 0 only at the end of the body; a premature end is an error.
    pub fn read_some(&mut self, out: &mut [u8]) -> Result<usize, HttpError> {
        if out.is_empty() || matches!(self.framing, Framing::Done) {
            return Ok(0);
        }
        if let Framing::Chunked(left @ (None | Some(0))) = self.framing {
            self.next_chunk(left.is_some())?;
        }
        let limit = match self.framing {
            Framing::Length(left) | Framing::Chunked(Some(left)) => usize::try_from(left).unwrap_or(usize::MAX),
            Framing::UntilClose => usize::MAX,
            Framing::Chunked(None) => 0,
            Framing::Done => return Ok(0),
        };
        let wanted = out.len().min(limit);
        let len = match &mut self.connection {
            Some(connection) => connection.read(out.get_mut(..wanted).unwrap_or_default(), WHAT)?,
            None => 0,
        };
        if len == 0 {
            if matches!(self.framing, Framing::UntilClose) {
                self.finish();
                return Ok(0);
            }
            return Err(HttpError::Truncated { received: self.received, expected: self.expected });
        }
        self.received += len as u64;
        if let Framing::Length(left) | Framing::Chunked(Some(left)) = &mut self.framing {
            *left = left.saturating_sub(len as u64);
        }
        self.finish_if_done();
        Ok(len)
    }

    /// Reads a chunk's size line, after the line end of the previous chunk; for the last chunk, the trailer too.
    fn next_chunk(&mut self, after_chunk: bool) -> Result<(), HttpError> {
        if after_chunk && !self.read_line(CHUNK_LINE_LEN_MAX)?.is_empty() {
            return Err(HttpError::Malformed("a chunk is longer than its size"));
        }
        let line = self.read_line(CHUNK_LINE_LEN_MAX)?;
        let digits = line.split(|b| *b == b';').next().unwrap_or_default().trim_ascii_end();
        let text = str::from_utf8(digits).unwrap_or_default();
        let valid = !text.is_empty() && text.bytes().all(|b| b.is_ascii_hexdigit());
        let size = match u64::from_str_radix(text, 16) {
            Ok(size) if valid => size,
            _ => return Err(HttpError::Malformed("a chunk's size is not a number")),
        };
        self.framing = Framing::Chunked(Some(size));
        if size > 0 {
            return Ok(());
        }
        let mut trailer = 0;
        loop {
            let line = self.read_line(TRAILER_LEN_MAX)?;
            trailer += line.len();
            if line.is_empty() {
                self.finish();
                return Ok(());
            }
            if trailer > TRAILER_LEN_MAX {
                return Err(HttpError::Malformed("the trailer is too long"));
            }
        }
    }

    fn read_line(&mut self, limit: usize) -> Result<Vec<u8>, HttpError> {
        let truncated = HttpError::Truncated { received: self.received, expected: self.expected };
        let Some(connection) = &mut self.connection else { return Err(truncated) };
        loop {
            if let Some(end) = connection.buffered().iter().position(|b| *b == b'\n') {
                let line = connection.buffered().get(..end).unwrap_or_default();
                let line = line.strip_suffix(b"\r").unwrap_or(line).to_vec();
                connection.consume(end + 1);
                return Ok(line);
            }
            if connection.buffered().len() > limit {
                return Err(HttpError::Malformed("a chunk's line is too long"));
            }
            if connection.fill(WHAT)? == 0 {
                return Err(truncated);
            }
        }
    }

    fn finish_if_done(&mut self) {
        if matches!(self.framing, Framing::Length(0)) {
            self.finish();
        }
    }

    /// At the end: returns the connection to the pool, unless it already has unexpected bytes.
    fn finish(&mut self) {
        let reusable = self.keeps_alive && !matches!(self.framing, Framing::UntilClose);
        self.framing = Framing::Done;
        if let (Some(connection), Some((pool, origin))) = (self.connection.take(), &self.home)
            && reusable
            && !connection.has_buffered()
        {
            pool.give_back(origin, connection);
        }
    }

    /// Reads the rest of an unwanted body if it is small, so that its connection can be reused.
    pub fn drain(mut self) {
        let mut left = DRAIN_LEN_MAX;
        if self.expected.is_some_and(|expected| expected - self.received.min(expected) > left) {
            return;
        }
        let mut scratch = [0; 4096];
        while left > 0 {
            match self.read_some(&mut scratch) {
                // An error only concerns unwanted bytes: the connection is closed.
                Ok(0) | Err(_) => return,
                Ok(len) => left = left.saturating_sub(len as u64),
            }
        }
    }

    /// Reads the whole body, up to `limit` bytes. A server that sends less than [`SMALL_RATE_MIN`] for longer than a single read
    /// may take is given up.
    pub fn read_all(mut self, limit: u64) -> Result<Vec<u8>, HttpError> {
        let begun = Instant::now();
        let stall = self.connection.as_ref().map(|connection| connection.stall());
        // The announced length is only a hint for the reserved capacity.
        let announced = usize::try_from(self.expected.unwrap_or(0).min(limit)).unwrap_or(0);
        let mut bytes = vec![0; announced.clamp(1024, 256 * 1024)];
        let mut len = 0;
        loop {
            if len == bytes.len() {
                bytes.resize(len * 2, 0);
            }
            match self.read_some(bytes.get_mut(len..).unwrap_or_default())? {
                0 => break,
                read => len += read,
            }
            let (elapsed, enough) = (begun.elapsed(), Duration::from_secs(len as u64 / SMALL_RATE_MIN));
            if stall.is_some_and(|stall| elapsed > stall + enough) {
                return Err(HttpError::Slow { received: len as u64, elapsed });
            }
            if len as u64 > limit {
                return Err(HttpError::TooLarge { limit });
            }
        }
        bytes.truncate(len);
        Ok(bytes)
    }
}

impl Read for Body {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.read_some(out).map_err(io::Error::other)
    }
}
