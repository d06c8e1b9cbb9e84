//! What jobs hold of a connection. Each says so when it is dropped, so that no connection waits for nothing.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::io::clock::Millis;
use crate::io::output_memory::Share;
use crate::io::over::Close;
use crate::message::body::produced::{Made, Maker};
use crate::message::departure::Departure;
use crate::message::informational::{Informational, Informs};
use crate::run::connection::Connection;
use crate::run::http2::Answer;
use crate::run::lease::{Finish, Holder};
use crate::run::mailbox::Note;
use crate::run::transmit::Outgoing;

/// The right to answer a request: by writing to its HTTP/1 connection, whose lease it is, or by a message to the shard, which
/// alone writes to an HTTP/2 connection. Dropping it without an answer aborts the connection, or resets the stream.
#[derive(Debug)]
pub(crate) struct Reply {
    /// `None` once it is used.
    connection: Option<Arc<Connection>>,
    /// 0 for an HTTP/1 connection.
    stream: u32,
}

impl Reply {
    /// Shard: moves the lease of an HTTP/1 connection into a job.
    pub(crate) fn dispatch(connection: &Arc<Connection>) -> Self {
        debug_assert_eq!(connection.lease.holder(), Holder::Shard, "only the shard dispatches");
        connection.lease.dispatch();
        Self::on_stream(connection, 0)
    }

    /// Shard: the right to answer on a stream.
    pub(crate) fn on_stream(connection: &Arc<Connection>, stream: u32) -> Self {
        Self { connection: Some(connection.clone()), stream }
    }

    /// A right that is used already.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { connection: None, stream: 0 }
    }

    /// Whether the shard sends the answer.
    pub(crate) fn is_on_stream(&self) -> bool {
        self.stream != 0
    }

    /// The connection.
    pub(crate) fn connection(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref()
    }

    /// Uses it: the shard gets `note`.
    pub(crate) fn post(mut self, note: Note) {
        if let Some(connection) = self.connection.take() {
            connection.post(self.stream, note);
        }
    }

    /// The answer on a stream. `held`: what it holds until the shard has it.
    pub(crate) fn answer(self, answer: Answer, held: Share) {
        self.post(Note::Answer(Box::new(answer), held));
    }

    /// The response is sent, and the connection is ready for the next request. Sends a message only if the shard waits
    /// for one.
    pub(crate) fn finish(mut self, now: Millis, large: bool) {
        if let Some(connection) = self.connection.take() {
            connection.answered(now, large);
            if connection.lease.finish() == Finish::Message {
                connection.post(0, Note::Finished(None));
            }
        }
    }

    /// The response is sent, and the shard must close the connection.
    pub(crate) fn finish_with(self, close: Close) {
        self.post(Note::Finished(Some(close)));
    }

    /// The socket is full, or the source has nothing: the shard goes on.
    pub(crate) fn hand_back(self, outgoing: Box<Outgoing>) {
        self.post(Note::Handed(outgoing));
    }

    /// The response is a 101: the connection becomes a WebSocket, whose lock replaces the lease. [Post](Note::Upgraded)
    /// the message once the response is being sent.
    pub(crate) fn upgrade(mut self) -> Option<Arc<Connection>> {
        self.connection.take()
    }

    /// Sends an informational response before the answer, if that does not block.
    ///
    /// # Errors
    /// The connection is broken; drop the right to answer.
    pub(crate) fn inform(&self, message: &Informational<'_>) -> io::Result<bool> {
        self.connection.as_ref().map_or(Ok(false), |connection| connection.inform(self.stream, message, &|| true))
    }

    /// Returns an unused right. Only on the shard's own thread.
    pub(crate) fn give_up(mut self) {
        if let Some(connection) = self.connection.take()
            && !self.is_on_stream()
        {
            connection.lease.take_back();
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.post(self.stream, Note::Lost);
        }
    }
}

/// A job for a worker: produce a piece of a body. The shard is notified in any case.
pub(crate) struct MakeJob {
    connection: Arc<Connection>,
    stream: u32,
    maker: Option<Maker>,
    quantum: usize,
    departure: Departure,
}

impl MakeJob {
    pub(crate) fn new(
        connection: &Arc<Connection>,
        stream: u32,
        maker: Maker,
        quantum: usize,
        departure: Departure,
    ) -> Self {
        Self { connection: connection.clone(), stream, maker: Some(maker), quantum, departure }
    }

    /// Produces the piece, unless the client has left, and sends it to the shard.
    pub(crate) fn run(mut self) {
        if self.departure.is_gone() {
            return;
        }
        let Some(maker) = self.maker.take() else { return };
        let mut held = Share::of_piece(self.connection.holding(), self.quantum);
        let made = catch_unwind(AssertUnwindSafe(|| maker.make(held.bytes())));
        let made = made.unwrap_or_else(|_| Err(io::Error::other("producing a piece of a response body panicked")));
        held.set(made.as_ref().map_or(0, Made::memory));
        self.post(made, held);
        self.quantum = 0;
    }

    fn post(&self, made: io::Result<Made>, held: Share) {
        self.connection.post(self.stream, Note::Made { made: Box::new((made, held)), quantum: self.quantum });
    }
}

impl Drop for MakeJob {
    fn drop(&mut self) {
        // Zero only after it ran.
        if self.quantum > 0 {
            self.post(Err(io::ErrorKind::Interrupted.into()), Share::default());
        }
    }
}

impl std::fmt::Debug for MakeJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MakeJob({}, {} bytes)", self.stream, self.quantum)
    }
}
