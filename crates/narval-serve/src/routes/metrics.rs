//! `/metrics`: what the engine and the service count, as OpenMetrics.

use narval_http::{Body, HeaderValue, Response, StatusCode, header};

use crate::metrics::Metrics;

/// The content type that OpenMetrics demands.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers with all counters; `engine` is the text of the engine's.
pub(crate) fn answer(metrics: &Metrics, engine: String) -> Response {
    // The engine's come first: the service's text ends with the end marker.
    match metrics.render() {
        Ok(text) => Response::new(StatusCode::OK)
            .header(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE))
            .body(Body::bytes(engine + &text)),
        Err(error) => {
            tracing::error!("cannot render the metrics: {error}");
            Response::new(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}
