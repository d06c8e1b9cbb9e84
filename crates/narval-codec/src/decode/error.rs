//! Why data cannot be decoded.

use std::io;

use narval_nix::Compression;

use super::memory::NoWindow;

/// Why a decoder cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// An obsolete compression.
    #[error("the compression '{0}' is not supported")]
    Unsupported(Compression),
    /// The library could not be initialised.
    #[error("the {0} decoder cannot start: {1}")]
    Start(&'static str, String),
    /// There is no memory for it at the moment.
    #[error(transparent)]
    NoWindow(#[from] NoWindow),
}

pub(crate) fn truncated(format: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("the {format} data end too early"))
}

pub(crate) fn corrupt(format: &str, reason: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the {format} data are damaged: {reason}"))
}
