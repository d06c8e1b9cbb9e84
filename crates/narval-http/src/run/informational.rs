//! Informational responses (RFC 9110 section 15.2), sent before the answer by the handler that is at work on it.
//!
//! The TX lease says who may write. While a handler runs, its job holds the lease; it lies in the worker thread's keeping
//! here, so that the handler can use it for what comes before the answer, and nobody else can.

use std::cell::Cell;
use std::io;

use http::{HeaderName, HeaderValue, StatusCode, Version, header};

use crate::Request;
use crate::http1::response_head::encode_informational;
use crate::run::connection::{Connection, TxLease};

/// A lease whose job's handler runs on this thread.
struct Kept {
    lease: TxLease,
    /// Names the request: where its head is in memory.
    request: usize,
}

thread_local! {
    static KEPT: Cell<Option<Kept>> = const { Cell::new(None) };
}

/// Worker: the handler of `request` is about to run.
pub(crate) fn keep(lease: TxLease, request: &Request) {
    KEPT.set(Some(Kept { lease, request: request.address() }));
}

/// Worker: the handler has returned. None: the lease was lost to a connection that broke.
pub(crate) fn take_back() -> Option<TxLease> {
    KEPT.take().map(|kept| kept.lease)
}

/// Sends an informational response on the connection of the request at this address, if its handler runs on this thread.
pub(crate) fn send(request: usize, message: &Informational<'_>) -> io::Result<bool> {
    let Some(kept) = KEPT.take() else { return Ok(false) };
    if kept.request != request {
        KEPT.set(Some(kept));
        return Ok(false);
    }
    let sent = kept.lease.connection().map_or(Ok(false), |connection| message.send(connection));
    // After an error the lease is dropped, which aborts the connection: something of the message may be out.
    if sent.is_ok() {
        KEPT.set(Some(kept));
    }
    sent
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

    /// Whether clients of this version know informational responses.
    pub(crate) fn is_known_to(version: Version) -> bool {
        version != Version::HTTP_10
    }

    /// Sends it, if the socket takes it at once: it is a hint, and not worth waiting for.
    ///
    /// # Errors
    /// The connection is broken, or has to be aborted because only a part could be sent.
    pub(crate) fn send(&self, connection: &Connection) -> io::Result<bool> {
        let mut head = Vec::new();
        encode_informational(&mut head, self.status, self.fields);
        connection.send_ahead(head)
    }
}
