//! A timeline of what each thread of an install does, as Perfetto and `chrome://tracing` read it (Trace Event Format).

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use narval_install::TIMELINE;
use parking_lot::Mutex;
use serde_json::json;
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// A file that spans are written to as they end.
#[derive(Clone)]
pub(crate) struct Timeline {
    since: Instant,
    /// The file, and whether all could be written.
    file: Arc<Mutex<(BufWriter<File>, io::Result<()>)>>,
}

/// What a span has of its own: its name, and when it was entered.
struct Begun(String, Instant);

impl Timeline {
    /// Creates the file.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let mut file = BufWriter::new(File::create(path)?);
        file.write_all(br#"{"displayTimeUnit":"ms","traceEvents":[{"name":"process_name","ph":"M","pid":1,"args":{"name":"narval"}}"#)?;
        Ok(Self { since: Instant::now(), file: Arc::new(Mutex::new((file, Ok(())))) })
    }

    /// What writes it.
    pub(crate) fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> impl Layer<S> {
        self.clone().with_filter(Targets::new().with_target(TIMELINE, LevelFilter::TRACE))
    }

    /// Ends the file.
    pub(crate) fn finish(self) -> io::Result<()> {
        let (file, written) = &mut *self.file.lock();
        std::mem::replace(written, Ok(()))?;
        file.write_all(b"]}\n")?;
        file.flush()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Timeline {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut begun = Begun(attributes.metadata().name().to_owned(), Instant::now());
        attributes.record(&mut begun);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(begun);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let extensions = span.extensions();
        let Some(Begun(name, begun)) = extensions.get() else { return };
        let event = json!({
            "name": name, "cat": span.name(), "ph": "X", "pid": 1, "tid": rustix::thread::gettid().as_raw_nonzero(),
            "ts": begun.duration_since(self.since).as_micros() as u64, "dur": begun.elapsed().as_micros() as u64,
        });
        let (file, written) = &mut *self.file.lock();
        if written.is_ok() {
            *written = write!(file, ",\n{event}");
        }
    }
}

impl Visit for Begun {
    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}

    fn record_str(&mut self, _: &Field, name: &str) {
        name.clone_into(&mut self.0);
    }
}
