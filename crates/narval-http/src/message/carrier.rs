//! The way from whoever works for a request to the shard of its connection.

use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use crate::io::driver::Token;
use crate::io::sync::Mutex;
use crate::tls::link::HasLink;

/// What the shard of a connection is told by readers and writers of bodies, and by WebSockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nudge {
    /// The reader of a request body has changed [who receives](crate::message::body::pipe::BodyPipe::receiver).
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

/// A shard for whoever reads a response instead of sending it: it rings when there is news.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    has_rung: Mutex<bool>,
    rings: Condvar,
}

impl Bell {
    pub(crate) fn address(self: &Arc<Self>) -> Address {
        Address { home: self.clone(), token: Token::new(0, 0), stream: 0 }
    }

    /// Waits until it rings, or has rung since the last time.
    pub(crate) fn wait(&self, at_most: Duration) {
        let has_rung = self.has_rung.lock();
        let waited = self.rings.wait_timeout_while(has_rung, at_most, |has_rung| !*has_rung);
        *waited.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

impl Home for Bell {
    fn nudge(&self, _: Token, _: u32, _: Nudge) {
        *self.has_rung.lock() = true;
        self.rings.notify_all();
    }
}
