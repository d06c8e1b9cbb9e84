//! The TLS side of a connection: what comes in is opened before it is parsed, what goes out is sealed before it is sent.
//!
//! The session is shared by the shard, which receives, and whoever holds the lease, who sends. Records must go out in the
//! order they were sealed. That holds because only the holder of the lease seals; what receiving has to say (the
//! answer to a KeyUpdate, an alert) waits here and goes out before whatever is sealed next.

#[cfg(not(feature = "tls"))]
mod absent;
pub(crate) mod layout;
#[cfg(feature = "tls")]
mod present;

#[cfg(not(feature = "tls"))]
pub(crate) use absent::{Acceptor, Secure};
#[cfg(feature = "tls")]
pub(crate) use present::{Acceptor, Secure};

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
