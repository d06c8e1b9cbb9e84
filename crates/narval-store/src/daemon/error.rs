//! Why a request to the daemon failed.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::wire::WireError;

/// Why a request to the daemon failed.
#[derive(Debug, Error)]
pub enum DaemonError {
    /// There is no daemon at the socket, or access was denied.
    #[error("cannot connect to the Nix daemon at '{}': {source}", socket.display())]
    Connect {
        /// The socket.
        socket: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The daemon is older than Nix 2.4.
    #[error("the Nix daemon speaks protocol {major}.{minor}; 1.32 (Nix 2.4) or newer is needed")]
    Version {
        /// Major version.
        major: u64,
        /// Minor version.
        minor: u64,
    },
    /// The daemon answered with an error.
    #[error("the Nix daemon refuses {operation}: {message}")]
    Refused {
        /// The operation.
        operation: &'static str,
        /// The daemon's message.
        message: String,
    },
    /// The connection failed, or the daemon violated the protocol.
    #[error("the Nix daemon's connection: {0}")]
    Wire(#[from] WireError),
    /// The data to send could not be read.
    #[error("cannot read the data to send to the Nix daemon: {0}")]
    Source(io::Error),
}
