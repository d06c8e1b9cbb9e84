//! `narval watch-store`: pushes what a store builds, as it builds it.

use std::time::Duration;

use narval_install::watch::{Filter, Stop, WatchOptions, WatchReport, watch};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::Failure;
use crate::args::push::{PushArgs, SourceArgs};
use crate::args::state::StateArgs;
use crate::ui::log;

/// How long threads that wait for the network are waited for after a signal. What was not delivered is remembered.
const GRACE: Duration = Duration::from_secs(5);

/// Push what becomes valid in a store, as it becomes valid
///
/// Follows the store's database and the queue of 'narval hook', and pushes each path with all that it refers to. What was
/// pushed is remembered for each cache, over restarts; while a cache is down its paths wait. A new cache gets what becomes valid
/// from now on. Ends in order at SIGTERM and SIGINT.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    to: PushArgs,
    #[command(flatten)]
    store: SourceArgs,
    #[command(flatten)]
    state: StateArgs,
    /// Leave out paths whose name (without the hash) this pattern matches. Repeatable
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// Only push what was built here, and not what was substituted or added
    #[arg(long)]
    built_here: bool,
    /// Leave out paths signed by the key of this name, and references to them: clients have their cache anyway. Repeatable
    #[arg(long, value_name = "KEY-NAME")]
    skip_signed_by: Vec<String>,
    /// Push derivations (.drv files), too
    #[arg(long)]
    derivations: bool,
    /// Only push what 'narval hook' has queued
    #[arg(long, conflicts_with_all = ["existing", "built_here"])]
    queue_only: bool,
    /// Have a new cache get all that is valid already
    #[arg(long)]
    existing: bool,
    /// Push what there is to be pushed now, and end
    #[arg(long)]
    once: bool,
}

const EXAMPLES: &str = "\
Examples:
  narval watch-store --to http://cache:5000 --built-here
  narval watch-store --to http://cache:5000 --skip-signed-by cache.nixos.org-1
  narval watch-store --to https://cache.example.org --exclude 'nixos-system-*'

  In CI: the first remembers where the store stands, the second pushes
  what was built since.
  narval watch-store --to https://cache.example.org --state ./state --once
  narval watch-store --to https://cache.example.org --state ./state --once";

/// Runs `narval watch-store`.
///
/// # Errors
/// When the store or the state can't be used; with --once, when paths could not be pushed.
pub fn run(args: Args) -> Result<(), Failure> {
    log::start(None)?;
    let options = WatchOptions {
        store: args.store.config()?,
        state: args.state.folder()?,
        targets: args.to.urls()?,
        client: args.to.client()?,
        filter: Filter::new(&args.exclude, args.built_here, args.derivations)?.without_signed_by(args.skip_signed_by),
        push: args.to.options()?,
        queue_only: args.queue_only,
        existing: args.existing,
        once: args.once,
    };
    let stop = Stop::default();
    stop_on_signal(&stop)?;
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
    tracing::info!("{} paths pushed, {} remembered for the next time", report.pushed, report.left);
    if !is_complete || report.left == 0 && report.failures.is_empty() {
        return Ok(());
    }
    let why = if report.failures.is_empty() { "see above".to_owned() } else { report.failures.join("; ") };
    Err(Failure::runtime(format!("{} paths were not pushed and are remembered: {why}", report.left)))
}

/// The first SIGTERM or SIGINT ends the watcher in order, the second one at once.
fn stop_on_signal(stop: &Stop) -> Result<(), Failure> {
    let uncaught = |error: std::io::Error| Failure::runtime(format!("cannot catch signals: {error}"));
    let (mut signals, stop) = (Signals::new([SIGINT, SIGTERM]).map_err(uncaught)?, stop.clone());
    let end = |why: &'static str| {
        tracing::info!("{why}; what was not pushed is remembered");
        log::finish();
        std::process::exit(0);
    };
    let handle = move || {
        let mut signals = signals.forever();
        if signals.next().is_none() {
            return;
        }
        stop.stop();
        // A cache that does not answer is not waited for.
        let patience = std::thread::Builder::new().name("grace".into()).spawn(move || {
            std::thread::sleep(GRACE);
            end("a cache does not answer in time")
        });
        if patience.is_err() || signals.next().is_some() {
            end("ended at once");
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(handle).map_err(uncaught)?;
    Ok(())
}

/// Without systemd there is nobody to tell.
fn notify_systemd(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("cannot notify systemd: {error}");
    }
}
