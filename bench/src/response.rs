//! A minimal reader of HTTP/1.1 responses. It takes bytes and says how many bytes of the
//! body are still to come, so that the caller can have the kernel discard them.

use crate::{Result, failure};

/// The largest response head, in bytes.
const HEAD_BYTES_MAX: usize = 64 * 1024;
const FIELDS_MAX: usize = 64;
/// The longest chunk-size line or trailer line, in bytes.
const LINE_BYTES_MAX: usize = 4096;

/// A response while it is being read.
#[derive(Debug, Default)]
pub struct ResponseReader {
    /// Status code; 0 until the head is complete.
    pub status: u16,
    /// Bytes of the body so far, without the framing of the chunked coding.
    pub body_bytes: u64,
    /// The response has `Content-Encoding: zstd`.
    pub zstd: bool,
    /// The server will close the connection after this response.
    pub closes: bool,
    head: Vec<u8>,
    line: Vec<u8>,
    state: State,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum State {
    #[default]
    Head,
    Length(u64),
    UntilClose,
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailer,
    Done,
}

impl ResponseReader {
    /// Whether the whole response has been read.
    pub fn done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether closing the connection ends this response as it should.
    pub fn complete_at_end_of_stream(&self) -> bool {
        matches!(self.state, State::Done | State::UntilClose)
    }

    /// The number of body bytes that come next without framing between them, and need not be read.
    pub fn discardable(&self) -> u64 {
        match self.state {
            State::Length(left) | State::ChunkData(left) => left,
            _ => 0,
        }
    }

    /// Says that this many of the [`ResponseReader::discardable`] bytes were discarded.
    pub fn discarded(&mut self, count: u64) {
        self.body_bytes += count;
        self.state = match self.state {
            State::Length(left) if left <= count => State::Done,
            State::Length(left) => State::Length(left - count),
            State::ChunkData(left) if left <= count => State::ChunkEnd,
            State::ChunkData(left) => State::ChunkData(left - count),
            other => other,
        };
    }

    /// Reads on, and appends the body to `body` if given. Returns how many bytes were consumed: fewer
    /// than given only at the end of the response.
    ///
    /// # Errors
    /// If this is not HTTP/1.1.
    pub fn feed(&mut self, bytes: &[u8], mut body: Option<&mut Vec<u8>>) -> Result<usize> {
        let mut used = 0;
        while let Some(rest) = bytes.get(used..).filter(|rest| !rest.is_empty()) {
            match self.state {
                State::Done => break,
                State::Head => used += self.feed_head(rest)?,
                State::Length(left) | State::ChunkData(left) => {
                    let count = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    keep(&mut body, rest, count);
                    self.discarded(count as u64);
                    used += count;
                }
                State::UntilClose => {
                    keep(&mut body, rest, rest.len());
                    self.body_bytes += rest.len() as u64;
                    used += rest.len();
                }
                State::ChunkSize | State::ChunkEnd | State::Trailer => used += self.feed_line(rest)?,
            }
        }
        Ok(used)
    }

    fn feed_head(&mut self, bytes: &[u8]) -> Result<usize> {
        let before = self.head.len();
        // the bytes behind the head may be a good part of the body
        let bytes = bytes.get(..bytes.len().min(HEAD_BYTES_MAX - before)).unwrap_or_default();
        if bytes.is_empty() {
            return Err(failure!("a response head of more than {HEAD_BYTES_MAX} bytes"));
        }
        self.head.extend_from_slice(bytes);
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let parsed = response.parse(&self.head).map_err(|error| failure!("not an HTTP/1.1 response: {error}"))?;
        let httparse::Status::Complete(length) = parsed else {
            return Ok(bytes.len());
        };
        self.status = response.code.unwrap_or(0);
        let mut state = State::UntilClose;
        for field in response.headers.iter() {
            let value = std::str::from_utf8(field.value).unwrap_or("").trim();
            if field.name.eq_ignore_ascii_case("content-length") {
                let length = value.parse().map_err(|_| failure!("Content-Length '{value}' is not a number"))?;
                state = if length == 0 { State::Done } else { State::Length(length) };
            } else if field.name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
                state = State::ChunkSize;
            } else if field.name.eq_ignore_ascii_case("content-encoding") {
                self.zstd = value.eq_ignore_ascii_case("zstd");
            } else if field.name.eq_ignore_ascii_case("connection") {
                self.closes = value.eq_ignore_ascii_case("close");
            }
        }
        if matches!(self.status, 204 | 304) {
            state = State::Done;
        }
        self.state = if self.status < 200 { State::Head } else { state };
        self.head.clear();
        Ok(length - before)
    }

    /// Reads the lines of the chunked coding.
    fn feed_line(&mut self, bytes: &[u8]) -> Result<usize> {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let part = bytes.get(..end.map_or(bytes.len(), |end| end + 1)).unwrap_or(bytes);
        if self.line.len() + part.len() > LINE_BYTES_MAX {
            return Err(failure!("a line of more than {LINE_BYTES_MAX} bytes in a chunked body"));
        }
        self.line.extend_from_slice(part);
        if end.is_none() {
            return Ok(part.len());
        }
        let line = String::from_utf8_lossy(self.line.trim_ascii()).into_owned();
        self.line.clear();
        self.state = match self.state {
            State::ChunkSize => {
                let digits = line.split(';').next().unwrap_or("").trim();
                match u64::from_str_radix(digits, 16).map_err(|_| failure!("chunk size '{line}'"))? {
                    0 => State::Trailer,
                    size => State::ChunkData(size),
                }
            }
            State::ChunkEnd => State::ChunkSize,
            _ if line.is_empty() => State::Done,
            _ => State::Trailer,
        };
        Ok(part.len())
    }
}

fn keep(body: &mut Option<&mut Vec<u8>>, bytes: &[u8], count: usize) {
    if let (Some(body), Some(bytes)) = (body, bytes.get(..count)) {
        body.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fed in pieces of any size, the response must be read the same way.
    fn read(response: &[u8]) -> (u16, Vec<u8>, usize) {
        let mut results = (1..=response.len()).map(|piece| {
            let (mut reader, mut body, mut used) = (ResponseReader::default(), Vec::new(), 0);
            for bytes in response.chunks(piece) {
                let count = reader.feed(bytes, Some(&mut body)).unwrap();
                used += count;
                if count < bytes.len() {
                    break;
                }
            }
            assert!(reader.done());
            assert_eq!(reader.body_bytes, body.len() as u64);
            (reader.status, body, used)
        });
        let first = results.next().unwrap();
        assert!(results.all(|other| other == first));
        first
    }

    #[test]
    fn content_length_ends_a_response() {
        let (status, body, used) = read(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1");
        assert_eq!((status, body.as_slice(), used), (200, &b"hello"[..], 43));
    }

    #[test]
    fn the_last_chunk_and_the_trailers_end_a_response() {
        let chunked =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nA: b\r\n\r\n";
        let (status, body, used) = read(chunked);
        assert_eq!((status, body.as_slice(), used), (200, &b"hello"[..], chunked.len()));
    }

    #[test]
    fn an_interim_response_is_passed_over() {
        let (status, _, _) =
            read(b"HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\nHTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(status, 404);
    }

    #[test]
    fn much_of_the_body_may_come_with_the_head_but_the_head_ends() {
        let mut response = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 3 * HEAD_BYTES_MAX).into_bytes();
        response.resize(response.len() + 3 * HEAD_BYTES_MAX, b'x');
        let mut reader = ResponseReader::default();
        assert_eq!(reader.feed(&response, None).unwrap(), response.len());
        assert!(reader.done());
        let endless = [b"HTTP/1.1 200 OK\r\nA: ".to_vec(), vec![b'x'; HEAD_BYTES_MAX]].concat();
        assert!(ResponseReader::default().feed(&endless, None).is_err());
    }

    #[test]
    fn something_else_is_an_error() {
        assert!(ResponseReader::default().feed(b"SSH-2.0-OpenSSH\r\n", None).is_err());
    }
}
