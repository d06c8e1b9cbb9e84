use super::over::Close;
use crate::http1::ProtoError;
use crate::http1::head::{LastHead, ParsedHead};
use crate::intake::body_memory::Buffered;
use crate::intake::{Host, Pipe};
use crate::io::clock::Millis;
use crate::limits::Limits;

/// Types that a connection carries for its server without looking into them.
pub(crate) trait Exchange {
    /// A response that is not only bytes in memory.
    type Answer;
    /// An answer that follows later.
    type Later;
    /// The pipe from which a handler reads a streamed request body.
    type Pipe: Pipe;
}

/// What a connection needs from its server. None of it is I/O: the service gathers inline responses, which are sent
/// before its next [action](super::Act).
pub(crate) trait Service<X: Exchange>: Host {
    /// How long a connection may be idle.
    fn keep_alive(&self) -> Millis;

    /// The last head, in case the next one repeats it, and the limits of heads.
    fn heads(&mut self) -> (&mut LastHead, &Limits);

    /// Answers a request without a body inline, if possible. `for_engine`: it is `OPTIONS *`, which is about the server
    /// as a whole.
    fn inline(&mut self, head: Box<ParsedHead>, bytes: &[u8], for_engine: bool) -> Inline<X>;

    /// Whether there are gathered responses that are not sent yet.
    fn has_output(&self) -> bool;

    /// Answers a malformed request.
    fn reject(&mut self, error: ProtoError, is_head: bool);

    /// Answers 408 to a request whose body arrived too slowly.
    fn time_out(&mut self, error: ProtoError, is_head: bool);

    /// Answers 503 because there is no memory for the request's body.
    fn refuse(&mut self, is_head: bool);

    /// A pipe that starts with the received bytes. `rest`: bytes still to come, if the body's length was announced;
    /// `continue_due`: the client waits for `100 Continue`.
    fn pipe(&self, begun: Buffered, rest: Option<u64>, continue_due: bool) -> X::Pipe;

    /// Sends `100 Continue`.
    fn send_continue(&self);

    /// Whether much of the last response may still be in flight.
    fn last_was_large(&self) -> bool;
}

/// The result of [`Service::inline`].
pub(crate) enum Inline<X: Exchange> {
    /// Answered; the response is gathered after the previous ones.
    Answered,
    /// Answered; enough is gathered.
    Enough,
    /// Answered; nothing follows on this connection.
    Last(Close),
    /// Answered with more than bytes in memory. Includes the gathered responses before it.
    Answer(Box<X::Answer>),
    /// The answer follows later.
    Later(X::Later),
    /// A worker must answer it.
    Job(Box<ParsedHead>),
}
