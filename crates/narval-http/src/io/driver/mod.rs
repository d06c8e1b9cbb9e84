//! What a shard asks of the kernel, in the shape of completions: it submits operations, and takes their results.
//!
//! Three back-ends: `epoll` (every kernel, every container), `uring` and `sim`, a seeded fake kernel for tests.
//! A completion-shaped trait can be filled by a readiness API at no cost; the reverse is not true.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use crate::Peer;
use crate::io::clock::Millis;
use crate::io::out_buf::OutBuf;
use crate::io::socket::Socket;

pub(crate) mod epoll;
#[cfg(any(test, feature = "sim"))]
pub(crate) mod sim;
pub(crate) mod uring;

/// Names a connection of one shard: its slot, and which of the slot's successive connections it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Token {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Token {
    pub(crate) fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }

    fn to_u64(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    fn from_u64(value: u64) -> Self {
        Self { index: value as u32, generation: (value >> 32) as u32 }
    }
}

/// Whether accepting failed for want of descriptors or memory: not because of the connection that was about to be accepted
/// (accept(2)), so that the next one will fail as well.
pub(crate) fn lacks_resources(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// An operation on a connection. At most one of each kind is under way per connection.
pub(crate) enum Op {
    /// Receive once, whatever is there.
    Receive(Token),
    /// Send, as much as fits now.
    Send(Token, OutBuf),
    /// Tell when the socket takes bytes again (it took none when last tried). Never done at once.
    AwaitWritable(Token),
}

/// What came of an operation.
pub(crate) enum Completion<Buffer> {
    /// A connection was accepted, or could not be. Where that [lacks resources](lacks_resources), nothing more may be accepted
    /// from there before the driver is told to [`listen`](Driver::listen) again.
    Accepted { listener: usize, result: io::Result<(Socket, Peer)> },
    /// Bytes were received; none: the client sends no more.
    Received { token: Token, result: io::Result<Buffer> },
    /// Bytes were sent, or none fitted (`WouldBlock`); `buf` comes back with what was sent taken off.
    Sent { token: Token, result: io::Result<()>, buf: OutBuf },
    /// The socket takes bytes, or is broken (sending will tell).
    Writable { token: Token },
    /// Somebody called the waker.
    Woken,
}

/// A kernel interface, owned by one shard and used on its thread alone. It keeps a `Connection` for as long as an operation on it is
/// in flight, and knows nothing of it but its socket.
pub(crate) trait Driver<Connection> {
    /// Received bytes. Given back with [`recycle`](Self::recycle).
    type Buffer: Deref<Target = [u8]>;

    /// Starts to accept connections, if it does not already; `listener` names it in completions.
    fn listen(&mut self, listener: usize, socket: Arc<Socket>) -> io::Result<()>;

    /// Stops accepting from `listener`: for a while (`pause`d, then `listen`ed to again), or for good.
    fn unlisten(&mut self, listener: usize);

    /// Makes a connection known under `token`.
    fn attach(&mut self, token: Token, connection: Arc<Connection>) -> io::Result<()>;

    /// Forgets a connection; operations under way come to nothing.
    fn detach(&mut self, token: Token);

    /// Starts an operation. What is done at once is returned at once.
    fn submit(&mut self, op: Op) -> Option<Completion<Self::Buffer>>;

    /// Sends at once, as much as fits, where the driver can; what was sent is taken off `buf`.
    fn send_now(&mut self, _token: Token, _buf: &mut OutBuf) -> Option<io::Result<()>> {
        None
    }

    /// Waits until there is a completion, or until `until`, which is compared with the present time, `now`.
    fn wait(&mut self, now: Millis, until: Option<Millis>) -> io::Result<()>;

    /// Whether there may be more than one wait has told of.
    fn has_more(&self) -> bool {
        false
    }

    /// The next completion, if there is one.
    fn next(&mut self) -> Option<Completion<Self::Buffer>>;

    /// Gives a buffer back.
    fn recycle(&mut self, buffer: Self::Buffer);
}
