use std::io;

use crate::io::listen::Listen;
use crate::peer::InvalidProxy;

/// Why a server cannot be built or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// No [`Listen`] was given.
    #[error("nothing to listen on")]
    NothingToListenOn,
    /// Listening on an address failed.
    #[error("cannot listen on {what}: {error}")]
    Listen {
        /// The address, as given.
        what: Listen,
        /// The system's reason.
        error: io::Error,
    },
    /// Threads, event queues or similar cannot be created.
    #[error("cannot start: {0}")]
    Start(#[from] io::Error),
    /// The chosen driver does not work here.
    #[error("the {driver} driver does not work here: {reason}")]
    Driver {
        /// Its name.
        driver: &'static str,
        /// What failed when it was tried.
        reason: String,
    },
    /// A trusted proxy is neither an address nor a network.
    #[error("trusted proxies: {0}")]
    TrustedProxies(#[from] InvalidProxy),
    /// The PROXY protocol is expected, but nobody may use it.
    #[error("the PROXY protocol needs trusted proxies: name those that send it")]
    NoTrustedProxies,
    /// A thread that serves connections ended while the server ran; the others have been stopped.
    #[error("a thread that serves connections ended: {0}: start the server again")]
    ShardEnded(String),
}
