//! Why a NAR was not fetched.

use std::io;

use narval_client::HttpError;

/// How a fetch ended without a NAR.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The upstream does not have the file.
    Absent,
    /// The upstream could not be reached, or aborted.
    Unavailable(HttpError),
    /// The data does not match the narinfo.
    Wrong(String),
    /// The file could not be written.
    Disk(io::Error),
}
