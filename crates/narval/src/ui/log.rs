//! The log of errors and notes, to standard error or a file.
//!
//! A server must not depend on the reader of its log. A separate thread writes the lines: lines that cannot be written
//! are lost, and no request waits for a pipe that nobody reads.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing::Metadata;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::log_event::{ForPrograms, LogEventForm, REQUEST_ID, request_id};
use crate::ui::failure::Failure;
use crate::ui::journal::{is_journal, prefix};

/// Lines queued for the thread; further ones are lost, and counted.
const LINES_MAX: usize = 4096;
/// How long a program waits at its end for the last lines to be written.
const FINISH_PATIENCE: Duration = Duration::from_secs(1);

/// The thread that writes the log of this process.
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    lines: SyncSender<Entry>,
    lost: Arc<AtomicU64>,
}

enum Entry {
    Line(Vec<u8>),
    /// Dropped when everything before it is written.
    End(#[expect(dead_code, reason = "only dropped")] SyncSender<()>),
}

/// The filter of the log: from `NARVAL_LOG` (`info`, `warn,narval_http=debug`), else events of `default` and above.
pub(crate) fn filter(default: LevelFilter) -> Targets {
    let set = std::env::var("NARVAL_LOG").ok().and_then(|text| text.parse().ok());
    set.unwrap_or_else(|| Targets::new().with_default(default))
}

/// Starts the log. `NARVAL_LOG` sets its level (`error`, `warn`, `info`, `debug`; default `info`), and
/// `NARVAL_LOG_FORMAT` its format (`text`, `logfmt`, `json`; default `text`).
///
/// # Errors
/// An unknown format; the file cannot be opened, or the thread cannot be started.
pub fn start(file: Option<&Path>) -> Result<(), Failure> {
    let form = LogEventForm::of_environment()?;
    let (sink, ansi): (Box<dyn Write + Send>, bool) = match file {
        Some(path) => {
            let file = OpenOptions::new().append(true).create(true).open(path).map_err(|error| {
                Failure::usage(format!("option --error-log: cannot write '{}': {error}", path.display()))
            })?;
            (Box::new(file), false)
        }
        None => (Box::new(io::stderr()), io::IsTerminal::is_terminal(&io::stderr())),
    };
    let log = Log::start(sink).map_err(|error| Failure::runtime(format!("cannot start threads: {error}")))?;
    let log = LOG.get_or_init(|| log);
    // A log line that cannot be written cannot be reported: by default, tracing tries that on standard error, and
    // panics if it fails.
    let layer = tracing_subscriber::fmt::layer().with_target(false).log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter(LevelFilter::INFO));
    if form != LogEventForm::Text {
        let json = form == LogEventForm::Json;
        registry.with(layer.event_format(ForPrograms { json }).with_ansi(false).with_writer(move || log)).init();
        return Ok(());
    }
    let with_ids = move || WithIds(log, "");
    // The journal adds its own times.
    if file.is_none() && is_journal() {
        registry.with(layer.with_ansi(false).without_time().with_writer(ForJournal(log))).init();
    } else {
        registry.with(layer.with_ansi(ansi).with_writer(with_ids)).init();
    }
    Ok(())
}

/// Lines whose priority the journal reads, so that `journalctl -p warning` shows warnings.
struct ForJournal(&'static Log);

impl<'a> MakeWriter<'a> for ForJournal {
    type Writer = WithIds;

    fn make_writer(&'a self) -> WithIds {
        WithIds(self.0, "")
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> WithIds {
        WithIds(self.0, prefix(*event.level()))
    }
}

/// Waits until all lines so far are written, for at most a second.
pub fn finish() {
    let Some(log) = LOG.get() else { return };
    let (end, written) = sync_channel(0);
    if log.lines.try_send(Entry::End(end)).is_ok() {
        // Nothing is sent: the other side is dropped, or the time is over.
        let _ = written.recv_timeout(FINISH_PATIENCE);
    }
}

impl Log {
    fn start(sink: Box<dyn Write + Send>) -> io::Result<Self> {
        let (lines, waiting) = sync_channel(LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        std::thread::Builder::new().name("log".to_owned()).spawn(move || write(sink, &waiting, &counted))?;
        Ok(Self { lines, lost })
    }
}

fn write(mut sink: Box<dyn Write + Send>, waiting: &Receiver<Entry>, lost: &AtomicU64) {
    while let Ok(entry) = waiting.recv() {
        // A failure cannot be reported. Later lines are still tried: a full disk may get free space again.
        let _ = match entry {
            Entry::Line(line) => sink.write_all(&line),
            Entry::End(_) => sink.flush(),
        };
        let lost = lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let _ = writeln!(sink, "{lost} log lines were lost: they could not be written fast enough");
        }
    }
}

/// One event is one write.
impl Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if let Err(TrySendError::Full(_)) = self.lines.try_send(Entry::Line(line.to_vec())) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lines of text, with their priority before them, and the id of the request at their end.
struct WithIds(&'static Log, &'static str);

impl Write for WithIds {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut log = self.0;
        let (text, end) = match (request_id(), line.strip_suffix(b"\n")) {
            (Some(id), Some(text)) => (text, format!(" {REQUEST_ID}={id}\n")),
            _ => (line, String::new()),
        };
        log.write_all(&[self.1.as_bytes(), text, end.as_bytes()].concat())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
