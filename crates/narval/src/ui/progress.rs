//! The progress of an install: one area that is redrawn on a terminal, otherwise plain lines, JSON lines, or nothing.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use narval_install::{Progress, Snapshot};
use serde_json::json;

use crate::args::client::{OutputArgs, human_bytes};
use crate::ui::output::{note, out};

/// How often the display is updated.
const TICK: Duration = Duration::from_millis(100);
/// Without a terminal, paths of at least this size get their own line.
const LINE_FROM: u64 = 10_000_000;
/// How many of the paths being unpacked are named.
const NAMED_MAX: usize = 3;
/// Printed as soon as a signal has come, since the threads may take a while.
const STOPPING: &str = "stopping; verified paths are kept; a second signal stops immediately";

/// The display of an install.
pub(crate) struct Display {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Copy)]
enum Form {
    Bar,
    Lines,
    Json,
}

impl Display {
    /// Starts the display in the right format.
    pub(crate) fn start(progress: &Arc<Progress>, output: OutputArgs) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let form = if output.json {
            Form::Json
        } else if std::io::stderr().is_terminal() {
            Form::Bar
        } else {
            Form::Lines
        };
        let (progress, stopped) = (Arc::clone(progress), Arc::clone(&stop));
        let thread = (!output.quiet).then(|| std::thread::spawn(move || follow(&progress, &stopped, form)));
        Self { stop, thread }
    }

    /// Shows the final state, and ends.
    pub(crate) fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread {
            thread.thread().unpark();
            // A failure of the display does not matter.
            let _ = thread.join();
        }
    }
}

fn follow(progress: &Progress, stopped: &AtomicBool, form: Form) {
    let bar = matches!(form, Form::Bar).then(new_bar);
    let start = Instant::now();
    let mut stopping = false;
    loop {
        if progress.is_interrupted() && !std::mem::replace(&mut stopping, true) {
            match (form, &bar) {
                (Form::Json, _) => emit(&json!({"v": 1, "type": "stopping"})),
                (_, Some(bar)) => bar.suspend(|| say(STOPPING)),
                (_, None) => say(STOPPING),
            }
        }
        let ends = stopped.load(Ordering::Relaxed);
        for (path, size) in progress.take_finished() {
            match form {
                Form::Json => {
                    emit(&json!({"v": 1, "type": "path", "path": path.base_name(), "state": "done", "narSize": size}))
                }
                Form::Lines if size >= LINE_FROM => say(&format!("{} ({})", path.name(), human_bytes(size))),
                _ => {}
            }
        }
        if let Some(bar) = &bar {
            redraw(bar, progress, start);
            if ends {
                bar.finish_and_clear();
            }
        }
        if ends {
            return;
        }
        std::thread::park_timeout(TICK);
    }
}

fn new_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
    let style = ProgressStyle::with_template("{spinner} {wide_bar:.cyan/blue} {prefix}\n  {msg}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}

fn redraw(bar: &ProgressBar, progress: &Progress, start: Instant) {
    let now = progress.snapshot();
    if now.paths_found == 0 {
        bar.set_message("querying the caches");
        bar.tick();
        return;
    }
    bar.set_prefix(counts(&now, start.elapsed()));
    bar.set_length(now.nar_bytes_found.max(1));
    bar.set_position(now.nar_bytes_done.min(now.nar_bytes_found));
    let active = progress.active();
    let named: Vec<_> = active.iter().take(NAMED_MAX).map(|path| path.name()).collect();
    let others =
        if active.len() > NAMED_MAX { format!(" and {} more", active.len() - NAMED_MAX) } else { String::new() };
    bar.set_message(format!("{}{others}", named.join(", ")));
}

/// Paths, bytes downloaded, what deltas saved, and the rate.
fn counts(now: &Snapshot, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(0.001);
    let rate = now.nar_bytes_done as f64 / seconds;
    let left = now.nar_bytes_found.saturating_sub(now.nar_bytes_done) as f64;
    let eta = if rate > 0.0 && now.walk_done { format!(" {:.0}s left", left / rate) } else { String::new() };
    let more = if now.walk_done { "" } else { "+" };
    let saved = match now.file_bytes_saved {
        0 => String::new(),
        saved => format!(" ({} saved)", human_bytes(saved)),
    };
    format!(
        "{}/{}{more} paths  {}/{}{saved}  {}/s{eta}",
        now.paths_done,
        now.paths_found,
        human_bytes(now.file_bytes_done),
        // What deltas save will not be downloaded.
        human_bytes(now.file_bytes_found.saturating_sub(now.file_bytes_saved)),
        human_bytes(rate as u64),
    )
}

fn emit(event: &serde_json::Value) {
    out!("{event}");
}

fn say(line: &str) {
    note!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_deltas_save() {
        let snapshot = Snapshot {
            paths_found: 3,
            paths_done: 2,
            nar_bytes_done: 40_000_000,
            file_bytes_found: 10_000_000,
            file_bytes_done: 1_000_000,
            ..Snapshot::default()
        };
        let line = |snapshot: &Snapshot| counts(snapshot, Duration::from_secs(10));
        assert_eq!(line(&snapshot), "2/3+ paths  1.0 MB/10 MB  4.0 MB/s");
        let snapshot = Snapshot { file_bytes_saved: 8_000_000, deltas_done: 1, ..snapshot };
        assert_eq!(line(&snapshot), "2/3+ paths  1.0 MB/2.0 MB (8.0 MB saved)  4.0 MB/s");
    }
}
