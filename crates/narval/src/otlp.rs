//! Sends spans to a collector: OTLP over HTTP, with JSON bodies
//! (<https://opentelemetry.io/docs/specs/otlp/#otlphttp>, whose field names are those of opentelemetry-proto's trace.proto).
//!
//! The crates of OpenTelemetry would bring an async runtime, or another HTTP client. This needs one thread and one kind of request, which are here
//! already. Whatever happens to the collector, no request waits for it: spans wait in a bounded queue, and are dropped when it is full.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use narval_client::trace::{self, Finished, Work};
use narval_client::{Client, ClientOptions, Extra, Method, Payload, RetryPolicy, Upload, Url};
use serde_json::{Value, json};

use crate::ui::failure::Failure;

/// The most spans of one request.
const BATCH_MAX: usize = 512;
/// How long a span waits for others.
const WAIT: Duration = Duration::from_secs(1);
/// How long a request to the collector may take without data.
const STALL: Duration = Duration::from_secs(5);
/// How long a collector that has failed is left alone.
const REST: Duration = Duration::from_secs(5);
/// The most that is read of its answer, in bytes.
const ANSWER_LEN_MAX: u64 = 64 * 1024;

/// `SpanKind` of trace.proto.
const INTERNAL: u8 = 1;
const SERVER: u8 = 2;
const CLIENT: u8 = 3;
/// `STATUS_CODE_ERROR`.
const ERROR: u8 = 2;

/// Starts to send spans to a collector: those of requests that are part of a sampled trace, and of this share of the others.
///
/// # Errors
/// No thread can be started.
pub(crate) fn start(collector: &Url, share: f64) -> Result<(), Failure> {
    let url = collector.child("v1/traces").map_err(Failure::usage)?;
    // A process has one collector.
    let Some(spans) = trace::collect(share) else { return Ok(()) };
    let service = std::env::var("OTEL_SERVICE_NAME").ok().filter(|name| !name.is_empty());
    let exporter = Exporter { url, client: client(), service: service.unwrap_or_else(|| "narval".to_owned()) };
    let started = std::thread::Builder::new().name("otlp".to_owned()).spawn(move || exporter.run(&spans));
    started.map(drop).map_err(|error| Failure::runtime(format!("cannot start threads: {error}")))
}

fn client() -> Arc<Client> {
    let retry = RetryPolicy { attempts: 1, ..RetryPolicy::default() };
    let options = ClientOptions { retry, connect_timeout: STALL, stall_timeout: STALL, ..ClientOptions::default() };
    Arc::new(Client::new(options))
}

struct Exporter {
    url: Url,
    client: Arc<Client>,
    service: String,
}

impl Exporter {
    fn run(&self, spans: &Receiver<Finished>) {
        let mut is_away = false;
        while let Ok(first) = spans.recv() {
            let (mut batch, until) = (vec![first], Instant::now() + WAIT);
            while batch.len() < BATCH_MAX {
                match spans.recv_timeout(until.saturating_duration_since(Instant::now())) {
                    Ok(span) => batch.push(span),
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                }
            }
            match self.send(&batch) {
                Ok(()) => is_away = false,
                Err(reason) => {
                    trace::lost(batch.len() as u64);
                    if !std::mem::replace(&mut is_away, true) {
                        tracing::warn!("{}: {reason}; spans are dropped until it answers", self.url);
                    }
                    std::thread::sleep(REST);
                }
            }
        }
    }

    fn send(&self, batch: &[Finished]) -> Result<(), String> {
        let body = self.request(batch).to_string();
        let answer = self.client.upload(&Upload {
            method: Method::Post,
            url: &self.url,
            content_type: "application/json",
            extra: Extra::default(),
            payload: Payload::Bytes(body.as_bytes()),
            on_sent: &|_| {},
            answer_len_max: ANSWER_LEN_MAX,
        });
        match answer.map_err(|error| error.to_string())?.head.status {
            200..=299 => Ok(()),
            status => Err(format!("it answered {status}")),
        }
    }

    /// `ExportTraceServiceRequest`.
    fn request(&self, batch: &[Finished]) -> Value {
        let version = env!("CARGO_PKG_VERSION");
        let resource = [("service.name", &*self.service), ("service.version", version)].map(attribute);
        let spans: Vec<Value> = batch.iter().map(span).collect();
        json!({"resourceSpans": [{
            "resource": {"attributes": resource},
            "scopeSpans": [{"scope": {"name": "narval", "version": version}, "spans": spans}],
        }]})
    }
}

fn attribute((name, value): (&str, &str)) -> Value {
    json!({"key": name, "value": {"stringValue": value}})
}

/// Ids are hexadecimal, and numbers of 64 bits are texts: that is the JSON of OTLP.
fn span(span: &Finished) -> Value {
    let kind = match span.work {
        Work::Request => SERVER,
        Work::Server | Work::Storage => CLIENT,
        Work::DatabaseRead | Work::DatabaseWrite => INTERNAL,
    };
    let notes: Vec<Value> = span.notes.iter().map(|(name, value)| attribute((name, value))).collect();
    let mut made = json!({
        "traceId": format!("{:032x}", span.context.trace), "spanId": format!("{:016x}", span.context.span),
        "name": span.name, "kind": kind, "attributes": notes,
        "startTimeUnixNano": span.begun.as_nanos().to_string(),
        "endTimeUnixNano": (span.begun + span.took).as_nanos().to_string(),
    });
    if let Some(fields) = made.as_object_mut() {
        if span.parent != 0 {
            fields.insert("parentSpanId".to_owned(), format!("{:016x}", span.parent).into());
        }
        if span.is_failed {
            fields.insert("status".to_owned(), json!({"code": ERROR}));
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use narval_client::trace::Context;

    use super::*;

    #[test]
    fn a_span_in_json() {
        let context = Context::parse(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        let finished = Finished {
            work: Work::Storage,
            name: "GET bucket".to_owned(),
            context,
            parent: 0,
            begun: Duration::from_secs(7),
            took: Duration::from_nanos(5),
            notes: vec![("server.address", "bucket".to_owned())],
            is_failed: true,
        };
        assert_eq!(
            span(&finished),
            json!({
                "traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "spanId": "00f067aa0ba902b7", "name": "GET bucket", "kind": 3,
                "attributes": [{"key": "server.address", "value": {"stringValue": "bucket"}}],
                "startTimeUnixNano": "7000000000", "endTimeUnixNano": "7000000005", "status": {"code": 2},
            })
        );
        let part = span(&Finished { parent: 255, is_failed: false, ..finished });
        assert_eq!((&part["parentSpanId"], &part["status"]), (&json!("00000000000000ff"), &Value::Null));
    }
}
