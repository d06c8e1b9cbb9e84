//! The log of errors and notes: standard error, or a file.
//!
//! A server must not depend on who reads its log. A thread of its own writes the lines: where they can't be written they
//! are lost, and while nobody reads a pipe no request waits for it.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::Failure;

/// Lines that wait to be written; more are lost, and counted.
const LINES_MAX: usize = 4096;
/// How long the end of a program waits for the last lines to be written.
const FINISH_PATIENCE: Duration = Duration::from_secs(1);

/// The thread that writes the log of this process.
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    lines: SyncSender<Entry>,
    lost: Arc<AtomicU64>,
}

enum Entry {
    Line(Vec<u8>),
    /// All before this is written when it is dropped.
    End(#[expect(dead_code, reason = "only dropped")] SyncSender<()>),
}

/// What the log shows: what `NARVAL_LOG` says (`info`, `warn,narval_http=debug`), else events of `default` and above.
pub(crate) fn filter(default: LevelFilter) -> Targets {
    let set = std::env::var("NARVAL_LOG").ok().and_then(|text| text.parse().ok());
    set.unwrap_or_else(|| Targets::new().with_default(default))
}

/// Starts the log. `NARVAL_LOG` sets what it shows (`error`, `warn`, `info`, `debug`; `info` without).
///
/// # Errors
/// The file can't be opened, or no thread can be started.
pub fn start(file: Option<&Path>) -> Result<(), Failure> {
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
    // What can't be written can't be complained of: by default that is tried on standard error, with a panic when it fails.
    let layer = tracing_subscriber::fmt::layer().with_target(false).log_internal_errors(false);
    let registry = tracing_subscriber::registry().with(filter(LevelFilter::INFO));
    // The journal writes times of its own.
    if file.is_none() && std::env::var_os("JOURNAL_STREAM").is_some() {
        registry.with(layer.with_ansi(false).without_time().with_writer(move || log)).init();
    } else {
        registry.with(layer.with_ansi(ansi).with_writer(move || log)).init();
    }
    Ok(())
}

/// Waits until all lines so far are written, for a second at most.
pub fn finish() {
    let Some(log) = LOG.get() else { return };
    let (end, written) = sync_channel(0);
    if log.lines.try_send(Entry::End(end)).is_ok() {
        // Nobody sends: it is told by the other side's end, or it takes too long.
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
        // Where it can't be written there is nobody to tell. What follows is tried all the same: a full disk gets room again.
        let _ = match entry {
            Entry::Line(line) => sink.write_all(&line),
            Entry::End(_) => sink.flush(),
        };
        let lost = lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let _ = writeln!(sink, "{lost} lines of the log were lost: they were not taken fast enough");
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
