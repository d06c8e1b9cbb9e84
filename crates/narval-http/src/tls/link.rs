use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::TlsChannel;
use crate::io::out_buf::OutBuf;
use crate::io::socket::Socket;
use crate::peer::{Peer, Remote};

/// The client and its socket, on which responses are sent.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: Socket,
    remote: Remote,
    /// What a header of the PROXY protocol told.
    behind: OnceLock<Box<Remote>>,
    /// TLS, if it is used: everything sent on the socket must be sealed by it. Boxed because it takes more than a
    /// kilobyte, which plain connections should not pay for.
    pub(crate) tls: Option<Box<TlsChannel>>,
    /// Held while something is sent before the response.
    ahead: Mutex<()>,
}

impl Link {
    pub(crate) fn new(socket: Socket, tls: Option<TlsChannel>, remote: Remote) -> Self {
        Self { socket, remote, behind: OnceLock::new(), tls: tls.map(Box::new), ahead: Mutex::new(()) }
    }

    /// The other side: the client, or the proxy in front of it.
    #[inline(always)]
    pub(crate) fn remote(&self) -> &Remote {
        self.behind.get().map_or(&self.remote, |behind| behind)
    }

    /// Records whom a proxy has named, once.
    pub(crate) fn set_behind(&self, remote: Remote) {
        // A connection has one header.
        drop(self.behind.set(Box::new(remote)));
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
        if self.send_ahead(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec()).is_err() {
            // The reader of the body gets the error, and nothing can follow a partial message.
            self.socket.abort();
        }
    }

    /// Sends an informational response if that does not block: it is only a hint. The caller holds the lease, or reads
    /// the body on behalf of the holder. These may be two threads, so they take turns.
    ///
    /// # Errors
    /// The connection is broken, or has to be aborted because only a part could be sent.
    pub(crate) fn send_ahead(&self, message: Vec<u8>) -> io::Result<bool> {
        let _turn = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = OutBuf { memory: message, ..OutBuf::default() };
        self.seal(&mut out)?;
        match self.socket.send_buf(&mut out) {
            Ok(_) if out.is_empty() => Ok(true),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            // Sealed bytes cannot be skipped: the client counts records.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.tls.is_none() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the client runs on this machine, on this thread's processor.
    pub(crate) fn is_near(&self) -> bool {
        matches!(self.remote.peer(), Peer::Tcp(address) if address.ip().to_canonical().is_loopback())
            && self.socket.comes_in_here()
    }
}
