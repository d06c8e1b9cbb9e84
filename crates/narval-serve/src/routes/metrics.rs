//! `/metrics`: what the engine and the service count, as OpenMetrics.

use std::fmt::Write;

use narval_codec::decode::WindowFigures;
use narval_http::{Body, HeaderValue, Response, StatusCode, header};

use crate::metrics::Metrics;

/// The content type that OpenMetrics demands.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Adds a metric; `total` is what its name has after that of its family.
pub(crate) fn add(text: &mut String, kind: &str, (name, total): (&str, &str), help: &str, value: u64) {
    let unit = if name.ends_with("_bytes") { format!("# UNIT {name} bytes\n") } else { String::new() };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# TYPE {name} {kind}\n{unit}# HELP {name} {help}.\n{name}{total} {value}");
}

/// The memory for the windows of uploads' decoders.
pub(crate) fn window_text(figures: &WindowFigures) -> String {
    let WindowFigures { total, used, refused } = *figures;
    let mut text = String::new();
    add(
        &mut text,
        "gauge",
        ("narval_decode_memory_bytes", ""),
        "Memory reserved for the windows of uploads' decoders",
        used,
    );
    let help = "The maximum of narval_decode_memory_bytes (limits.decode-memory)";
    add(&mut text, "gauge", ("narval_decode_memory_max_bytes", ""), help, total);
    let help = "Uploads that were answered 503 because there was no memory for their windows";
    add(&mut text, "counter", ("narval_decode_memory_refused", "_total"), help, refused);
    text
}

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
