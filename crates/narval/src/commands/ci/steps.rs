//! `narval ci start` and `narval ci end`: for runners that separate steps. A process of this program stays between them.
//!
//! ```text
//! start ── starts ──▶ hold: writes environment.json ── SIGTERM of end ──▶ pushes the rest, writes summary.json, ends
//! ```

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::near::write_private;
use super::options::Args;
use super::platform::{Platform, set_for_later_steps};
use super::session::Session;
use super::summary::{Summary, write_metrics};
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{note, out};

/// How long `start` waits for what it has started.
const STARTED_WITHIN: Duration = Duration::from_secs(20);
/// How much longer than its deadline `end` waits.
const ENDED_AFTER: Duration = Duration::from_secs(5);
/// How often they look.
const LOOK: Duration = Duration::from_millis(20);
/// How long a session is held if no `end` comes.
const HELD_MAX: Duration = Duration::from_secs(24 * 3600);

/// The folder between the two.
struct Folder(PathBuf);

impl Folder {
    /// That of the options: of this user, and closed to others.
    fn of(args: &Args) -> Result<Self, Failure> {
        let usual = || match std::env::var_os("RUNNER_TEMP").filter(|path| !path.is_empty()) {
            Some(runner) => PathBuf::from(runner).join("narval-ci"),
            None => std::env::temp_dir().join(format!("narval-ci-{}", rustix::process::getuid().as_raw())),
        };
        let path = args.state.clone().unwrap_or_else(usual);
        let path = std::path::absolute(&path).unwrap_or(path);
        Ok(Self(path))
    }

    fn make(&self) -> Result<(), Failure> {
        let failed = |error: std::io::Error| Failure::of_file(&self.0.display().to_string(), &error);
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => made.map_err(failed)?,
        }
        self.check()?;
        std::fs::set_permissions(&self.0, Permissions::from_mode(0o700)).map_err(failed)
    }

    /// In a folder for temporary files, somebody else may have made it.
    fn check(&self) -> Result<(), Failure> {
        let shown = self.0.display();
        let found = self.0.symlink_metadata().map_err(|error| Failure::of_file(&shown.to_string(), &error))?;
        if found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        Err(Failure::usage(format!("'{shown}' is not a folder of this user: name another one with --state")))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The lock that the process between the steps holds. `None` while it does.
    fn lock(&self) -> Result<Option<File>, Failure> {
        let path = self.file("lock");
        let failed = |error: std::io::Error| Failure::of_file(&path.display().to_string(), &error);
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        Ok(flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok().then_some(file))
    }
}

/// `narval ci start`: returns when the cache is set up, and gives later steps the settings of Nix.
pub(super) fn start(args: &Args) -> Result<(), Failure> {
    args.cache()?;
    let folder = Folder::of(args)?;
    folder.make()?;
    let Some(lock) = folder.lock()? else {
        return Err(Failure::usage(format!(
            "a job has been started in '{}': 'narval ci end' ends it",
            folder.0.display()
        )));
    };
    for name in ["environment.json", "summary.json", "pid", "near.log"] {
        // It may not be there.
        let _ = std::fs::remove_file(folder.file(name));
    }
    drop(lock);
    let log = folder.file("log");
    let out = File::create(&log).map_err(|error| Failure::of_file(&log.display().to_string(), &error))?;
    let err = out.try_clone().map_err(Failure::runtime)?;
    let mut holder = Command::new("/proc/self/exe");
    holder.args(["ci", "hold", "--state"]).arg(&folder.0);
    // All options again; `start` is the first of the arguments that are not options, and a value may be the same word.
    let mut others: Vec<_> = std::env::args_os().skip(2).collect();
    if let Some(at) = others.iter().position(|argument| argument == "start") {
        others.remove(at);
    }
    let is_state = |argument: &std::ffi::OsString| argument == "--state";
    if let Some(at) = others.iter().position(is_state) {
        others.drain(at..(at + 2).min(others.len()));
    }
    others.retain(|argument| !argument.to_string_lossy().starts_with("--state="));
    holder.args(others).stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
    let mut child = holder.spawn().map_err(|error| Failure::runtime(format!("cannot start: {error}")))?;
    let begun = Instant::now();
    let text = loop {
        if let Ok(text) = std::fs::read_to_string(folder.file("environment.json")) {
            break text;
        }
        let ended = child.try_wait().ok().flatten();
        if ended.is_some() || begun.elapsed() > STARTED_WITHIN {
            let log_text = std::fs::read_to_string(&log).unwrap_or_default();
            // It would be in the way of the next one.
            let _ = child.kill();
            return Err(match ended.and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok()) {
                Some(code) => Failure::Coded(code.max(1), log_text.trim().trim_start_matches("narval: ").to_owned()),
                None => Failure::runtime(format!("it did not start in time: {}", log_text.trim())),
            });
        }
        std::thread::sleep(LOOK);
    };
    show_log(&log);
    let environment: Value = serde_json::from_str(&text).map_err(Failure::runtime)?;
    if let Some(config) = environment.get("NIX_CONFIG").and_then(Value::as_str) {
        // Without a file for it, a shell evaluates the output.
        if !set_for_later_steps("NIX_CONFIG", config).map_err(Failure::runtime)? && !args.output.json {
            out!("export NIX_CONFIG='{}'", config.replace('\'', "'\\''"));
        }
    }
    if args.output.json {
        json::summary(json!({"environment": environment}));
    }
    Ok(())
}

fn show_log(log: &Path) {
    std::fs::read_to_string(log).unwrap_or_default().lines().for_each(|line| note!("{line}"));
}

/// Stays until it is told to end.
pub(super) fn hold(args: &Args) -> Result<(), Failure> {
    let folder = Folder::of(args)?;
    folder.check()?;
    let Some(_lock) = folder.lock()? else { return Err(Failure::usage("it is held already")) };
    let uncaught = |error: std::io::Error| Failure::runtime(format!("cannot catch signals: {error}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(uncaught)?;
    let handle = signals.handle();
    let files = folder.file("session");
    // Of a job before.
    let _ = std::fs::remove_dir_all(&files);
    DirBuilder::new().mode(0o700).create(&files).map_err(|error| Failure::of_file("session", &error))?;
    let session = Session::begin(args, &args.cache()?, &files)?;
    write_private(&folder.file("pid"), &std::process::id().to_string())?;
    let environment = json!({"NIX_CONFIG": session.nix_config_of_job()});
    write_private(&folder.file("environment.json"), &environment.to_string())?;
    drop(std::thread::Builder::new().name("limit".into()).spawn(move || {
        std::thread::sleep(HELD_MAX);
        handle.close();
    }));
    signals.forever().next();
    let left = session.left_of(args.deadline);
    let summary = Summary::of(session, left, None, None)?;
    let shown = json!({
        "json": summary.json(), "text": summary.text(), "markdown": summary.markdown(), "warning": summary.warning(),
    });
    write_private(&folder.file("summary.json"), &shown.to_string())
}

/// `narval ci end`: waits for the pushes, and shows the summary. A job that was not started, or that has died, is a warning: the job does not fail.
pub(super) fn end(args: &Args) -> Result<(), Failure> {
    let (folder, platform) = (Folder::of(args)?, Platform::of_process());
    let begun = Instant::now();
    let pid = folder.check().ok().and_then(|()| std::fs::read_to_string(folder.file("pid")).ok());
    let pid = pid.and_then(|pid| pid.trim().parse().ok()).and_then(Pid::from_raw);
    let Some(pid) = pid.filter(|_| folder.lock().is_ok_and(|lock| lock.is_none())) else {
        return nothing(args, platform, "no job was started here, or it has died: nothing was pushed since");
    };
    // It may just have ended.
    let _ = kill_process(pid, Signal::TERM);
    while folder.lock()?.is_none() {
        if begun.elapsed() > args.deadline + ENDED_AFTER {
            let _ = kill_process(pid, Signal::KILL);
            return nothing(args, platform, "the pushes did not end in time");
        }
        std::thread::sleep(LOOK);
    }
    let summary = std::fs::read_to_string(folder.file("summary.json")).ok();
    let Some(summary) = summary.and_then(|text| serde_json::from_str::<Value>(&text).ok()) else {
        show_log(&folder.file("log"));
        return nothing(args, platform, "the job's session has failed");
    };
    let text = |name: &str| summary.get(name).and_then(Value::as_str);
    if let Some(warning) = text("warning") {
        platform.warn(warning);
    }
    if !args.output.quiet {
        platform.show(text("markdown").unwrap_or_default(), text("text").unwrap_or_default());
    }
    let figures = summary.get("json").cloned().unwrap_or_default();
    write_metrics(args.metrics.as_deref(), &figures);
    if args.output.json {
        json::summary(figures);
    }
    // Nothing of it is needed any more.
    let _ = std::fs::remove_dir_all(&folder.0);
    Ok(())
}

/// There is no summary: a warning, since the job does not fail for it.
fn nothing(args: &Args, platform: Platform, why: &str) -> Result<(), Failure> {
    platform.warn(why);
    if args.output.json {
        json::summary(json!({"warning": why}));
    }
    Ok(())
}
