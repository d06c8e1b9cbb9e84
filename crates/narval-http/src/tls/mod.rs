//! TLS 1.2 and 1.3 by rustls, wrapped so that the engine does not depend on the TLS library's API.
//!
//! [`TlsConfig`] names the certificates, [`TlsAcceptor`] loads and reloads them, and [`TlsSession`] is a connection:
//! bytes in, bytes out, without I/O. [`KernelTx`] is the sending half of a session that uses kTLS, [`RecordTx`] that of
//! a session whose records are encrypted in place in the buffer that they are sent from.
//!
//! A connection's session is shared by the shard, which receives, and the holder of the lease, which sends. Records
//! must be sent in the order they were encrypted. This holds because only the holder of the lease encrypts; records
//! that receiving produces (the answer to a KeyUpdate, an alert) are queued and sent before the next data.

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
pub(crate) mod link;
#[cfg(feature = "tls")]
mod records;
#[cfg(feature = "tls")]
mod secrets;
#[cfg(feature = "tls")]
mod session;

#[cfg(feature = "tls")]
pub use acceptor::{ClientAuth, TlsAcceptor, TlsConfig};
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

/// The result of decrypting received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    /// The handshake is still in progress.
    pub(crate) is_handshaking: bool,
    /// There are records to send.
    pub(crate) has_control: bool,
    /// The client has sent close_notify.
    pub(crate) has_ended: bool,
}
