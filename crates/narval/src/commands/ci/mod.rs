//! `narval ci`: a cache for a job of a CI system, read while it builds, and filled with what it builds.

mod child;
mod hook;
mod identity;
mod near;
mod options;
mod platform;
mod release;
mod saved;
mod session;
mod steps;
mod summary;

use self::child::Ended;
pub use self::options::Args;
use self::options::Step;
use self::session::Session;
use self::summary::Summary;
use crate::ui::failure::Failure;

/// Runs `narval ci`. Ends the process with the exit code of the command, if that is not 0.
///
/// # Errors
/// Wrong options, or a command that cannot be started.
pub fn run(args: Args) -> Result<(), Failure> {
    args.output.start_log();
    match (args.step, args.command.is_empty()) {
        (None, true) => Err(Failure::usage("say what to run after --: narval ci --to URL -- nix build")),
        (Some(_), false) => Err(Failure::usage("start and end run no command: give them none")),
        (Some(_), true) if args.release.is_asked_for() => Err(Failure::usage(
            "--release goes with a command after --; in a job with steps, use 'narval push ./result --release NAME' before 'narval ci end'",
        )),
        (Some(Step::Start), true) => steps::start(&args),
        (Some(Step::End), true) => steps::end(&args),
        (Some(Step::Hold), true) => steps::hold(&args),
        (None, false) => run_command(&args),
    }
}

fn run_command(args: &Args) -> Result<(), Failure> {
    let to = args.cache()?;
    let folder = tempfile::Builder::new().prefix("narval-ci-").tempdir();
    let folder = folder.map_err(|error| Failure::runtime(format!("cannot create a temporary folder: {error}")))?;
    let session = Session::begin(args, &to, folder.path())?;
    let ended = child::run(&args.command, session.nix_config_of_job(), session.ending());
    let left = match &ended {
        Ok(Ended { cancelled: Some(at), .. }) => child::CANCELLED.saturating_sub(at.elapsed()).min(args.deadline),
        _ => session.left_of(args.deadline),
    };
    let code = ended.as_ref().ok().map(|ended| ended.code);
    let (client, store) = session.for_release();
    let record = |left| release::record(args, &to, &client, &store, left);
    let summary = match args.release.is_asked_for() && code == Some(0) && !args.filter.dry_run {
        true => Summary::of(session, left, code, Some(&record))?,
        false => Summary::of(session, left, code, None)?,
    };
    summary.write_metrics(args.metrics.as_deref());
    summary.show(args.output);
    // Threads that wait for a cache may still use it.
    drop(folder);
    let code = ended?.code;
    if code != 0 {
        crate::ui::log::finish();
        std::process::exit(code.into());
    }
    Ok(())
}
