//! Errors of caches, with the cache, the path and what to do.

use narval_client::{HttpError, UrlError};
use narval_codec::decode::DecodeError;
use narval_nix::narinfo::NarInfoError;
use narval_nix::{HashPart, StorePath};

/// A failure of a cache, or invalid contents of it.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// No cache has it.
    #[error("no cache has {what} (queried: {caches}); check the path, or add another cache with --from")]
    NotFound {
        /// Path or hash part.
        what: String,
        /// The queried caches.
        caches: String,
    },
    /// The request to a cache failed.
    #[error("{cache}: cannot fetch {what}: {source}{}", hint(.source))]
    Fetch {
        /// The cache.
        cache: String,
        /// Path, hash part or file.
        what: String,
        /// Why.
        source: HttpError,
    },
    /// The trusted certificates cannot be read.
    #[error("{reason}")]
    Certificates {
        /// The variable or setting that names them, the file, and why.
        reason: String,
    },
    /// The NAR of a narinfo does not exist.
    #[error(
        "{cache}: the NAR of {path} is missing in the cache ({url}); the cache is broken: use another one with --from"
    )]
    NarGone {
        /// The cache.
        cache: String,
        /// The path.
        path: StorePath,
        /// Its URL.
        url: String,
    },
    /// The narinfo is invalid, or that of another path.
    #[error("{cache}: the narinfo of {what} is rejected: {reason}")]
    NarInfo {
        /// The cache.
        cache: String,
        /// The requested hash part.
        what: HashPart,
        /// Why.
        reason: String,
    },
    /// No signature by a trusted key.
    #[error("{cache}: {path} is not signed by a trusted key: {advice}")]
    Untrusted {
        /// The cache.
        cache: String,
        /// The path.
        path: StorePath,
        /// Who has signed it, and what to do ([`signature_advice`](crate::signature_advice)).
        advice: String,
    },
    /// The bytes do not match the narinfo.
    #[error("{cache}: {path} is damaged: {what} is {actual}, but the narinfo has {expected}")]
    Mismatch {
        /// The cache.
        cache: String,
        /// The path.
        path: StorePath,
        /// `FileHash`, `FileSize`, `NarHash` or `NarSize`.
        what: &'static str,
        /// The actual value.
        actual: String,
        /// The value in the narinfo.
        expected: String,
    },
    /// The file cannot be decompressed, or is not a valid NAR.
    #[error("{cache}: {path} is damaged: {reason}")]
    Damaged {
        /// The cache.
        cache: String,
        /// The path.
        path: StorePath,
        /// The reason, and where.
        reason: String,
    },
    /// A compression that is not supported.
    #[error("{cache}: {path}: {source}")]
    Decoder {
        /// The cache.
        cache: String,
        /// The path.
        path: StorePath,
        /// The reason.
        source: DecodeError,
    },
    /// It is not a cache, or is one for another store directory.
    #[error("{cache}: {reason}")]
    Refused {
        /// The cache.
        cache: String,
        /// Why it is rejected.
        reason: String,
    },
    /// The address is invalid.
    #[error(transparent)]
    Url(#[from] UrlError),
}

impl CacheError {
    /// Whether another cache may succeed.
    pub const fn is_the_caches_fault(&self) -> bool {
        matches!(
            self,
            Self::Fetch { .. }
                | Self::NarGone { .. }
                | Self::NarInfo { .. }
                | Self::Untrusted { .. }
                | Self::Mismatch { .. }
                | Self::Damaged { .. }
                | Self::Decoder { .. }
        )
    }

    /// Whether the cache, which may have it, is away.
    pub const fn is_outage(&self) -> bool {
        matches!(self, Self::Fetch { source, .. } if source.is_outage())
    }

    pub(crate) fn narinfo(cache: &str, what: HashPart, error: &NarInfoError) -> Self {
        Self::NarInfo { cache: cache.to_owned(), what, reason: error.to_string() }
    }
}

fn hint(error: &HttpError) -> &'static str {
    match error {
        HttpError::Status { status: 403, .. } => "; the credentials for it may be wrong, or have expired",
        HttpError::Status { status: 401 | 407, .. } => "; give credentials with --netrc-file or --header",
        HttpError::Status { status: 429 | 503, .. } => "; the server is overloaded: try again later",
        HttpError::Resolve { .. } | HttpError::Connect { .. } => {
            "; check the address, the network and the proxy ('narval doctor')"
        }
        _ => "",
    }
}
