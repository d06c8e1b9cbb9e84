//! Informational responses (RFC 9110 section 15.2), sent before the answer.

use std::cell::Cell;
use std::io;

use http::{HeaderName, HeaderValue, StatusCode, Version, header};

use crate::http1::response_head::encode_informational;

/// Sends an informational response on the connection of the request at this address, if its handler runs on this thread.
type Sender = fn(request: usize, message: &Informational<'_>) -> io::Result<bool>;

thread_local! {
    static SENDER: Cell<Option<Sender>> = const { Cell::new(None) };
}

/// Worker: how this thread sends them.
pub(crate) fn set_sender(sender: Sender) {
    SENDER.set(Some(sender));
}

/// Sends one through this thread's worker, if it has one.
pub(crate) fn send(request: usize, message: &Informational<'_>) -> io::Result<bool> {
    SENDER.get().map_or(Ok(false), |send| send(request, message))
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
