//! TLS 1.2 and 1.3 (rustls), behind types of our own, so that the TLS library can change without the engine.
//!
//! [`TlsConfig`] says which certificates to offer; [`TlsAcceptor`] holds what was loaded from them and can load it anew;
//! [`TlsSession`] is one connection: bytes in, bytes out, no input or output of its own. [`KernelTx`] is the sending half
//! of a session whose records the kernel makes (kTLS), [`RecordTx`] that of one whose records are made in the buffer that
//! they are sent from.

mod acceptor;
mod identity;
mod kernel;
mod records;
mod secrets;
mod session;

pub use acceptor::{PemPair, TlsAcceptor, TlsConfig};
pub use identity::{Identity, TlsError};
pub use kernel::{KernelTx, probe};
pub use records::RecordTx;
pub use session::{SessionError, TlsSession};
