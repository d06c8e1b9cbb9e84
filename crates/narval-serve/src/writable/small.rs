//! Small files of the writable cache: listings, logs, realisations, debug information.

use narval_http::{Body, FileRange, Response, StatusCode, header};
use narval_keep::{Cache, SmallKind};

use crate::error::ServeError;

/// Answers with a small file.
pub(crate) fn answer(cache: &Cache, kind: SmallKind, name: &str) -> Result<Response, ServeError> {
    let (file, length) = cache.small_file(kind, name)?.ok_or(ServeError::NoPath)?;
    let body = Body::file(FileRange { file: file.into(), offset: 0, length });
    let response = Response::new(StatusCode::OK).header(header::CONTENT_TYPE, content_type(kind));
    // A `push` token can upload pages and scripts.
    Ok(response.header(header::X_CONTENT_TYPE_OPTIONS, "nosniff").body(body))
}

const fn content_type(kind: SmallKind) -> &'static str {
    match kind {
        SmallKind::Log => "text/plain",
        SmallKind::CacheInfo => "text/x-nix-cache-info",
        SmallKind::Other => "application/octet-stream",
        SmallKind::Listing | SmallKind::Realisation | SmallKind::BuildTrace | SmallKind::DebugInfo => {
            "application/json"
        }
    }
}
