//! How a request fails. The client is told a phrase, the log the rest.

use std::error::Error;
use std::io;

use narval_http::{HeaderValue, Response, StatusCode, header};
use narval_nix::StorePath;
use narval_store::StoreError;
use rustix::io::Errno;

use crate::metrics::Metrics;

/// Why a request has no answer of the usual kind.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    /// No such route.
    #[error("no such route")]
    NoRoute,
    /// A route with something in it that can't be.
    #[error("invalid path")]
    Invalid,
    /// A batch lookup that is malformed or too large; why.
    #[error("{0}")]
    Batch(&'static str),
    /// There is no valid path of that name.
    #[error("no such path")]
    NoPath,
    /// The store path is there, but its NAR hash is another one than the URL says.
    #[error("another NAR hash")]
    OtherNarHash,
    /// The route does not know this method; it knows those named here.
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
    /// This machine has no descriptors or memory to read the files with, now.
    #[error("{path}: {reason}")]
    Shortage {
        /// The path's base name.
        path: String,
        /// What is lacking.
        reason: String,
    },
    /// The store can't be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ServeError {
    /// Why the files of a path can't be read. A lack of descriptors says nothing about them: the path must not look absent.
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

    /// The answer. What is worth knowing to the operator is logged.
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
            // A client can go on to the next cache: for it, the path isn't there.
            Self::Damaged { .. } => {
                tracing::error!("{self}");
                not_found("No such path.\n")
            }
            Self::Shortage { .. } => {
                tracing::error!("{self}");
                Response::text(StatusCode::SERVICE_UNAVAILABLE, "The store can't be read now.\n")
                    .header(header::RETRY_AFTER, HeaderValue::from_static("1"))
                    .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
            }
            Self::Store(error) => {
                metrics.database_errors.inc();
                tracing::error!("{error}");
                Response::text(StatusCode::INTERNAL_SERVER_ERROR, "The store can't be read now.\n")
                    .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
            }
        }
    }
}

/// 404, not to be remembered by anything between: the path may be built a moment later.
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
            ServeError::of_files(&path, &error).into_response(&Metrics::new()).status()
        };
        assert_eq!(status(Errno::MFILE), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(Errno::NFILE), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(status(Errno::NOENT), StatusCode::NOT_FOUND);
    }
}
