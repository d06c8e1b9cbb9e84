//! TLS 1.2 and 1.3 (rustls), behind types of our own, so that the TLS library can change without the engine.
//!
//! [`TlsConfig`] says which certificates to offer; [`TlsAcceptor`] holds what was loaded from them and can load it anew;
//! [`TlsSession`] is one connection: bytes in, bytes out, no input or output of its own. [`KernelTx`] is the sending half
//! of a session whose records the kernel makes (kTLS), [`RecordTx`] that of one whose records are made in the buffer that
//! they are sent from.
//!
//! On a connection, the session is shared by the shard, which receives, and whoever holds the lease, who sends. Records must go
//! out in the order they were sealed. That holds because only the holder of the lease seals; what receiving has to say (the
//! answer to a KeyUpdate, an alert) waits here and goes out before whatever is sealed next.

#[cfg(feature = "tls")]
mod acceptor;
#[cfg(feature = "tls")]
mod channel;
#[cfg(not(feature = "tls"))]
mod disabled;
#[cfg(feature = "tls")]
mod identity;
#[cfg(feature = "tls")]
mod kernel;
pub(crate) mod layout;
#[cfg(feature = "tls")]
mod records;
#[cfg(feature = "tls")]
mod secrets;
#[cfg(feature = "tls")]
mod session;

#[cfg(feature = "tls")]
pub use acceptor::{TlsAcceptor, TlsConfig};
#[cfg(feature = "tls")]
pub(crate) use channel::{Acceptor, TlsChannel};
#[cfg(not(feature = "tls"))]
pub(crate) use disabled::{Acceptor, TlsChannel};
#[cfg(feature = "tls")]
pub use identity::{Identity, PemPair, TlsError};
#[cfg(feature = "tls")]
pub use kernel::{KernelTx, probe};
#[cfg(feature = "tls")]
pub use records::RecordTx;
#[cfg(feature = "tls")]
pub use session::{SessionError, TlsSession};

/// What opening received bytes has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    /// The handshake is still under way.
    pub(crate) is_handshaking: bool,
    /// Something waits to be sent.
    pub(crate) has_control: bool,
    /// The client has ended what it sends.
    pub(crate) has_ended: bool,
}
