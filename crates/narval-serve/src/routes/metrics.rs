//! `/metrics`: what the engine and the service count, as OpenMetrics.

use narval_http::{Body, HeaderValue, Response, StatusCode, header};

use crate::service::Shared;

/// The content type that OpenMetrics demands.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers with all counters.
pub(crate) fn answer(shared: &Shared) -> Response {
    // First, for the service's text ends with the mark of the end.
    let engine = shared.engine.get().map(|engine| (engine.0)().openmetrics()).unwrap_or_default();
    match shared.metrics.render() {
        Ok(text) => Response::new(StatusCode::OK)
            .header(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE))
            .body(Body::bytes(engine + &text)),
        Err(error) => {
            tracing::error!("cannot render the metrics: {error}");
            Response::new(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}
