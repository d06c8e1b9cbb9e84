//! The interface between a shard and the kernel. It is completion-based: a shard submits operations and takes their
//! results.
//!
//! Three back-ends: `epoll` (every kernel, every container), `uring` and `sim`, a seeded fake kernel for tests.
//! A completion-based trait can be implemented on a readiness API at no cost; the reverse is not true.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use crate::io::clock::Millis;
use crate::io::out_buf::OutBuf;
use crate::io::socket::Socket;
#[cfg(doc)]
use crate::limits::RECEIVE_BUFFER;
use crate::peer::Peer;

pub(crate) mod epoll;
#[cfg(any(test, feature = "sim"))]
pub(crate) mod sim;
mod table;
pub(crate) mod uring;

/// Identifies a connection of a shard: its slot, and the generation of the slot.
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

/// Returns whether accept(2) failed for lack of descriptors or memory. Unlike an error of the connection itself, this
/// will happen again for the next one.
pub(crate) fn lacks_resources(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

/// An operation on a connection. At most one of each kind is in flight per connection.
pub(crate) enum Op {
    /// Receive once, however much is available.
    Receive(Token),
    /// Send as much as fits now.
    Send(Token, OutBuf),
    /// Wait until the socket is writable again. Never completes at once.
    AwaitWritable(Token),
}

/// The result of an operation.
pub(crate) enum Completion<Buffer> {
    /// A connection was accepted, or accepting failed. After a failure that [lacks resources](lacks_resources), the
    /// driver does not accept from this listener until [`listen`](Driver::listen) is called again.
    Accepted { listener: usize, result: io::Result<(Socket, Peer)> },
    /// Bytes were received. None means that the client has ended its side.
    Received { token: Token, result: io::Result<Buffer> },
    /// Bytes were sent, or none fitted (`WouldBlock`). `buf` is returned without the bytes that were sent.
    Sent { token: Token, result: io::Result<()>, buf: OutBuf },
    /// The socket is writable, or has failed (the next send returns the error).
    Writable { token: Token },
    /// The waker was called.
    Woken,
}

/// No time to wait until.
pub(crate) const AT_ONCE: Millis = 0;

/// A kernel interface, owned by one shard and used only on its thread. It keeps a `Connection` while an operation on it
/// is in flight, and uses only its socket.
pub(crate) trait Driver<Connection> {
    /// A buffer of received bytes. Returned with [`recycle`](Self::recycle).
    type Buffer: Deref<Target = [u8]>;

    /// Starts to accept connections, unless it already does. `listener` identifies the listener in completions.
    fn listen(&mut self, listener: usize, socket: Arc<Socket>) -> io::Result<()>;

    /// Stops accepting from `listener`, either until `listen` is called again or for good.
    fn unlisten(&mut self, listener: usize);

    /// Registers a connection under `token`.
    fn attach(&mut self, token: Token, connection: Arc<Connection>) -> io::Result<()>;

    /// Removes a connection. Operations in flight have no completion.
    fn detach(&mut self, token: Token);

    /// Submits an operation. Returns its completion if it completes at once.
    fn submit(&mut self, op: Op) -> Option<Completion<Self::Buffer>>;

    /// From now on, a receive takes at most this many bytes; at first it takes [`RECEIVE_BUFFER`].
    fn receive_at_most(&mut self, bytes: usize);

    /// Sends as much as fits at once, if the driver can. The bytes that were sent are removed from `buf`.
    fn send_now(&mut self, _token: Token, _buf: &mut OutBuf) -> Option<io::Result<()>> {
        None
    }

    /// Waits for a completion, but not beyond `until`, and not at all if that is [`AT_ONCE`]. `now` is the present time.
    fn wait(&mut self, now: Millis, until: Option<Millis>) -> io::Result<()>;

    /// Whether there may be more completions than one wait has returned.
    fn has_more(&self) -> bool {
        false
    }

    /// The next completion, if there is one.
    fn next(&mut self) -> Option<Completion<Self::Buffer>>;

    /// Returns a buffer.
    fn recycle(&mut self, buffer: Self::Buffer);
}
