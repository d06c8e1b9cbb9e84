//! Informational responses (RFC 9110 section 15.2), sent before the answer.

use std::io;
use std::sync::Weak;

use http::{HeaderName, HeaderValue, StatusCode, Version, header};

use crate::http1::response_head::encode_informational;
use crate::message::departure::Departure;

/// A connection, as the requests that came over it see it.
pub(crate) trait Informs: Send + Sync + std::fmt::Debug {
    /// Sends an informational response to a request (unless `stream` is 0, on a stream) whose answer has not begun, if that does not
    /// block. `is_due`: whether the client still waits for the answer to this request.
    ///
    /// # Errors
    /// The connection is broken.
    fn inform(&self, stream: u32, message: &Informational<'_>, is_due: &dyn Fn() -> bool) -> io::Result<bool>;
}

/// How a request reaches its client before its answer. A request that is kept keeps no connection open.
#[derive(Clone, Debug)]
pub(crate) struct Informer {
    pub(crate) connection: Weak<dyn Informs>,
    /// 0 for HTTP/1.
    pub(crate) stream: u32,
}

impl Informer {
    /// Sends an informational response to the request with this departure.
    pub(crate) fn send(&self, message: &Informational<'_>, departure: &Departure) -> io::Result<bool> {
        let Some(connection) = self.connection.upgrade() else { return Ok(false) };
        connection.inform(self.stream, message, &|| departure.is_awaited())
    }
}

/// An informational response to be sent.
pub(crate) struct Informational<'a> {
    status: StatusCode,
    fields: &'a [(HeaderName, HeaderValue)],
}

impl<'a> Informational<'a> {
    pub(crate) fn new(status: StatusCode, fields: &'a [(HeaderName, HeaderValue)]) -> io::Result<Self> {
        let is_the_engines = matches!(status, StatusCode::CONTINUE | StatusCode::SWITCHING_PROTOCOLS);
        if !status.is_informational() || is_the_engines {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a status of an informational response"));
        }
        if fields.iter().any(|(name, _)| matches!(*name, header::CONTENT_LENGTH | header::TRANSFER_ENCODING)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an informational response has no body"));
        }
        Ok(Self { status, fields })
    }

    /// Whether clients of this version support informational responses.
    pub(crate) fn is_known_to(version: Version) -> bool {
        version != Version::HTTP_10
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn fields(&self) -> &[(HeaderName, HeaderValue)] {
        self.fields
    }

    /// The encoding for HTTP/1 connections.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut head = Vec::new();
        encode_informational(&mut head, self.status, self.fields);
        head
    }
}
