use std::io;
use std::time::Duration;

use http::HeaderMap;

use super::body_memory::Buffered;
use super::over::Close;
use crate::http1::ProtoError;
use crate::http1::head::{LastHead, ParsedHead};
use crate::io::clock::Millis;
use crate::limits::Limits;

/// What a connection carries for its server, and does not look into.
pub(crate) trait Exchange {
    /// An answer that is more than bytes in memory, on its way.
    type Answer: Answer;
    /// An answer that comes later.
    type Later;
    /// What a handler reads a streamed request body from.
    type Pipe: Pipe;
}

/// What a connection asks of its server. None of it is I/O; answers made at once are collected by the service, and are sent when
/// the connection [asks for that](super::Act::Write).
pub(crate) trait Service<X: Exchange> {
    /// The present time.
    fn now(&self) -> Millis;

    fn limits(&self) -> &Limits;

    /// How long a connection may wait for a request.
    fn keep_alive(&self) -> Millis;

    /// No connection is kept for another request.
    fn is_stopping(&self) -> bool;

    /// The head that may come again, and the limits of heads.
    fn heads(&mut self) -> (&mut LastHead, &Limits);

    /// Answers a request without a body from memory, if it can. `for_engine`: it is `OPTIONS *`, which asks the server as such.
    fn inline(&mut self, head: Box<ParsedHead>, bytes: &[u8], for_engine: bool) -> Inline<X>;

    /// Whether answers are collected that were not sent yet.
    fn has_output(&self) -> bool;

    /// Answers what breaks a rule.
    fn reject(&mut self, error: ProtoError, is_head: bool);

    /// Answers 408 to a request whose body came too slowly.
    fn time_out(&mut self, error: ProtoError, is_head: bool);

    /// Answers 503 to a request whose body finds no memory.
    fn refuse(&mut self, is_head: bool);

    /// The memory for a request body.
    fn buffer(&self) -> Buffered;

    /// A pipe that begins with what was received. `rest`: bytes that are still to come, if the body's length was announced;
    /// `continue_due`: the client waits for `100 Continue`.
    fn pipe(&self, begun: Buffered, rest: Option<u64>, continue_due: bool) -> X::Pipe;

    /// Sends `100 Continue`.
    fn send_continue(&self);

    /// Whether a handler may begin although nothing of its body is there.
    fn has_spare_streams(&self) -> bool;

    /// Whether a thread is free for a body that has no room in memory.
    fn has_free_stream(&self) -> bool;

    /// Whether bodies that come slowly keep threads or memory from others.
    fn is_short_for_bodies(&self) -> bool;

    /// Gives the source of an answer the means to say that it has more; returns how long to wait for that at most.
    fn wait(&mut self, answer: &mut X::Answer) -> Duration;

    /// An answer is given up: its client does not take it.
    fn abandon(&mut self, answer: &mut X::Answer);

    /// A deadline was missed.
    fn count_timeout(&self);

    /// Whether much of the last answer may still be on its way.
    fn last_was_large(&self) -> bool;

    /// Whether something that was sent has not arrived at the client's kernel yet.
    fn has_in_flight(&self) -> bool;
}

/// What [`Service::inline`] came to.
pub(crate) enum Inline<X: Exchange> {
    /// Answered, behind the answers before it.
    Answered,
    /// Answered; enough is collected.
    Enough,
    /// Answered; nothing follows on this connection.
    Last(Close),
    /// Answered by what is more than bytes in memory. It has taken the collected answers along.
    Answer(Box<X::Answer>),
    /// The answer comes later.
    Later(X::Later),
    /// A worker is to answer it.
    Job(Box<ParsedHead>),
}

/// An answer on its way.
pub(crate) trait Answer {
    /// Bytes that the socket has taken.
    fn sent(&self) -> u64;

    /// The window of the write deadline, which begins now if there is none.
    fn window(&mut self, now: Millis) -> &mut Window;

    /// Everything there was is sent, and the source had no more for now.
    fn is_waiting(&self) -> bool;

    /// The client or the server would rather have it end. True: it does.
    fn hang_up(&mut self) -> bool;
}

/// A window of the write deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) began: Millis,
    /// What had been sent then.
    pub(crate) had: u64,
    /// At its end it was tried to send, whether the socket counted as writable or not.
    pub(crate) had_last_try: bool,
}

/// A request body between the connection that receives it and the handler that reads it.
pub(crate) trait Pipe: Clone {
    /// Adds bytes.
    fn push(&self, data: &[u8]);

    /// The body is complete.
    fn complete(&self, trailers: HeaderMap);

    /// The body breaks a rule, and is received no further.
    fn refuse(&self, error: ProtoError);

    /// The rest of the body will never come.
    fn abort(&self, reason: io::ErrorKind);

    /// Decides who receives next. After anything but [`Receiver::Connection`] the handler has to say when that changes. Asked
    /// only while the connection does not receive.
    fn receiver(&self) -> Receiver;

    /// Whether to go on receiving, where a handler can't do that itself. After a `false` the handler has to ask for more.
    fn has_room(&self) -> bool {
        self.receiver() == Receiver::Connection
    }

    /// Bytes of the body that the handler has received itself since this was last asked.
    fn take_received(&self) -> u64;

    /// Whether the connection waits for the handler to read.
    fn is_paused(&self) -> bool;
}

/// Who receives more of a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// The connection: what it receives is [pushed](Pipe::push).
    Connection,
    /// The handler, straight from the socket.
    Handler,
    /// Nobody, until the handler has read what there is.
    Nobody,
}
