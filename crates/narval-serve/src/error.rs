//! How a request fails. The client is told a phrase, the log the rest.

use narval_http::{HeaderValue, Response, StatusCode, header};
use narval_store::StoreError;

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
    /// The store can't be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ServeError {
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
