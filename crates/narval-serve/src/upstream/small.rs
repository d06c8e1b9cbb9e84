//! Listings, logs, realisations and debug information of upstreams.

use narval_cache::upstream::{Small, Upstreams};
use narval_http::{Body, FileRange, Response, StatusCode, header};

use crate::error::ServeError;

/// Answers with a small file. It may wait for the upstreams.
pub(crate) fn answer(upstreams: &Upstreams, small: &Small) -> Result<Response, ServeError> {
    let (file, length) = upstreams.small(small)?.ok_or(ServeError::NoPath)?;
    let content_type = match small {
        Small::Log(_) => "text/plain",
        Small::Listing(_) | Small::BuildTrace(_) | Small::Realisation(_) | Small::DebugInfo(_) => "application/json",
    };
    let body = Body::file(FileRange { file: file.into(), offset: 0, length });
    // No browser may take it for anything else: a log has any contents.
    Ok(Response::new(StatusCode::OK)
        .header(header::CONTENT_TYPE, content_type)
        .header(header::X_CONTENT_TYPE_OPTIONS, "nosniff")
        .body(body))
}
