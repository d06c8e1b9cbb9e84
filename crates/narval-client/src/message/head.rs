//! The head of a response: status and fields.

use std::time::{Duration, SystemTime};

use crate::error::HttpError;
use crate::limits::FIELDS_MAX;

/// Status code and fields of a response.
#[derive(Debug, Clone, Default)]
pub struct Head {
    /// The status code.
    pub status: u16,
    /// Names in lower case, with their values.
    fields: Vec<(String, String)>,
    /// Whether it is HTTP/1.0, where connections close by default.
    http_1_0: bool,
}

impl Head {
    /// Parses a head if it is complete. Returns the head and its length in bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, HttpError> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let len = match response.parse(bytes) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => return Err(HttpError::Malformed("too many header fields")),
            Err(_) => return Err(HttpError::Malformed("the head does not parse")),
        };
        let fields = response
            .headers
            .iter()
            .map(|field| (field.name.to_ascii_lowercase(), String::from_utf8_lossy(field.value).trim().to_owned()));
        let fields = fields.collect();
        let head = Self { status: response.code.unwrap_or_default(), fields, http_1_0: response.version == Some(0) };
        Ok(Some((head, len)))
    }

    /// A head with this status, in place of a response that means the same.
    pub(crate) fn local(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    /// The first value of a field; `name` in lower case.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.as_str())
    }

    /// The members of a list, over all fields of this name; `name` in lower case.
    pub(crate) fn list<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let values = self.fields.iter().filter(move |(field, _)| field == name);
        values.flat_map(|(_, value)| value.split(',')).map(str::trim)
    }

    fn has_token(&self, name: &str, token: &str) -> bool {
        self.list(name).any(|part| part.eq_ignore_ascii_case(token))
    }

    /// Whether the connection stays open after this response (RFC 9112 section 9.3).
    pub(crate) fn keeps_alive(&self) -> bool {
        if self.has_token("connection", "close") {
            return false;
        }
        !self.http_1_0 || self.has_token("connection", "keep-alive")
    }

    /// The same head, but the connection is not reused after it.
    pub(crate) fn closing(&self) -> Self {
        let mut closing = self.clone();
        closing.fields.push(("connection".to_owned(), "close".to_owned()));
        closing
    }

    /// Whether the body is chunked. An error for any other transfer coding.
    pub(crate) fn is_chunked(&self) -> Result<bool, HttpError> {
        match self.field("transfer-encoding") {
            None => Ok(false),
            Some(value) if value.eq_ignore_ascii_case("chunked") => Ok(true),
            Some(_) => Err(HttpError::Malformed("unknown Transfer-Encoding")),
        }
    }

    /// `Content-Length`; an error if it is not a number, or repeated with different values.
    pub(crate) fn content_length(&self) -> Result<Option<u64>, HttpError> {
        let mut found = None;
        for (_, value) in self.fields.iter().filter(|(field, _)| field == "content-length") {
            let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
            let length: u64 = match value.parse() {
                Ok(length) if digits => length,
                _ => return Err(HttpError::Malformed("Content-Length is not a number")),
            };
            if found.is_some_and(|other| other != length) {
                return Err(HttpError::Malformed("two Content-Length fields that differ"));
            }
            found = Some(length);
        }
        Ok(found)
    }

    /// `Date`: the server's clock, in whole seconds.
    pub fn date(&self) -> Option<SystemTime> {
        httpdate::parse_http_date(self.field("date")?).ok()
    }

    /// `Retry-After`, in seconds or as a date (RFC 9110 section 10.2.3).
    pub fn retry_after(&self) -> Option<Duration> {
        let value = self.field("retry-after")?;
        if let Ok(seconds) = value.parse() {
            return Some(Duration::from_secs(seconds));
        }
        let date = httpdate::parse_http_date(value).ok()?;
        Some(date.duration_since(SystemTime::now()).unwrap_or_default())
    }

    /// First byte and total length from `Content-Range: bytes 5-9/10`.
    pub(crate) fn content_range(&self) -> Option<(u64, Option<u64>)> {
        let value = self.field("content-range")?.strip_prefix("bytes ")?;
        let (range, total) = value.split_once('/')?;
        let (first, _) = range.split_once('-')?;
        Some((first.parse().ok()?, total.parse().ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Head {
        Head::parse(text.as_bytes()).unwrap().unwrap().0
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let twice = head("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n");
        assert!(twice.content_length().is_err());
        assert!(head("HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\n").content_length().is_err());
        assert_eq!(head("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n").content_length().unwrap(), Some(3));
        assert!(head("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n").is_chunked().is_err());
    }

    #[test]
    fn connections_close_when_they_say_so() {
        assert!(head("HTTP/1.1 200 OK\r\n\r\n").keeps_alive());
        assert!(!head("HTTP/1.0 200 OK\r\n\r\n").keeps_alive());
        assert!(!head("HTTP/1.1 200 OK\r\nConnection: x, Close\r\n\r\n").keeps_alive());
    }

    #[test]
    fn retry_after_in_both_forms() {
        assert_eq!(head("HTTP/1.1 503 x\r\nRetry-After: 7\r\n\r\n").retry_after(), Some(Duration::from_secs(7)));
        let past = head("HTTP/1.1 503 x\r\nRetry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n");
        assert_eq!(past.retry_after(), Some(Duration::ZERO));
        assert_eq!(head("HTTP/1.1 206 x\r\nContent-Range: bytes 5-9/10\r\n\r\n").content_range(), Some((5, Some(10))));
    }
}
