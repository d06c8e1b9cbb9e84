//! `narval watch-store`: pushes new paths of a store as they become valid.

use narval_install::watch::{Filter, Stop, WatchOptions, WatchReport, watch};
use sd_notify::NotifyState;

use crate::Failure;
use crate::args::push::{PushArgs, SourceArgs};
use crate::args::state::StateArgs;
use crate::server::notify_systemd;
use crate::ui::log;
use crate::ui::output::paths;
use crate::ui::signals::stop_on_signal;

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
    /// Skip paths whose name (without the hash) matches this pattern. Repeatable
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Only push paths that were built here, not those that were substituted or added
    #[arg(long)]
    built_here: bool,
    /// Skip paths signed by the key with this name, even as references of other paths: clients use their cache anyway.
    /// Repeatable
    #[arg(long, value_name = "KEY-NAME")]
    skip_signed_by: Vec<String>,
    /// Also push derivations (.drv files)
    #[arg(long)]
    derivations: bool,
    /// Only push paths that 'narval hook' has queued
    #[arg(long, conflicts_with_all = ["existing", "built_here"])]
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
  narval watch-store --to http://cache:5000 --built-here
  narval watch-store --to http://cache:5000 --skip-signed-by cache.nixos.org-1
  narval watch-store --to https://cache.example.org --exclude 'nixos-system-*'

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
    let options = WatchOptions {
        store: args.store.config()?,
        state: args.state.folder()?,
        targets: args.to.urls()?,
        client: args.to.client()?,
        filter: Filter::new(&args.exclude, args.built_here, args.derivations)?.without_signed_by(args.skip_signed_by),
        elsewhere: None,
        push: args.to.how.options()?,
        queue_only: args.queue_only,
        existing: args.existing,
        once: args.once,
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
    finish(&report, args.once && !stop.is_stopped())
}

fn finish(report: &WatchReport, is_complete: bool) -> Result<(), Failure> {
    tracing::info!("{} pushed, {} left for the next run", paths(report.pushed), report.left);
    if !is_complete || report.left == 0 && report.failures.is_empty() {
        return Ok(());
    }
    let why = if report.failures.is_empty() { "see above".to_owned() } else { report.failures.join("; ") };
    Err(Failure::runtime(format!("not pushed and left for the next run: {}: {why}", paths(report.left))))
}
