use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::http1::conn::Close;
use crate::io::clock::Millis;
use crate::io::driver::Token;
use crate::io::output_memory::Holding;
use crate::io::socket::{HasSocket, Socket};
use crate::message::body_pipe::Feeder;
use crate::peer::Remote;
use crate::run::lease::{Finish, Holder, Lease};
use crate::run::mailbox::{Mailbox, Message};
use crate::run::transmit::Outgoing;
use crate::tls::TlsChannel;
use crate::tls::link::Link;
use crate::ws;

/// What a shard and the jobs share of a connection. The descriptor is closed when the last of them drops it, so nobody
/// ever writes to a descriptor that has been reused for another connection.
#[derive(Debug)]
pub(crate) struct Connection {
    link: Link,
    pub(crate) token: Token,
    pub(crate) lease: Lease,
    /// When a job last finished without a message.
    idle_since: AtomicU64,
    /// Whether its response was large: much of it may still be in the kernel's send buffer.
    last_was_large: AtomicBool,
    home: Arc<Mailbox>,
    /// What it holds for its client.
    holding: Arc<Holding>,
}

impl Connection {
    pub(crate) fn new(
        socket: Socket,
        tls: Option<TlsChannel>,
        remote: Remote,
        token: Token,
        home: Arc<Mailbox>,
        holding: Arc<Holding>,
    ) -> Self {
        Self {
            link: Link::new(socket, tls, remote),
            token,
            lease: Lease::new(),
            idle_since: AtomicU64::new(0),
            last_was_large: AtomicBool::new(false),
            home,
            holding,
        }
    }

    /// What it holds for its client.
    pub(crate) fn holding(&self) -> &Arc<Holding> {
        &self.holding
    }

    /// When a job last finished without a message.
    pub(crate) fn idle_since(&self) -> Millis {
        self.idle_since.load(Ordering::Relaxed)
    }

    /// Whether much of the last response may still be in flight.
    pub(crate) fn last_was_large(&self) -> bool {
        self.last_was_large.load(Ordering::Relaxed)
    }

    /// Called by the holder of the lease when a response is complete.
    pub(crate) fn answered(&self, now: Millis, large: bool) {
        self.idle_since.store(now, Ordering::Relaxed);
        if self.last_was_large.load(Ordering::Relaxed) != large {
            self.last_was_large.store(large, Ordering::Relaxed);
        }
    }

    /// The mailbox of its shard.
    pub(crate) fn home(&self) -> &Arc<Mailbox> {
        &self.home
    }

    /// Sends a message about this connection to its shard.
    pub(crate) fn post(&self, message: Message) {
        self.home.post(message);
    }
}

impl Deref for Connection {
    type Target = Link;

    #[inline(always)]
    fn deref(&self) -> &Link {
        &self.link
    }
}

impl Feeder for Connection {
    fn send_continue(&self) {
        self.link.send_continue();
    }

    fn want_body(&self) {
        self.post(Message::BodyWanted { token: self.token });
    }

    fn receive(&self, out: &mut [u8]) -> io::Result<usize> {
        self.link.socket.receive(out)
    }

    fn await_bytes(&self, at_most: Duration) -> bool {
        self.link.socket.await_readable(at_most)
    }
}

impl ws::Carrier for Connection {
    fn link(&self) -> Option<&Link> {
        Some(&self.link)
    }

    fn holding(&self) -> &Arc<Holding> {
        &self.holding
    }

    fn tell(&self) {
        self.post(Message::WebSocket { token: self.token });
    }
}

impl HasSocket for Connection {
    #[inline(always)]
    fn socket(&self) -> &Socket {
        &self.link.socket
    }
}

const _: () = assert!(size_of::<Connection>() <= 256, "there are many of them, and most are idle");

/// The right to write to a connection, held by a job. Dropping it without an answer aborts the connection.
#[derive(Debug)]
pub(crate) struct TxLease {
    connection: Option<Arc<Connection>>,
}

impl TxLease {
    /// Shard: moves the lease of `connection` into a job.
    pub(crate) fn dispatch(connection: &Arc<Connection>) -> Self {
        debug_assert_eq!(connection.lease.holder(), Holder::Shard, "only the shard dispatches");
        connection.lease.dispatch();
        Self { connection: Some(connection.clone()) }
    }

    /// A lease of no connection.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { connection: None }
    }

    /// The connection.
    pub(crate) fn connection(&self) -> Option<&Arc<Connection>> {
        self.connection.as_ref()
    }

    /// The response is sent, and the connection is ready for the next request. Sends a message only if the shard waits
    /// for one.
    pub(crate) fn finish(mut self, now: Millis, large: bool) {
        if let Some(connection) = self.connection.take() {
            connection.answered(now, large);
            if connection.lease.finish() == Finish::Message {
                connection.post(Message::Finished { token: connection.token, close: None });
            }
        }
    }

    /// The response is a 101: the connection becomes a WebSocket, whose lock replaces the lease. [Post](Self::upgraded)
    /// the message once the response is being sent.
    pub(crate) fn upgrade(mut self) -> Option<Arc<Connection>> {
        self.connection.take()
    }

    /// The response is sent, and the shard must close the connection or handle the rest of the request.
    pub(crate) fn finish_with(mut self, close: Option<Close>) {
        if let Some(connection) = self.connection.take() {
            connection.post(Message::Finished { token: connection.token, close });
        }
    }

    /// The socket is full: the shard sends the rest.
    pub(crate) fn hand_back(mut self, outgoing: Box<Outgoing>) {
        if let Some(connection) = self.connection.take() {
            connection.post(Message::Outgoing { token: connection.token, outgoing });
        }
    }

    /// A step of a TLS handshake is done, or failed.
    pub(crate) fn handshaken(mut self, plaintext: io::Result<Vec<u8>>) {
        if let Some(connection) = self.connection.take() {
            connection.post(Message::Handshaken { token: connection.token, plaintext });
        }
    }

    /// Returns an unused lease to the shard. Only on the shard's own thread.
    pub(crate) fn give_up(mut self) {
        if let Some(connection) = self.connection.take() {
            connection.lease.take_back();
        }
    }
}

impl Drop for TxLease {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.post(Message::Finished { token: connection.token, close: Some(Close::Abort) });
        }
    }
}
