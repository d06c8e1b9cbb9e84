//! The progress of long work: one area that is redrawn on a terminal, otherwise plain lines, JSON lines, or nothing.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use narval_files::{Done, Work};
use narval_install::{Progress, Snapshot, human_bytes};
use serde_json::json;

use crate::ui::failure::Failure;
use crate::ui::output::{note, out};
use crate::ui::output_args::OutputArgs;
use crate::ui::signals;
use crate::values::time::parse_time;

/// How often the display is updated.
const TICK: Duration = Duration::from_millis(100);
/// The shortest time between two updates.
const TICK_MIN: Duration = Duration::from_millis(10);
/// How often a line says how far the work is if there is no terminal; `NARVAL_PROGRESS` sets another time.
const LINE_EVERY: Duration = Duration::from_secs(60);
/// Without a terminal, paths of at least this size get their own line.
const LINE_FROM: u64 = 10_000_000;
/// How many of the paths being unpacked are named.
const NAMED_MAX: usize = 3;

/// What paths are transferred for: the words for its steps.
#[derive(Clone, Copy)]
pub(crate) struct Transfer {
    /// While paths are sent or fetched.
    moving: &'static str,
    /// When all of them were.
    ending: &'static str,
    /// What an interruption keeps.
    kept: &'static str,
}

/// Paths are fetched into a store.
pub(crate) const FETCH: Transfer =
    Transfer { moving: "fetching", ending: "registering", kept: "verified paths are kept" };
/// Paths are sent to a cache.
pub(crate) const PUSH: Transfer =
    Transfer { moving: "sending", ending: "publishing", kept: "what the cache has received stays there for 24 hours" };

/// The display of long work.
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

/// What is displayed.
enum Followed {
    Transfer(Arc<Progress>, Transfer),
    /// With what an interruption keeps.
    Work(Arc<Work>, &'static str),
}

/// How far it is.
struct View {
    /// The step.
    doing: String,
    counts: String,
    /// Of the whole.
    position: (u64, u64),
}

impl Display {
    /// Displays a transfer in the right format.
    pub(crate) fn start(progress: &Arc<Progress>, output: OutputArgs, transfer: Transfer) -> Self {
        Self::follow(Followed::Transfer(Arc::clone(progress), transfer), output)
    }

    fn follow(followed: Followed, output: OutputArgs) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let form = if output.json {
            Form::Json
        } else if std::io::stderr().is_terminal() {
            Form::Bar
        } else {
            Form::Lines
        };
        let stopped = Arc::clone(&stop);
        let thread = (!output.quiet).then(|| std::thread::spawn(move || follow(&followed, &stopped, form)));
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

/// Does work that is displayed, and that a signal stops: `kept` says what is kept then, and `again` what the same command does. Returns what the
/// work has returned, and the failure to end with if it was stopped. With JSON, nothing is displayed.
pub(crate) fn watched<T>(
    output: OutputArgs,
    (kept, again): (&'static str, &'static str),
    work: impl FnOnce(&Work) -> Result<T, Failure>,
) -> Result<(T, Result<(), Failure>), Failure> {
    let watched = Arc::new(Work::new());
    let stopped = Arc::clone(&watched);
    signals::on_signal(move || stopped.stop());
    let quiet = output.quiet || output.json;
    let display = Display::follow(Followed::Work(Arc::clone(&watched), kept), OutputArgs { quiet, json: false });
    let result = work(&watched);
    display.finish();
    match watched.is_stopped() {
        false => Ok((result?, Ok(()))),
        true => {
            let failure = signals::interrupted(&format!("{kept}, and the same command {again}"));
            result.map(|result| (result, Err(failure.clone()))).map_err(|_| failure)
        }
    }
}

fn follow(followed: &Followed, stopped: &AtomicBool, form: Form) {
    let bar = matches!(form, Form::Bar).then(new_bar);
    let every = std::env::var("NARVAL_PROGRESS").ok().and_then(|time| parse_time(&time).ok()).unwrap_or(LINE_EVERY);
    let (mut step, mut since, mut reported) = (0, Instant::now(), Instant::now());
    let mut stopping = false;
    let say = |line: &str| match &bar {
        Some(bar) => bar.suspend(|| note!("{line}")),
        None => note!("{line}"),
    };
    loop {
        if followed.is_interrupted() && !std::mem::replace(&mut stopping, true) {
            match form {
                Form::Json => emit(&json!({"v": 1, "type": "stopping"})),
                // Printed as soon as a signal has come, since the threads may take a while.
                _ => say(&format!("stopping; {}; a second signal stops immediately", followed.kept())),
            }
        }
        let ends = stopped.load(Ordering::Relaxed);
        if let Followed::Transfer(progress, _) = followed {
            show_paths(progress, form, &say);
        }
        if followed.step() != step {
            (step, since) = (followed.step(), Instant::now());
        }
        if let Some(bar) = &bar {
            let View { doing, counts, position: (position, length) } = followed.view(since.elapsed());
            bar.set_prefix(counts);
            bar.set_length(length.max(1));
            bar.set_position(position.min(length));
            bar.set_message(doing);
            bar.tick();
            if ends {
                bar.finish_and_clear();
            }
        } else if matches!(form, Form::Lines) && !ends && reported.elapsed() >= every {
            let View { doing, counts, .. } = followed.view(since.elapsed());
            say(&if counts.is_empty() { doing } else { format!("{doing}: {counts}") });
            reported = Instant::now();
        }
        if ends {
            return;
        }
        std::thread::park_timeout(TICK.min(every).max(TICK_MIN));
    }
}

/// Paths that are done, and those that continue where an earlier run was interrupted.
fn show_paths(progress: &Progress, form: Form, say: &dyn Fn(&str)) {
    for (path, at) in progress.take_resumed() {
        match form {
            Form::Json => {
                emit(&json!({"v": 1, "type": "path", "path": path.base_name(), "state": "resumed", "offset": at}))
            }
            _ => say(&format!("{}: resumed at {}", path.name(), human_bytes(at))),
        }
    }
    for (path, size) in progress.take_finished() {
        match form {
            Form::Json => {
                emit(&json!({"v": 1, "type": "path", "path": path.base_name(), "state": "done", "narSize": size}))
            }
            Form::Lines if size >= LINE_FROM => say(&format!("{} ({})", path.name(), human_bytes(size))),
            _ => {}
        }
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

impl Followed {
    fn is_interrupted(&self) -> bool {
        match self {
            Self::Transfer(progress, _) => progress.is_interrupted(),
            Self::Work(work, _) => work.is_stopped(),
        }
    }

    const fn kept(&self) -> &'static str {
        match self {
            Self::Transfer(_, transfer) => transfer.kept,
            Self::Work(_, kept) => kept,
        }
    }

    /// The number of its step.
    fn step(&self) -> u32 {
        match self {
            Self::Transfer(progress, _) => u32::from(progress.snapshot().paths_found > 0),
            Self::Work(work, _) => work.done().step.number,
        }
    }

    /// The view after this time in the current step.
    fn view(&self, elapsed: Duration) -> View {
        match self {
            Self::Transfer(progress, transfer) => {
                let now = progress.snapshot();
                let position = (now.nar_bytes_done, now.nar_bytes_found);
                let counts = if now.paths_found == 0 { String::new() } else { counts(&now, elapsed, *transfer) };
                View { doing: step_of(progress, &now, *transfer), counts, position }
            }
            Self::Work(work, _) => view_of_work(&work.done(), elapsed),
        }
    }
}

/// The step of a transfer.
fn step_of(progress: &Progress, now: &Snapshot, transfer: Transfer) -> String {
    let active = progress.active();
    if now.paths_found == 0 || (active.is_empty() && !now.walk_done) {
        return "querying the caches".to_owned();
    }
    if active.is_empty() {
        let is_done = now.paths_done >= now.paths_found;
        return if is_done { transfer.ending } else { transfer.moving }.to_owned();
    }
    let named: Vec<_> = active.iter().take(NAMED_MAX).map(|path| path.name()).collect();
    let others =
        if active.len() > NAMED_MAX { format!(" and {} more", active.len() - NAMED_MAX) } else { String::new() };
    format!("{} {}{others}", transfer.moving, named.join(", "))
}

/// Paths, bytes, what deltas saved, and the rate.
fn counts(now: &Snapshot, elapsed: Duration, transfer: Transfer) -> String {
    let done = now.nar_bytes_done.min(now.nar_bytes_found);
    let more = if now.walk_done { "" } else { "+" };
    let saved = match now.file_bytes_saved {
        0 => String::new(),
        saved => format!(" ({} saved)", human_bytes(saved)),
    };
    let bytes = if transfer.moving == PUSH.moving {
        // How much a NAR is compressed is known when it was sent.
        format!(
            "{}/{} ({} sent)",
            human_bytes(done),
            human_bytes(now.nar_bytes_found),
            human_bytes(now.file_bytes_done)
        )
    } else {
        format!(
            "{}/{}{saved}",
            human_bytes(now.file_bytes_done),
            // What deltas save will not be downloaded.
            human_bytes(now.file_bytes_found.saturating_sub(now.file_bytes_saved))
        )
    };
    let left = if now.walk_done { left(done, now.nar_bytes_found, elapsed) } else { String::new() };
    format!("{}/{}{more} paths  {bytes}  {}{left}", now.paths_done, now.paths_found, rate(done, elapsed))
}

fn view_of_work(now: &Done, elapsed: Duration) -> View {
    let Done { step, count, bytes } = *now;
    let mut counts = match (step.things, step.count) {
        ("", _) => String::new(),
        (things, 0) => format!("{count} {things}"),
        (things, all) => format!("{}/{all} {things}", count.min(all)),
    };
    let by_bytes = step.bytes > 0;
    if by_bytes {
        counts.push_str(&format!("  {}/{}", human_bytes(bytes.min(step.bytes)), human_bytes(step.bytes)));
    } else if bytes > 0 {
        counts.push_str(&format!("  {}", human_bytes(bytes)));
    }
    if bytes > 0 {
        counts.push_str(&format!("  {}", rate(bytes, elapsed)));
    }
    let position = if by_bytes { (bytes, step.bytes) } else { (count, step.count) };
    counts.push_str(&left(position.0, position.1, elapsed));
    View { doing: step.name.to_owned(), counts, position }
}

fn rate(bytes: u64, elapsed: Duration) -> String {
    format!("{}/s", human_bytes((bytes as f64 / elapsed.as_secs_f64().max(0.001)) as u64))
}

/// How long the rest takes at the rate so far; nothing if that cannot be told.
fn left(done: u64, all: u64, elapsed: Duration) -> String {
    if done == 0 || all == 0 {
        return String::new();
    }
    let seconds = all.saturating_sub(done) as f64 * elapsed.as_secs_f64() / done as f64;
    let seconds = seconds.ceil() as u64;
    let (hours, minutes) = (seconds / 3600, seconds % 3600 / 60);
    match (hours, minutes) {
        (0, 0) => format!(" {seconds}s left"),
        (0, minutes) => format!(" {minutes}m {}s left", seconds % 60),
        (hours, minutes) => format!(" {hours}h {minutes}m left"),
    }
}

fn emit(event: &serde_json::Value) {
    out!("{event}");
}

#[cfg(test)]
mod tests {
    use narval_files::Step;

    use super::*;

    #[test]
    fn the_line_says_what_deltas_save() {
        let snapshot = Snapshot {
            paths_found: 3,
            paths_done: 2,
            nar_bytes_found: 80_000_000,
            nar_bytes_done: 40_000_000,
            file_bytes_found: 10_000_000,
            file_bytes_done: 1_000_000,
            ..Snapshot::default()
        };
        let line = |snapshot: &Snapshot| counts(snapshot, Duration::from_secs(10), FETCH);
        assert_eq!(line(&snapshot), "2/3+ paths  1.0 MB/10 MB  4.0 MB/s");
        let snapshot = Snapshot { file_bytes_saved: 8_000_000, deltas_done: 1, ..snapshot };
        assert_eq!(line(&snapshot), "2/3+ paths  1.0 MB/2.0 MB (8.0 MB saved)  4.0 MB/s");
    }

    #[test]
    fn a_push_counts_the_bytes_of_a_large_nar() {
        let snapshot = Snapshot {
            paths_found: 1,
            nar_bytes_found: 500_000_000,
            nar_bytes_done: 67_000_000,
            file_bytes_found: 500_000_000,
            file_bytes_done: 12_000_000,
            walk_done: true,
            ..Snapshot::default()
        };
        let line = counts(&snapshot, Duration::from_secs(10), PUSH);
        assert_eq!(line, "0/1 paths  67 MB/500 MB (12 MB sent)  6.7 MB/s 1m 5s left");
    }

    #[test]
    fn work_is_measured_by_bytes_where_they_are_read() {
        let view = |name, things, (count, all), (bytes, bytes_all)| {
            let step = Step { name, things, count: all, bytes: bytes_all, number: 1 };
            view_of_work(&Done { step, count, bytes }, Duration::from_secs(10)).counts
        };
        let line = view("checking", "NARs", (3, 40), (1_000_000, 4_000_000_000));
        assert_eq!(line, "3/40 NARs  1.0 MB/4.0 GB  100 kB/s 11h 6m left");
        assert_eq!(view("checking", "narinfos", (3, 6), (0, 0)), "3/6 narinfos 10s left");
        assert_eq!(view("deleting", "NARs", (3, 0), (50, 0)), "3 NARs  50 B  5 B/s");
        assert_eq!(view("looking", "", (0, 0), (0, 0)), "");
    }
}
