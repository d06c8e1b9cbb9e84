//! Sends a piece of a response, and returns what follows. Used by workers and shards.

use crate::io::over::{Next, Over};
use crate::message::panic_guard;
use crate::observe::counters::ThreadCounters;
use crate::run::connection::Connection;
use crate::run::server::state::ServerState;
use crate::run::transmit::{Outgoing, Step};

/// Sends up to `budget` bytes of `outgoing` on `connection`, whose lease the caller holds. Records the response once it
/// is over.
pub(crate) fn send_piece(
    outgoing: &mut Outgoing,
    connection: &Connection,
    budget: u64,
    server: &ServerState,
    counters: &ThreadCounters,
) -> Next {
    let step = outgoing.drive(connection, budget);
    if !matches!(step, Ok(Step::Complete)) {
        outgoing.count_held(connection.holding());
    }
    match step {
        Ok(Step::Complete) => {
            server.record_outgoing(counters, outgoing, false);
            Next::Over(Over::complete(outgoing.keep_alive, outgoing.sent()))
        }
        Ok(Step::Blocked) => Next::AtRoom,
        Ok(Step::Waiting) => Next::AtSource,
        Ok(Step::Yield) => Next::AtOnce,
        Err(error) => {
            tracing::debug!(%error, sent = outgoing.sent(), "a response was aborted");
            counters.panics.add(u64::from(panic_guard::is_panic(&error)));
            server.record_outgoing(counters, outgoing, true);
            // Otherwise the source failed: the client is there, and sees it.
            if let Some(here) = outgoing.here.as_ref().filter(|_| connection.socket.is_broken()) {
                counters.panics.add(here.departure().tell());
            }
            Next::Over(Over::ABORTED)
        }
    }
}
