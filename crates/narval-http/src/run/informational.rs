//! Informational responses (RFC 9110 section 15.2), sent by a running handler before its answer.
//!
//! While a handler runs, its job has the right to answer. It is stored here in a thread-local of the worker, so only
//! that handler can use it.

use std::cell::Cell;
use std::io;

use crate::Request;
use crate::message::informational::{self, Informational};
use crate::run::reply::Reply;

/// The right of a job whose handler runs on this thread.
struct Kept {
    reply_to: Reply,
    /// Identifies the request: the address of its head.
    request: usize,
}

thread_local! {
    static KEPT: Cell<Option<Kept>> = const { Cell::new(None) };
}

/// Worker: the handler of `request` is about to run.
pub(crate) fn keep(reply_to: Reply, request: &Request) {
    informational::set_sender(send);
    KEPT.set(Some(Kept { reply_to, request: request.address() }));
}

/// Worker: the handler has returned. `None` if the connection broke meanwhile.
pub(crate) fn take_back() -> Option<Reply> {
    KEPT.take().map(|kept| kept.reply_to)
}

/// Sends an informational response on the connection of the request at this address, if its handler runs on this thread.
fn send(request: usize, message: &Informational<'_>) -> io::Result<bool> {
    let Some(kept) = KEPT.take() else { return Ok(false) };
    if kept.request != request {
        KEPT.set(Some(kept));
        return Ok(false);
    }
    let sent = kept.reply_to.inform(message);
    // After an error the right is dropped, which aborts the connection: part of the message may have been sent.
    if sent.is_ok() {
        KEPT.set(Some(kept));
    }
    sent
}
