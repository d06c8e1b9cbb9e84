use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{MutexGuard, OnceLock};

use super::TlsChannel;
use crate::io::out_buf::OutBuf;
use crate::io::socket::Socket;
use crate::io::sync::Mutex;
use crate::peer::{Peer, Remote};

/// RFC 9110 section 15.2.1.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The client and its socket, on which responses are sent.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: Socket,
    client: Known,
    /// TLS, if it is used: everything sent on the socket must be sealed by it. Boxed because it takes more than a
    /// kilobyte, which plain connections should not pay for.
    pub(crate) tls: Option<Box<TlsChannel>>,
    /// Held while something is sent before the response.
    ahead: Mutex<()>,
    /// The response to the current request has begun: nothing may be sent before it any longer. Changed by the holder of
    /// the lease, to `true` only with `ahead`.
    has_begun: AtomicBool,
}

/// What is known of the client, and what became known later: by a header of the PROXY protocol, and by its certificate.
#[derive(Debug)]
struct Known {
    remote: Remote,
    later: OnceLock<Box<Known>>,
}

impl Known {
    fn new(remote: Remote) -> Self {
        Self { remote, later: OnceLock::new() }
    }
}

/// A connection.
pub(crate) trait HasLink: Send + Sync + std::fmt::Debug {
    fn link(&self) -> &Link;
}

impl Link {
    pub(crate) fn new(socket: Socket, tls: Option<TlsChannel>, remote: Remote) -> Self {
        Self {
            socket,
            client: Known::new(remote),
            tls: tls.map(Box::new),
            ahead: Mutex::new(()),
            has_begun: AtomicBool::new(false),
        }
    }

    /// The other side: the client, or the proxy in front of it.
    #[inline(always)]
    pub(crate) fn remote(&self) -> &Remote {
        let mut known = &self.client;
        while let Some(later) = known.later.get() {
            known = later;
        }
        &known.remote
    }

    /// Records what has become known of the client: by the connection's one header of the PROXY protocol, and by its one handshake.
    pub(crate) fn learn(&self, remote: Remote) {
        let mut known = Box::new(Known::new(remote));
        let mut last = &self.client;
        while let Err(back) = last.later.set(known) {
            known = back;
            let Some(later) = last.later.get() else { return };
            last = later;
        }
    }

    /// Seals `out` for the socket: call it once per buffer, in the order of sending.
    ///
    /// # Errors
    /// The connection must be closed.
    pub(crate) fn seal(&self, out: &mut OutBuf) -> io::Result<()> {
        self.tls.as_ref().map_or(Ok(()), |tls| tls.seal(&self.socket, out))
    }

    /// Sends `100 Continue` (RFC 9110 section 10.1.1). The caller holds the lease, and no response has started. These
    /// few bytes fit into the buffer of an idle connection; if they do not, the connection is broken and the body's
    /// deadline will end it.
    pub(crate) fn send_continue(&self) {
        // The reader of the body gets the error.
        drop(self.send_ahead(CONTINUE.to_vec()));
    }

    /// Sends an informational response if that does not block: it is only a hint. The caller holds the lease, or reads
    /// the body on behalf of the holder. These may be two threads, so they take turns.
    ///
    /// # Errors
    /// The connection is broken, or cut off because only a part could be sent: nothing may follow that, not even an answer that is ready.
    pub(crate) fn send_ahead(&self, message: Vec<u8>) -> io::Result<bool> {
        let turn = self.ahead.lock();
        self.send_in_turn(&turn, message)
    }

    fn send_in_turn(&self, _: &MutexGuard<'_, ()>, message: Vec<u8>) -> io::Result<bool> {
        let mut out = OutBuf { memory: message, ..OutBuf::default() };
        let sent = self.seal(&mut out).and_then(|()| match self.socket.send_buf(&mut out) {
            Ok(_) if out.is_empty() => Ok(true),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            // Sealed bytes cannot be skipped: the client counts records.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.tls.is_none() => Ok(false),
            Err(error) => Err(error),
        });
        sent.inspect_err(|_| self.socket.cut_off())
    }

    /// The shard hands a request to a job: until the job calls [`begin`](Self::begin), the shard may
    /// [probe](Self::probe) the client. Whoever finds that out also finds out that earlier requests are answered.
    pub(crate) fn await_answer(&self) {
        self.has_begun.store(false, Ordering::Release);
    }

    /// A job begins to send the response.
    pub(crate) fn begin(&self) {
        let _turn = self.ahead.lock();
        self.has_begun.store(true, Ordering::Relaxed);
    }

    /// Sends something before the response of a request that is being answered, unless that has begun, or `is_due` returns
    /// `false`: the connection is at another request by now. From any thread.
    ///
    /// # Errors
    /// As [`send_ahead`](Self::send_ahead): the job gets the error when it answers.
    pub(crate) fn send_before(&self, message: Vec<u8>, is_due: impl FnOnce() -> bool) -> io::Result<bool> {
        let turn = self.ahead.lock();
        if self.has_begun.load(Ordering::Acquire) || !is_due() {
            return Ok(false);
        }
        self.send_in_turn(&turn, message)
    }

    /// Sends an HTTP/1.1 client something that it ignores, unless the response has begun. If the client is gone, its
    /// kernel resets the connection.
    pub(crate) fn probe(&self) {
        // The job gets the error when it answers.
        drop(self.send_before(CONTINUE.to_vec(), || true));
    }

    /// Whether the client runs on this machine, on this thread's processor.
    pub(crate) fn is_near(&self) -> bool {
        matches!(self.client.remote.peer(), Peer::Tcp(address) if address.ip().to_canonical().is_loopback())
            && self.socket.comes_in_here()
    }
}
