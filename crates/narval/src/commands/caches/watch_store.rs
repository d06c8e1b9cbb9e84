//! `narval watch-store`: pushes new paths of a store as they become valid.

use std::path::Path;

use narval_push::watch::{Stop, WatchOptions, WatchReport, watch};
use sd_notify::NotifyState;
use tempfile::TempDir;

use crate::args::push::{FilterArgs, PushArgs, SourceArgs};
use crate::args::state::StateArgs;
use crate::server::notify_systemd;
use crate::ui::failure::Failure;
use crate::ui::lacking::show_lacking;
use crate::ui::log;
use crate::ui::output::paths;
use crate::ui::signals::stop_on_signal;

/// The most files of a state that are looked at.
const STATE_FILES_MAX: usize = 100_000;

/// Push new paths of a store as they become valid
///
/// Follows the store's database and the queue of 'narval hook', and pushes each path with its closure. The progress of
/// each cache is recorded and survives restarts; while a cache is down, its paths wait. A new cache gets the paths that
/// become valid from now on. SIGTERM and SIGINT stop it gracefully.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    to: PushArgs,
    #[command(flatten)]
    store: SourceArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// Only push paths that 'narval hook' has queued
    #[arg(long, conflicts_with_all = ["existing", "only_built"])]
    queue_only: bool,
    /// Also push paths that are already valid, once for each cache
    #[arg(long)]
    existing: bool,
    /// Push all pending paths, and exit
    #[arg(long)]
    once: bool,
}

const EXAMPLES: &str = "\
Examples:
  narval watch-store --to http://cache:5000 --only-built
  narval watch-store --to http://cache:5000 --skip-signed-by cache.nixos.org-1
  narval watch-store --to https://cache.example.org --exclude 'nixos-system-*'
  narval watch-store --to https://cache.example.org --max-size 2G --dry-run

  In CI: the first records the state of the store, the second pushes
  what was built since.
  narval watch-store --to https://cache.example.org --state ./state --once
  narval watch-store --to https://cache.example.org --state ./state --once";

/// Runs `narval watch-store`.
///
/// # Errors
/// If the store or the state cannot be used; with --once, if paths could not be pushed.
pub fn run(args: Args) -> Result<(), Failure> {
    log::start(None)?;
    let (store, targets, is_dry) = (args.store.config()?, args.to.urls()?, args.filter.dry_run);
    let selection = args.filter.selection(&targets, &args.to.how.token.requests, &store.store_dir)?;
    let state = args.state.folder()?;
    let copy = if is_dry { Some(copy_of_state(&state)?) } else { None };
    let options = WatchOptions {
        store,
        state: copy.as_ref().map_or(state, |copy| copy.path().to_owned()),
        targets,
        client: args.to.client()?,
        selection,
        is_dry,
        push: args.to.how.options()?,
        queue_only: args.queue_only,
        existing: args.existing,
        once: args.once || is_dry,
    };
    let stop = Stop::default();
    stop_on_signal(&stop, "paths that were not pushed are left for the next run", || false)?;
    let ready = || {
        let urls: Vec<String> = options.targets.iter().map(ToString::to_string).collect();
        tracing::info!("watching {} for {}", options.store.database().display(), urls.join(", "));
        notify_systemd(&[NotifyState::Ready]);
    };
    let report = watch(&options, &stop, ready)?;
    notify_systemd(&[NotifyState::Stopping]);
    if is_dry && report.left == 0 {
        show_lacking(&report.lacking, &options.store.store_dir, false);
        return Ok(());
    }
    finish(&report, (args.once || is_dry) && !stop.is_stopped())
}

/// What is pending may be looked at beside the watcher, and stays pending.
fn copy_of_state(state: &Path) -> Result<TempDir, Failure> {
    let failed = |error: &std::io::Error| Failure::of_file(&state.display().to_string(), error);
    let copy = tempfile::Builder::new().prefix("narval-push-").tempdir().map_err(|error| failed(&error))?;
    for below in ["", "queue"] {
        let Ok(files) = std::fs::read_dir(state.join(below)) else { continue };
        std::fs::create_dir_all(copy.path().join(below)).map_err(|error| failed(&error))?;
        for file in files.take(STATE_FILES_MAX) {
            let file = file.map_err(|error| failed(&error))?;
            // A watcher may remove one of its queue meanwhile.
            if file.file_type().is_ok_and(|kind| kind.is_file()) {
                let _ = std::fs::copy(file.path(), copy.path().join(below).join(file.file_name()));
            }
        }
    }
    Ok(copy)
}

fn finish(report: &WatchReport, is_complete: bool) -> Result<(), Failure> {
    tracing::info!("{} pushed, {} left for the next run", paths(report.pushed), report.left);
    if !is_complete || report.left == 0 && report.failures.is_empty() {
        return Ok(());
    }
    let why = if report.failures.is_empty() { "see above".to_owned() } else { report.failures.join("; ") };
    Err(Failure::runtime(format!("not pushed and left for the next run: {}: {why}", paths(report.left))))
}
