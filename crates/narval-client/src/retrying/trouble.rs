//! Why a fetch ended without a file.

use std::io;

use crate::error::HttpError;

/// Why a fetch ended without a file.
#[derive(Debug)]
pub enum Trouble {
    /// The upstream or the bucket does not have it.
    Absent,
    /// The upstream or the bucket could not be reached, or aborted.
    Unavailable(HttpError),
    /// The data does not match the expected size or hash.
    Wrong(String),
    /// The file could not be written.
    Disk(io::Error),
}
