//! The way from whoever works for a request to the shard of its connection.

use std::sync::Arc;

use crate::io::driver::Token;
use crate::tls::link::HasLink;

/// What the shard of a connection is told by readers and writers of bodies, and by WebSockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nudge {
    /// The reader of a request body has changed [who receives](crate::http1::conn::Pipe::receiver).
    BodyRead,
    /// The reader of a request body waits for it, and the client for `100 Continue`.
    Continue,
    /// The source of a response body has more data.
    Source,
    /// A WebSocket has queued a frame, or its handler has caught up.
    WebSocket,
}

/// A shard.
pub(crate) trait Home: Send + Sync + std::fmt::Debug {
    /// Tells it of a change on a connection, or (unless `stream` is 0) on one of its HTTP/2 streams.
    fn nudge(&self, token: Token, stream: u32, nudge: Nudge);
}

/// The address of a connection, or of a stream of one. It is no socket: whoever keeps an address keeps no connection open.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) home: Arc<dyn Home>,
    pub(crate) token: Token,
    /// 0 for an HTTP/1 connection.
    pub(crate) stream: u32,
}

impl Address {
    /// Tells its shard of a change.
    pub(crate) fn nudge(&self, nudge: Nudge) {
        self.home.nudge(self.token, self.stream, nudge);
    }
}

/// The connection that carries a request or a WebSocket, or the stream of one.
#[derive(Clone, Debug)]
pub(crate) struct Carrier {
    pub(crate) address: Address,
    /// The connection, if others than its shard may use its socket. They may not on a stream.
    pub(crate) link: Option<Arc<dyn HasLink>>,
}

impl Carrier {
    /// Sends `100 Continue` (RFC 9110 section 10.1.1). The caller's job has the right to answer, and no response has started.
    pub(crate) fn send_continue(&self) {
        match &self.link {
            Some(connection) => connection.link().send_continue(),
            None => self.address.nudge(Nudge::Continue),
        }
    }
}
