//! Messages to a shard from other threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crossbeam_queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};

use crate::Peer;
use crate::connection::Close;
use crate::doorbell::Doorbell;
use crate::driver::Token;
use crate::socket::Socket;
use crate::transmit::Outgoing;
use crate::ws;

/// What a shard is told.
#[derive(Debug)]
pub(crate) enum Message {
    /// A connection that another shard accepted.
    Accepted { socket: Socket, peer: Peer },
    /// A job is done; with it the lease comes back.
    Finished { token: Token, close: Option<Close> },
    /// A job could not send everything; with it the lease comes back.
    Outgoing { token: Token, outgoing: Box<Outgoing> },
    /// A job has worked on a TLS handshake: what the client said behind it, if it is over. With it the lease comes back.
    Handshaken { token: Token, plaintext: io::Result<Vec<u8>> },
    /// The reader of a streamed request body has room again.
    BodyWanted { token: Token },
    /// The source of a response body that had no more for a while has more.
    BodyReady { token: Token },
    /// A job has answered 101; with it the lease comes back, and the connection is a WebSocket.
    Upgraded { token: Token, socket: Arc<ws::Shared> },
    /// There is something to look at in what a WebSocket sends or has handled.
    WebSocket { token: Token },
    /// Accept no more, finish what runs.
    Stop,
    /// End now.
    Halt,
}

/// A queue with many senders and one receiver, that wakes the receiver where it sleeps.
///
/// Bounded by what is in flight: a connection has at most one job, so at most one message about it but for `BodyWanted`,
/// which is sent once per window, `BodyReady`, once per wait, and `WebSocket`, which is not sent again before it was seen to.
#[derive(Debug)]
pub(crate) struct Mailbox {
    queue: SegQueue<Message>,
    doorbell: Doorbell,
    waker: Waker,
}

/// Interrupts a driver's `wait`.
#[derive(Debug)]
pub(crate) enum Waker {
    Eventfd(OwnedFd),
    /// Of a receiver that never sleeps.
    #[cfg(any(test, feature = "sim"))]
    Nobody,
}

impl Waker {
    fn wake(&self) {
        match self {
            // It can only fail where the counter is about to overflow: then the receiver is awake anyway.
            Self::Eventfd(fd) => drop(rustix::io::write(fd, &1u64.to_ne_bytes())),
            #[cfg(any(test, feature = "sim"))]
            Self::Nobody => {}
        }
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Eventfd(fd) => Some(fd.as_fd()),
            #[cfg(any(test, feature = "sim"))]
            Self::Nobody => None,
        }
    }
}

impl Mailbox {
    /// A mailbox that wakes through an eventfd.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { queue: SegQueue::new(), doorbell: Doorbell::new(), waker: Waker::Eventfd(fd) }))
    }

    /// A mailbox of the simulated server.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn simulated() -> Arc<Self> {
        Arc::new(Self { queue: SegQueue::new(), doorbell: Doorbell::new(), waker: Waker::Nobody })
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Any thread: sends a message.
    pub(crate) fn post(&self, message: Message) {
        self.queue.push(message);
        if self.doorbell.has_to_wake() {
            self.waker.wake();
        }
    }

    /// Receiver: announces that it is about to sleep. False: there is a message, and it must not.
    pub(crate) fn may_sleep(&self) -> bool {
        self.doorbell.may_sleep(|| self.queue.is_empty())
    }

    /// Receiver: it is awake.
    pub(crate) fn awake(&self) {
        self.doorbell.awake();
    }

    /// Receiver: the next message.
    pub(crate) fn take(&self) -> Option<Message> {
        // Looking costs less than popping, which begins with a fence.
        if self.queue.is_empty() {
            return None;
        }
        self.doorbell.has_message();
        self.queue.pop()
    }
}
