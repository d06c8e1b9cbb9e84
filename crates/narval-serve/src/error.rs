//! How a request fails. The client gets one line; the details are logged.

use std::error::Error;
use std::io;

use narval_cache::upstream::Unavailable;
use narval_http::{HeaderValue, Response, StatusCode, header};
use narval_keep::{IndexError, Rejection, RejectionKind};
use narval_nix::{SignError, StorePath};
use narval_store::StoreError;
use rustix::io::Errno;

use crate::metrics::Metrics;

/// The answer while no upstream can be asked. Nix shows it to its user.
const NO_UPSTREAM: &str = "This cache does not have it, and no upstream cache is available at the moment. To push, use this URL followed by /push/.\n";

/// Seconds after which a client may ask again while the database of the cache cannot be reached.
const UNAVAILABLE_RETRY_AFTER: &str = "2";

/// Why a request fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// No such route.
    #[error("no such route")]
    NoRoute,
    /// A known route with an invalid part.
    #[error("invalid path")]
    Invalid,
    /// A batch lookup that is malformed or too large, and why.
    #[error("{0}")]
    Batch(&'static str),
    /// There is no valid path of that name.
    #[error("no such path")]
    NoPath,
    /// The path is valid, but its NAR hash is not the one in the URL.
    #[error("another NAR hash")]
    OtherNarHash,
    /// The route does not support this method, but those named here.
    #[error("method not allowed")]
    Method(&'static str),
    /// A valid path whose files are not what the database says.
    #[error("{path}: {reason}")]
    Damaged {
        /// The path's base name.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// Out of descriptors or memory.
    #[error("{path}: {reason}")]
    Shortage {
        /// The path's base name.
        path: String,
        /// What is lacking.
        reason: String,
    },
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The writable cache refuses something, or fails.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// No upstream can be asked at the moment.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// An upload is malformed, and how.
    #[error("{0}")]
    Upload(String),
    /// A `Content-Encoding` that is not known.
    #[error("unknown content coding")]
    Coding,
    /// Too many requests of this kind are being answered, or of this client.
    #[error("too many requests at a time")]
    Busy,
    /// What is asked for can only be read by decoding too much before it.
    #[error("too much is before it")]
    TooFar,
    /// A PUT to a server that takes none.
    #[error("uploads are not enabled")]
    NotWritable,
}

impl From<SignError> for ServeError {
    fn from(error: SignError) -> Self {
        Self::Rejected(error.into())
    }
}

impl From<IndexError> for ServeError {
    fn from(error: IndexError) -> Self {
        Self::Rejected(error.into())
    }
}

impl ServeError {
    /// The files of a path are not what the database says.
    pub(crate) fn damaged(path: &StorePath, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.base_name().to_owned(), reason: reason.into() }
    }

    /// The files of a path cannot be read. If descriptors have run out, the path must not look absent.
    pub(crate) fn of_files(path: &StorePath, error: &(dyn Error + 'static)) -> Self {
        let (name, reason) = (path.base_name().to_owned(), error.to_string());
        let mut causes = std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source());
        let is_short = |error: &io::Error| {
            [Errno::MFILE, Errno::NFILE, Errno::NOMEM]
                .iter()
                .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
        };
        match causes.any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is_short)) {
            true => Self::Shortage { path: name, reason },
            false => Self::Damaged { path: name, reason },
        }
    }

    /// The answer. What the operator should know is logged.
    pub(crate) fn into_response(self, metrics: &Metrics) -> Response {
        match self {
            Self::NoRoute => not_found("File not found.\n"),
            Self::Invalid => Response::text(StatusCode::BAD_REQUEST, "Invalid path.\n"),
            Self::Batch(reason) => Response::text(StatusCode::BAD_REQUEST, format!("{reason}\n")),
            Self::NoPath => not_found("No such path.\n"),
            Self::OtherNarHash => not_found("Incorrect NAR hash. Maybe the path has been recreated.\n"),
            Self::Method(allowed) => {
                Response::text(StatusCode::METHOD_NOT_ALLOWED, "This method is not answered here.\n")
                    .header(header::ALLOW, HeaderValue::from_static(allowed))
            }
            // 404, so that the client asks its next cache.
            Self::Damaged { .. } => {
                tracing::error!("{self}");
                not_found("No such path.\n")
            }
            Self::Shortage { .. } => {
                tracing::error!("{self}");
                Response::text(StatusCode::SERVICE_UNAVAILABLE, "The store cannot be read at the moment.\n")
                    .header(header::RETRY_AFTER, HeaderValue::from_static("1"))
                    .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
            }
            Self::Rejected(rejection) => refused(&rejection, metrics),
            Self::Unavailable(unavailable) => {
                tracing::debug!("{unavailable}");
                let seconds = unavailable.retry_after.as_secs().max(1);
                Response::text(StatusCode::SERVICE_UNAVAILABLE, NO_UPSTREAM)
                    .header(header::RETRY_AFTER, HeaderValue::from(seconds))
                    .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
            }
            Self::Busy => {
                metrics.page_refused.inc();
                Response::text(StatusCode::SERVICE_UNAVAILABLE, "Too many such requests at a time: try again.\n")
                    .header(header::RETRY_AFTER, HeaderValue::from_static("1"))
                    .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
            }
            Self::TooFar => Response::text(
                StatusCode::UNPROCESSABLE_ENTITY,
                "This is too far behind the start of a compressed NAR: download the NAR.\n",
            ),
            Self::Upload(reason) => {
                metrics.upload_refused("malformed");
                Response::text(StatusCode::BAD_REQUEST, format!("{reason}\n"))
            }
            Self::Coding => Response::text(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "Uploads may have the content codings zstd, br, gzip, xz and bzip2, one at a time.\n",
            ),
            Self::NotWritable => Response::text(
                StatusCode::METHOD_NOT_ALLOWED,
                "This cache does not accept uploads; run 'narval serve --data DIR' for one that does.\n",
            )
            .header(header::ALLOW, "GET, HEAD"),
            Self::Store(error) => {
                metrics.database_errors.inc();
                tracing::error!("{error}");
                Response::text(StatusCode::INTERNAL_SERVER_ERROR, "The store cannot be read at the moment.\n")
                    .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
            }
        }
    }
}

/// A rejection with its message, which says what to do: Nix shows it to the user.
fn refused(rejection: &Rejection, metrics: &Metrics) -> Response {
    let status = StatusCode::from_u16(rejection.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if !matches!(rejection.kind, RejectionKind::Unauthorized | RejectionKind::NotFound) {
        metrics.upload_refused(rejection.reason);
    }
    let answer = Response::text(status, format!("{}\n", rejection.message)).header(header::CACHE_CONTROL, "no-store");
    match rejection.kind {
        RejectionKind::Unauthorized => {
            answer.header(header::WWW_AUTHENTICATE, "Basic realm=\"narval\", charset=\"UTF-8\"")
        }
        RejectionKind::Unavailable => answer.header(header::RETRY_AFTER, UNAVAILABLE_RETRY_AFTER),
        RejectionKind::NotAllowed => answer.header(header::ALLOW, "GET, HEAD"),
        _ => answer,
    }
}

/// 404. No proxy may cache it: the path may be built a moment later.
fn not_found(text: &str) -> Response {
    Response::text(StatusCode::NOT_FOUND, text).header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may say so")]

    use std::path::PathBuf;

    use narval_store::NarIoError;

    use super::*;

    #[test]
    fn a_lack_of_descriptors_makes_no_path_absent() {
        let path = StorePath::parse("00bgd045z0d4icpbc2yyz4gx48ak44la-net-tools").unwrap();
        let status = |errno: Errno| {
            let error = NarIoError::Io { action: "open", path: PathBuf::from("file"), source: errno.into() };
            ServeError::of_files(&path, &error)
                .into_response(&Metrics::new(&narval_keep::CacheName::default()))
                .status()
        };
        assert_eq!(status(Errno::MFILE), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(Errno::NFILE), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(Errno::NOENT), StatusCode::NOT_FOUND);
    }
}
