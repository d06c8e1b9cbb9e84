use crate::run::answer_context::PendingLate;
use crate::run::closing::End;
use crate::run::intake::Request;
use crate::run::transmit::Outgoing;

/// The next action for a connection, once the gathered responses are sent.
pub(crate) enum Act {
    /// Wait for the events in [`Wants`](super::Wants).
    Wait,
    /// There is more input to use: [`Conn::go_on`](super::Conn::go_on).
    Again,
    /// Send this response: [`answered`](super::Conn::answered) at its end. It includes the gathered ones.
    Answer(Box<Outgoing>),
    /// Have a worker answer this request: [`dispatched`](super::Conn::dispatched) or [`refused`](super::Conn::refused), and then
    /// [`answered`](super::Conn::answered).
    Job(Request),
    /// The answer to the last request follows later: [`answered`](super::Conn::answered).
    Later(Box<PendingLate>),
    /// End the connection.
    End(End),
    /// Drop the connection at once.
    Drop,
}
