use std::io;
use std::sync::{Mutex, PoisonError};

use crate::Peer;
use crate::io::out_buf::OutBuf;
use crate::io::socket::Socket;
use crate::tls::TlsChannel;

/// A client and the way to it: what answers are sent on, whoever sends them.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: Socket,
    pub(crate) peer: Peer,
    /// The TLS side, where there is one. What is sent on the socket has to be sealed by it. In a box: it takes more than a
    /// kilobyte, which connections without it must not pay for.
    pub(crate) tls: Option<Box<TlsChannel>>,
    /// Held while something is sent ahead of an answer.
    ahead: Mutex<()>,
}

impl Link {
    pub(crate) fn new(socket: Socket, tls: Option<TlsChannel>, peer: Peer) -> Self {
        Self { socket, peer, tls: tls.map(Box::new), ahead: Mutex::new(()) }
    }

    /// Makes `out` ready for the socket. Once, and in the order in which it is sent.
    ///
    /// # Errors
    /// The connection has to end.
    pub(crate) fn seal(&self, out: &mut OutBuf) -> io::Result<()> {
        self.tls.as_ref().map_or(Ok(()), |tls| tls.seal(&self.socket, out))
    }

    /// Asks for a body that the client holds back (RFC 9110 section 10.1.1). The caller holds the lease, and no answer has begun. A few
    /// bytes on an idle connection fit; if they don't, the connection is of no use and the body's deadline will end it.
    pub(crate) fn send_continue(&self) {
        if self.send_ahead(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec()).is_err() {
            // Whoever waits for the body hears of it, and nothing can follow what is out.
            self.socket.abort();
        }
    }

    /// Sends an informational response, if the socket takes it at once: it is a hint, and not worth waiting for. The caller holds
    /// the lease, or reads the body for whoever holds it: that may be two threads, which take turns.
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
            // Sealed bytes can't be left out: the client counts records.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.tls.is_none() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether the client is of this machine and runs on this thread's processor.
    pub(crate) fn is_near(&self) -> bool {
        matches!(&self.peer, Peer::Tcp(address) if address.ip().to_canonical().is_loopback())
            && self.socket.comes_in_here()
    }
}
