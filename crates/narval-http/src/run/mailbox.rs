//! Messages to a shard from other threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use crossbeam_queue::SegQueue;
use rustix::event::{EventfdFlags, eventfd};

use crate::Peer;
use crate::io::driver::Token;
use crate::io::socket::Socket;
use crate::run::connection::Close;
use crate::run::doorbell::Doorbell;
use crate::run::transmit::Outgoing;
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
    /// The receiver has ended.
    closed: AtomicBool,
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
        Ok(Arc::new(Self {
            queue: SegQueue::new(),
            doorbell: Doorbell::new(),
            waker: Waker::Eventfd(fd),
            closed: AtomicBool::new(false),
        }))
    }

    /// A mailbox of the simulated server.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn simulated() -> Arc<Self> {
        Arc::new(Self {
            queue: SegQueue::new(),
            doorbell: Doorbell::new(),
            waker: Waker::Nobody,
            closed: AtomicBool::new(false),
        })
    }

    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Any thread: sends a message. Once the receiver has ended, it is dropped, and what it holds with it: a socket is closed.
    pub(crate) fn post(&self, message: Message) {
        self.queue.push(message);
        // Begins with a fence, which pairs with the one in `close`: either this thread sees that nobody receives, or the
        // receiver sees the message when it looks for the last time.
        if self.doorbell.has_to_wake() {
            self.waker.wake();
        }
        if self.closed.load(Ordering::Relaxed) {
            while self.queue.pop().is_some() {}
        }
    }

    /// Receiver: this was the last time but one that it looked: it takes what is there, and nothing more.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_socket_for_a_shard_that_has_ended_is_closed() {
        let mailbox = Mailbox::new().unwrap();
        let mut clients: Vec<_> = [false, true]
            .into_iter()
            .map(|has_ended| {
                let (client, socket) = UnixStream::pair().unwrap();
                if has_ended {
                    mailbox.close();
                }
                mailbox.post(Message::Accepted { socket: Socket::Os(socket.into()), peer: Peer::Unix });
                client
            })
            .collect();
        assert!(mailbox.take().is_none(), "both are closed");
        for client in &mut clients {
            client.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
    }
}
