use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::http1::ProtoError;
use crate::http1::head::ParsedHead;
use crate::http2::head::HeadBuilder;
use crate::intake::body_memory::Buffered;
use crate::intake::{Host, Pipe, Request};
use crate::io::output_memory::Holding;
use crate::message::carrier::Carrier;
use crate::message::departure::Departure;
use crate::ws;

/// Types that a connection carries for its server without looking into them.
pub(crate) trait Exchange {
    /// The body of a response.
    type Body: Body<Maker = Self::Maker, Made = Self::Made>;
    /// Produces the next piece of a body; may block.
    type Maker;
    /// The piece, together with its maker.
    type Made;
    /// An answer that follows later.
    type Later;
    /// The pipe from which a handler reads a streamed request body.
    type Pipe: Pipe;
    /// What to record at the end of a response.
    type Note;
}

/// The body of a response being sent.
pub(crate) trait Body {
    type Maker;
    type Made;

    /// Bytes that can be taken now.
    fn ready(&self) -> u64;

    /// What follows them.
    fn rest(&self) -> Rest;

    /// Bytes of memory produced for the ready part; bodies that the handler supplied as a whole and ranges of files do
    /// not count.
    fn held(&self) -> usize;

    /// Bytes of memory in all, with a body that the handler supplied as a whole: all of it until its last byte is taken.
    fn in_memory(&self) -> usize;

    /// Takes ready bytes, at least one; 0 if they must be produced after all.
    ///
    /// # Errors
    /// The body cannot be completed.
    fn take(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Produces about `quantum` bytes, for bodies where that does not block.
    ///
    /// # Errors
    /// The body cannot be completed.
    fn make(&mut self, quantum: usize) -> io::Result<()>;

    /// Takes the maker of the next piece, for another thread; it returns with [`made`](Self::made).
    fn maker(&mut self) -> Option<Self::Maker>;

    /// The next piece was produced.
    fn made(&mut self, made: Self::Made);

    /// Its source has more data.
    fn resume(&mut self);

    /// The header block of the trailers, once everything is taken; empty if there are none.
    fn trailers(&mut self) -> Vec<u8>;

    /// Asks it to end, for the client or the server; returns whether it does.
    fn hang_up(&mut self) -> bool;
}

/// What follows the ready bytes of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// The end, after trailers if `true`.
    End { trailers: bool },
    /// The next piece is [produced here](Body::make).
    Here,
    /// It may block, so a worker runs its [maker](Body::maker).
    Worker,
    /// It is being produced.
    Making,
    /// Its source has no data now.
    Waiting,
}

/// An answer.
pub(crate) struct Answer<X: Exchange> {
    pub(crate) status: u16,
    /// Its header block.
    pub(crate) block: Vec<u8>,
    /// `None` without a body, or with an empty one.
    pub(crate) body: Option<X::Body>,
    pub(crate) note: Option<X::Note>,
    /// The stream becomes this WebSocket.
    pub(crate) accepted: Option<ws::Accepted>,
}

/// Work for another thread.
pub(crate) enum Work<X: Exchange> {
    /// A worker must answer this request; report [`refused`](super::Conn::refused) if the queue is full.
    Request { stream: u32, request: Request<X::Pipe>, departure: Departure },
    /// The answer follows later.
    Later { stream: u32, later: X::Later, departure: Departure },
    /// Produce about this many bytes.
    Make { stream: u32, maker: X::Maker, quantum: usize, departure: Departure },
}

/// The result of [`Service::inline`].
pub(crate) enum Inline<X: Exchange> {
    Answer(Answer<X>),
    Later(X::Later),
    /// A worker must answer it.
    Job,
}

/// What a connection needs from its server. None of it blocks.
pub(crate) trait Service<X: Exchange>: Host {
    /// A builder for a request head, to be returned afterwards.
    fn head(&mut self) -> HeadBuilder;

    fn give_head_back(&mut self, head: HeadBuilder);

    /// Answers a request without a body inline, if possible. `for_engine`: it is `OPTIONS *`, which is about the server
    /// as a whole.
    fn inline(&mut self, head: &ParsedHead, bytes: &[u8], for_engine: bool) -> Inline<X>;

    /// The answer to an invalid request.
    fn reject(&mut self, error: ProtoError, is_head: bool) -> Answer<X>;

    /// Counts a malformed request that is not answered.
    fn count_malformed(&self);

    /// The 503 of an overloaded server.
    fn overloaded(&mut self, is_head: bool) -> Answer<X>;

    /// A pipe that starts with the received bytes. `continue_due`: the client waits for `100 Continue`.
    fn pipe(&self, stream: u32, begun: Buffered, continue_due: bool) -> X::Pipe;

    /// What the connection holds for its client.
    fn holding(&self) -> &Arc<Holding>;

    /// Registers a waker with the source of a response; returns the longest wait.
    fn wait(&mut self, stream: u32, body: &mut X::Body) -> Duration;

    /// The threads that run the handlers of WebSockets.
    fn websocket_workers(&self) -> &impl ws::Runs;

    /// The stream, for whoever works for its request.
    fn carrier(&self, stream: u32) -> Carrier;

    /// Records the end of a response of which this many bytes were sent.
    fn over(&mut self, status: u16, bytes: u64, note: Option<X::Note>, ending: Ending<'_>);

    /// Tells whoever works for a stream that it was reset.
    fn tell_departed(&self, departure: &Departure);

    /// The connection was ended because it broke a limit.
    fn count_abuse(&self, what: &'static str);
}

/// How a response ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending<'a> {
    Complete,
    /// The client does not want it, or does not read it.
    Aborted,
    /// Its body failed.
    Failed(&'a io::Error),
}
