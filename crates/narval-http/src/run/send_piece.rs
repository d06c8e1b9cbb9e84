//! Sends a piece of a response, and returns what follows. Used by workers and shards.

use crate::io::over::{Next, Over};
use crate::message::panic_guard;
use crate::observe::counters::ThreadCounters;
use crate::run::connection::Connection;
use crate::run::server::state::ServerState;
use crate::run::transmit::Outgoing;

/// Sends up to `budget` bytes of `outgoing` on `connection`, whose lease the caller holds. Records the response once it
/// is over.
pub(crate) fn send_piece(
    outgoing: &mut Outgoing,
    connection: &Connection,
    budget: u64,
    server: &ServerState,
    counters: &ThreadCounters,
) -> Next {
    let driven = outgoing.drive(connection, connection.holding(), budget);
    if !matches!(driven, Ok(None)) {
        outgoing.count_held(connection.holding());
    }
    match driven {
        Ok(None) => {
            server.record_outgoing(counters, outgoing, false);
            Next::Over(Over::complete(outgoing.keep_alive, outgoing.sent()))
        }
        Ok(Some(next)) => next,
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
