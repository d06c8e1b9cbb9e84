use crate::run::answer_context::PendingLate;
use crate::run::closing::End;
#[cfg(doc)]
use crate::run::event::Event;
use crate::run::intake::Request;
use crate::run::transmit::Outgoing;

/// The next action for a connection, once the gathered responses are sent. At its end the connection gets an [`Event`].
pub(crate) enum Act {
    /// Wait for the events in [`Wants`](super::Wants).
    Wait,
    /// There is more input to use: [`Event::Ready`].
    Again,
    /// Send this response: [`Event::Answered`]. It includes the gathered ones.
    Answer(Box<Outgoing>),
    /// Have a worker answer this request: [`Event::Answered`].
    Job(Request),
    /// The answer to the last request follows later: [`Event::Answered`].
    Later(Box<PendingLate>),
    /// End the connection.
    End(End),
    /// Drop the connection at once.
    Drop,
}
