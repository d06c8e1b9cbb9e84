//! What jobs hold of a connection. It says so when it is dropped, so that no connection waits for nothing.

use std::sync::Arc;

use crate::io::clock::Millis;
use crate::io::output_memory::Share;
use crate::io::over::Close;
use crate::message::informational::Informer;
use crate::run::connection::Connection;
use crate::run::http2::Answer;
use crate::run::lease::{Finish, Holder};
use crate::run::mailbox::Note;
use crate::run::transmit::Outgoing;

/// The right to answer a request, or to produce a piece of an answer's body: by writing to its HTTP/1 connection, whose lease it is, or by a message to the shard, which
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

    /// For informational responses before the answer.
    pub(crate) fn informer(&self) -> Option<Informer> {
        self.connection.as_ref().map(|connection| connection.informer(self.stream))
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
