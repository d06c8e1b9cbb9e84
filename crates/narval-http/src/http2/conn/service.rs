use std::io;
use std::time::Duration;

use http::HeaderMap;

use super::HeadBuilder;
use crate::http1::ProtoError;
use crate::http1::conn::Pipe;
use crate::http1::conn::body_memory::Buffered;
use crate::http1::head::ParsedHead;
use crate::io::clock::Millis;
use crate::limits::Limits;

/// What a connection carries for its server, and does not look into.
pub(crate) trait Exchange {
    /// The body of an answer.
    type Body: Body<Maker = Self::Maker, Made = Self::Made>;
    /// What makes the next piece of a body and may block meanwhile.
    type Maker;
    /// What it has made, with itself.
    type Made;
    /// An answer that comes later.
    type Later;
    /// What a handler reads a streamed request body from.
    type Pipe: Pipe;
    /// What is to be noted at an answer's end.
    type Note;
}

/// The body of an answer, on its way.
pub(crate) trait Body {
    type Maker;
    type Made;

    /// Bytes that can be taken now.
    fn ready(&self) -> u64;

    /// What comes behind them.
    fn rest(&self) -> Rest;

    /// Bytes of memory that were made for what is ready: not what the handler gave as a whole, nor what is still in files.
    fn held(&self) -> usize;

    /// Takes bytes that are ready, one at least. 0: they have to be made after all.
    ///
    /// # Errors
    /// The body can't be completed.
    fn take(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Makes about `quantum` bytes where that does not block.
    ///
    /// # Errors
    /// The body can't be completed.
    fn make(&mut self, quantum: usize) -> io::Result<()>;

    /// What makes the next piece elsewhere; it comes back with [`made`](Self::made).
    fn maker(&mut self) -> Option<Self::Maker>;

    /// The next piece was made.
    ///
    /// # Errors
    /// The body can't be completed.
    fn made(&mut self, made: Self::Made) -> io::Result<()>;

    /// Its source has more: to be asked again.
    fn resume(&mut self);

    /// The header block of the trailers, once all is taken; none where it is empty.
    fn trailers(&mut self) -> Vec<u8>;

    /// The client or the server would rather have it end. True: it does.
    fn hang_up(&mut self) -> bool;
}

/// What comes behind the bytes of a body that are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Nothing but trailers, where `true`.
    End { trailers: bool },
    /// It is [made here](Body::make).
    Here,
    /// It may block: its [maker](Body::maker) is for a worker.
    Worker,
    /// It is being made.
    Making,
    /// Its source has no more for now.
    Waiting,
}

/// An answer.
pub(crate) struct Answer<X: Exchange> {
    pub(crate) status: u16,
    /// Its header block.
    pub(crate) block: Vec<u8>,
    /// None where it has none, or an empty one.
    pub(crate) body: Option<X::Body>,
    pub(crate) note: Option<X::Note>,
}

/// What is to be done elsewhere.
pub(crate) enum Work<X: Exchange> {
    /// A worker is to answer this request: [`refused`](super::Conn::refused) where none will.
    Request { stream: u32, request: Box<Request<X>> },
    /// The answer comes later.
    Later { stream: u32, later: X::Later },
    /// About so many bytes are to be made.
    Make { stream: u32, maker: X::Maker, quantum: usize },
}

/// A request for a worker.
pub(crate) struct Request<X: Exchange> {
    pub(crate) bytes: bytes::Bytes,
    pub(crate) head: ParsedHead,
    pub(crate) body: RequestBody<X>,
}

/// The body of a request for a worker.
pub(crate) enum RequestBody<X: Exchange> {
    None,
    Buffered(Buffered, HeaderMap),
    Streamed(X::Pipe),
}

/// What [`Service::inline`] came to.
pub(crate) enum Inline<X: Exchange> {
    Answer(Answer<X>),
    Later(X::Later),
    /// A worker is to answer it.
    Job,
}

/// What a connection asks of its server. None of it blocks.
pub(crate) trait Service<X: Exchange> {
    /// The present time.
    fn now(&self) -> Millis;

    fn limits(&self) -> &Limits;

    /// No connection is kept for another request.
    fn is_stopping(&self) -> bool;

    /// A request head in the making, to be given back.
    fn head(&mut self) -> HeadBuilder;

    fn give_head_back(&mut self, head: HeadBuilder);

    /// Answers a request without a body from memory, if it can. `for_engine`: it is `OPTIONS *`, which asks the server as such.
    fn inline(&mut self, head: &ParsedHead, bytes: &[u8], for_engine: bool) -> Inline<X>;

    /// The answer to what breaks a rule.
    fn reject(&mut self, error: ProtoError, is_head: bool) -> Answer<X>;

    /// A request was malformed, and is not answered.
    fn count_malformed(&self);

    /// The 503 of an overloaded server.
    fn overloaded(&mut self, is_head: bool) -> Answer<X>;

    /// The memory for a request body.
    fn buffer(&self) -> Buffered;

    /// A pipe that begins with what was received. `continue_due`: the client waits for `100 Continue`.
    fn pipe(&self, stream: u32, begun: Buffered, continue_due: bool) -> X::Pipe;

    /// Whether a handler may begin although nothing of its body is there.
    fn has_spare_streams(&self) -> bool;

    /// Whether a thread is free for a body that has no room in memory.
    fn has_free_stream(&self) -> bool;

    /// Whether bodies that come slowly keep threads or memory from others.
    fn is_short_for_bodies(&self) -> bool;

    /// Gives the source of an answer the means to say that it has more; returns how long to wait for that at most.
    fn wait(&mut self, stream: u32, body: &mut X::Body) -> Duration;

    /// An answer is over, of which so many bytes were sent.
    fn over(&mut self, status: u16, bytes: u64, note: Option<X::Note>, ending: Ending<'_>);

    /// A deadline was missed.
    fn count_timeout(&self);

    /// The connection was ended because it broke a limit.
    fn count_abuse(&self, what: &'static str);
}

/// How an answer ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending<'a> {
    Complete,
    /// The client does not want it, or does not take it.
    Aborted,
    /// Its body failed.
    Failed(&'a io::Error),
}
