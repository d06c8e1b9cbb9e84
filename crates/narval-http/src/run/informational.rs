//! Informational responses (RFC 9110 section 15.2), sent before the answer by the handler that is at work on it.
//!
//! The TX lease says who may write. While a handler runs, its job holds the lease; it lies in the worker thread's keeping
//! here, so that the handler can use it for what comes before the answer, and nobody else can.

use std::cell::Cell;
use std::io;

use crate::Request;
use crate::message::informational::{self, Informational};
use crate::run::connection::TxLease;

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
    informational::set_sender(send);
    KEPT.set(Some(Kept { lease, request: request.address() }));
}

/// Worker: the handler has returned. None: the lease was lost to a connection that broke.
pub(crate) fn take_back() -> Option<TxLease> {
    KEPT.take().map(|kept| kept.lease)
}

/// Sends an informational response on the connection of the request at this address, if its handler runs on this thread.
fn send(request: usize, message: &Informational<'_>) -> io::Result<bool> {
    let Some(kept) = KEPT.take() else { return Ok(false) };
    if kept.request != request {
        KEPT.set(Some(kept));
        return Ok(false);
    }
    let sent = kept.lease.connection().map_or(Ok(false), |connection| connection.send_ahead(message.encode()));
    // After an error the lease is dropped, which aborts the connection: something of the message may be out.
    if sent.is_ok() {
        KEPT.set(Some(kept));
    }
    sent
}
