//! Sends a piece of an answer, and says what follows it: for workers and shards alike.

use crate::limits::LARGE_ANSWER;
use crate::message::panic_guard;
use crate::observe::counters::ThreadCounters;
use crate::run::connection::Connection;
use crate::run::mailbox::Close;
use crate::run::server_state::ServerState;
use crate::run::transmit::{Outgoing, Step};

/// What follows a piece of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: the answer is complete, or was aborted.
    Over(Over),
    /// The next piece, when the socket takes more.
    AtRoom,
    /// The next piece, when the source has more.
    AtSource,
    /// The next piece: the budget is used up, and the socket may take more.
    AtOnce,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    /// How the connection is to be closed; `None`: it is kept for the next request.
    pub(crate) close: Option<Close>,
    /// Whether much of the answer may still be in the kernel's send buffer.
    pub(crate) large: bool,
}

impl Over {
    /// After an answer of which all `sent` bytes are out.
    pub(crate) fn complete(keep_alive: bool, sent: u64) -> Self {
        Self { close: (!keep_alive).then(|| Close::after(sent)), large: sent > LARGE_ANSWER }
    }

    /// After an answer that can't be completed.
    pub(crate) const ABORTED: Self = Self { close: Some(Close::Abort), large: false };
}

/// Sends up to `budget` bytes of `outgoing` on `connection`, whose lease the caller holds. An answer that is over is recorded.
pub(crate) fn send_piece(
    outgoing: &mut Outgoing,
    connection: &Connection,
    budget: u64,
    server: &ServerState,
    counters: &ThreadCounters,
) -> Next {
    match outgoing.drive(connection, budget) {
        Ok(Step::Complete) => {
            server.record_outgoing(counters, outgoing, false);
            Next::Over(Over::complete(outgoing.keep_alive, outgoing.sent()))
        }
        Ok(Step::Blocked) => Next::AtRoom,
        Ok(Step::Waiting) => Next::AtSource,
        Ok(Step::Yield) => Next::AtOnce,
        Err(error) => {
            tracing::debug!(%error, sent = outgoing.sent(), "an answer was aborted");
            counters.panics.add(u64::from(panic_guard::is_panic(&error)));
            server.record_outgoing(counters, outgoing, true);
            Next::Over(Over::ABORTED)
        }
    }
}
