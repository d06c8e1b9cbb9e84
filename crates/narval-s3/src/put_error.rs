//! Why an object was not stored.

use std::io;

use narval_client::HttpError;
use thiserror::Error;

/// Why an object was not stored.
#[derive(Debug, Error)]
pub enum PutError {
    /// The exchange failed.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The store denies writing.
    #[error("the bucket '{0}' denies writing; the credentials need s3:PutObject and s3:AbortMultipartUpload")]
    Denied(String),
    /// The store sent an unexpected response.
    #[error("the bucket '{bucket}' answered {status} to {what}")]
    Unexpected {
        /// Its name.
        bucket: String,
        /// The status of the response.
        status: u16,
        /// The request.
        what: &'static str,
    },
    /// The data to send cannot be read.
    #[error("cannot read the data to send: {0}")]
    File(#[from] io::Error),
}

impl PutError {
    /// What a caller is told that sends bytes from memory.
    pub(super) fn into_http(self) -> HttpError {
        match self {
            Self::Http(error) => error,
            error => {
                HttpError::Bucket { status: 0, message: error.to_string(), retry_after: None, is_retryable: false }
            }
        }
    }
}
