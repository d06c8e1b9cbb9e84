//! Listings, logs, realisations and debug information of upstreams.

use narval_cache::upstream::{Small, Upstreams};
use narval_http::{Body, Response, StatusCode, header};

use crate::error::ServeError;

/// Answers with a small file. It may wait for the upstreams.
pub(crate) fn answer(upstreams: &Upstreams, small: &Small) -> Result<Response, ServeError> {
    let bytes = upstreams.small(small)?.ok_or(ServeError::NoPath)?;
    let content_type = match small {
        Small::Log(_) => "text/plain",
        Small::Listing(_) | Small::BuildTrace(_) | Small::Realisation(_) | Small::DebugInfo(_) => "application/json",
    };
    Ok(Response::new(StatusCode::OK).header(header::CONTENT_TYPE, content_type).body(Body::bytes(bytes)))
}
