//! The lines of the log: as text, or in a format for programs (`NARVAL_LOG_FORMAT`).

use std::fmt::{self, Debug};

use narval_http::{RequestId, push_logfmt};
use serde_json::Value;
use tracing_subscriber::field::Visit;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::ui::failure::Failure;

/// The variable that selects the format.
const VARIABLE: &str = "NARVAL_LOG_FORMAT";
/// The key of a request's id, in the access log as well.
pub(super) const REQUEST_ID: &str = "request_id";

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogEventForm {
    /// For people.
    Text,
    /// `time=… level=error request_id=… message="…"`.
    Logfmt,
    /// An object per line, with the same keys.
    Json,
}

impl LogEventForm {
    /// The format that the environment selects; text by default.
    pub(super) fn of_environment() -> Result<Self, Failure> {
        match std::env::var_os(VARIABLE) {
            None => Ok(Self::Text),
            Some(value) if value.is_empty() || value == "text" => Ok(Self::Text),
            Some(value) if value == "logfmt" => Ok(Self::Logfmt),
            Some(value) if value == "json" => Ok(Self::Json),
            Some(value) => Err(Failure::usage(format!(
                "{VARIABLE} is '{}'; set it to text, logfmt or json",
                value.to_string_lossy().escape_debug()
            ))),
        }
    }
}

/// The id of the request that this thread is working on.
pub(super) fn request_id() -> Option<String> {
    let of_handler = RequestId::current().map(|id| id.to_string());
    of_handler.or_else(|| narval_client::request_id::current().id().map(ToString::to_string))
}

/// Formats events for programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForPrograms {
    pub(super) json: bool,
}

impl<S, N> FormatEvent<S, N> for ForPrograms
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &tracing::Event<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut fields = Fields(vec![
            ("time", Value::String(time)),
            ("level", Value::String(event.metadata().level().as_str().to_ascii_lowercase())),
        ]);
        if let Some(id) = request_id() {
            fields.0.push((REQUEST_ID, Value::String(id)));
        }
        // Its own, if the request is part of a trace.
        if let Some(context) = narval_client::request_id::current().trace() {
            fields.0.push(("trace_id", Value::String(format!("{:032x}", context.trace))));
            fields.0.push(("span_id", Value::String(format!("{:016x}", context.span))));
        }
        event.record(&mut fields);
        if self.json {
            // By hand, because a map would sort the keys.
            let pairs = fields.0.iter().map(|(key, value)| format!("{}:{value}", Value::from(*key)));
            return writeln!(out, "{{{}}}", pairs.collect::<Vec<_>>().join(","));
        }
        let mut line = String::new();
        for (key, value) in fields.0 {
            match value {
                Value::String(text) => push_logfmt(&mut line, key, &text),
                other => push_logfmt(&mut line, key, &other.to_string()),
            }
        }
        writeln!(out, "{line}")
    }
}

/// The fields of an event.
struct Fields(Vec<(&'static str, Value)>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn Debug) {
        self.0.push((field.name(), Value::String(format!("{value:?}"))));
    }

    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.0.push((field.name(), value.into()));
    }

    fn record_u64(&mut self, field: &tracing::field::Field, value: u64) {
        self.0.push((field.name(), value.into()));
    }

    fn record_i64(&mut self, field: &tracing::field::Field, value: i64) {
        self.0.push((field.name(), value.into()));
    }

    fn record_bool(&mut self, field: &tracing::field::Field, value: bool) {
        self.0.push((field.name(), value.into()));
    }
}
