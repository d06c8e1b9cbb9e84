//! Answers to the page's script.

use narval_http::{Body, HeaderValue, Response, StatusCode, header};
use serde::Serialize;

use crate::error::ServeError;

/// An answer that must not be stored: paths come and go.
pub(super) fn json(value: &impl Serialize) -> Result<Response, ServeError> {
    let text = serde_json::to_vec(value).map_err(|error| {
        tracing::error!("cannot render a response for the page: {error}");
        ServeError::NoPath
    })?;
    Ok(json_response().body(Body::bytes(text)))
}

pub(super) fn json_response() -> Response {
    Response::new(StatusCode::OK)
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))
        .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
        .header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
}
