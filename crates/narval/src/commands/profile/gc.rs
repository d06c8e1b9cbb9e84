//! `narval gc`: removes store paths that no root needs.

use std::path::PathBuf;

use narval_install::Profile;
use narval_store::{
    Access, Daemon, Garbage, GarbageCollector, GarbageOptions, GarbageSettings, LocalStoreError, StoreConfig,
    disk_usage, find_garbage,
};
use rustix::fs::{Access as Permission, access};
use serde_json::json;

use crate::args::client::{StoreArgs, human_bytes};
use crate::project::forget_deleted;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{counted, out};
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::watched;

/// Remove store paths that no profile or other root needs
///
/// It can be interrupted: what was removed stays so, and the same command continues.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  narval gc --dry-run\n  narval gc --keep 3")]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// First remove the old generations of every profile, except the newest N and the current one
    #[arg(long, value_name = "N")]
    keep: Option<usize>,
    /// Show what would be removed, without removing it
    #[arg(long)]
    dry_run: bool,
}

/// What was removed, or would be.
struct Removed {
    /// Folders of profiles.
    generations: Vec<PathBuf>,
    /// Base names.
    paths: Vec<String>,
    leftovers: Vec<String>,
    /// Bytes on disk, if they are known.
    bytes: Option<u64>,
    /// Paths that remain valid, if they are known.
    kept: Option<usize>,
    /// Whether nothing is left of what was to be removed.
    is_complete: bool,
}

/// Runs `narval gc`.
///
/// # Errors
/// The store cannot be written.
pub fn run(args: Args) -> Result<(), Failure> {
    args.output.start_log();
    let config = args.store.config()?;
    if !args.dry_run {
        forget_deleted();
    }
    let by_daemon = is_collected_by_daemon(&config);
    let (mut generations, mut removed_folders) = (Vec::new(), Vec::new());
    if let Some(keep) = args.keep {
        for profile in Profile::all(&config)? {
            let (old, leftovers) = profile.prunable(keep)?;
            removed_folders.extend(old.iter().cloned().chain(leftovers));
            generations.extend(old);
            if !args.dry_run {
                profile.prune(keep)?;
            }
        }
    }
    if by_daemon {
        return gc_by_daemon(&config, generations, &args);
    }
    let settings = GarbageSettings::of_process();
    let options = GarbageOptions {
        removed_folders,
        keep_outputs: settings.keep_outputs,
        drop_derivations: !settings.keep_derivations,
        ..GarbageOptions::default()
    };
    let kept = if args.dry_run { "nothing was changed" } else { "what was removed stays so" };
    let (garbage, ended) = watched(args.output, (kept, "continues"), |work| {
        let garbage = if args.dry_run {
            find_garbage(&config, &options, work)
        } else {
            GarbageCollector::open(config).and_then(|collector| collector.collect(&options, work))
        };
        garbage.map_err(failed)
    })?;
    let Garbage { paths, leftovers, bytes_freed, kept, not_removed, is_stopped } = garbage;
    let paths = paths.iter().map(|path| path.base_name().to_owned()).collect();
    let (bytes, kept, is_complete) = (Some(bytes_freed), Some(kept), not_removed.is_empty() && !is_stopped);
    report(&Removed { generations, paths, leftovers, bytes, kept, is_complete }, &args);
    match not_removed.first() {
        None => ended,
        Some(first) => {
            let (left, verb) = match not_removed.len() {
                1 => ("1 path".to_owned(), "is"),
                several => (counted(several, "path"), "are"),
            };
            Err(Failure::runtime(format!("{first}; {left} that nothing needs {verb} left, the rest was removed")))
        }
    }
}

/// As Nix does for `auto` (`store-api.cc`): users who can write to the state directory collect directly, even while a
/// daemon runs.
fn is_collected_by_daemon(config: &StoreConfig) -> bool {
    let may_write = || access(&config.state_dir, Permission::READ_OK | Permission::WRITE_OK).is_ok();
    match config.access {
        Access::Daemon => true,
        Access::Auto => !may_write() && Daemon::new(&config.daemon_socket, config.store_dir.clone()).hello().is_ok(),
        Access::Database => false,
    }
}

/// Collects through the daemon: it knows where the files are.
fn gc_by_daemon(config: &StoreConfig, generations: Vec<PathBuf>, args: &Args) -> Result<(), Failure> {
    if args.dry_run && !generations.is_empty() {
        tracing::warn!("the daemon cannot tell what these generations alone keep: more paths would be removed");
    }
    let daemon = Daemon::new(&config.daemon_socket, config.store_dir.clone());
    let collected = daemon.collect_garbage(args.dry_run).map_err(Failure::runtime)?;
    let paths: Vec<String> =
        collected.paths.iter().map(|path| path.rsplit('/').next().unwrap_or_default().to_owned()).collect();
    let bytes = if args.dry_run {
        // The daemon does not look at the files then.
        disk_usage(config, paths.iter().map(String::as_str)).ok()
    } else {
        Some(collected.bytes_freed)
    };
    report(&Removed { generations, paths, leftovers: Vec::new(), bytes, kept: None, is_complete: true }, args);
    Ok(())
}

fn report(removed: &Removed, args: &Args) {
    let Removed { generations, paths, leftovers, bytes, kept, is_complete } = removed;
    if args.output.json {
        let mut fields = json!({
            "generations": generations.iter().map(|folder| folder.to_string_lossy()).collect::<Vec<_>>(),
            "paths": paths,
            "leftovers": leftovers,
            "dryRun": args.dry_run,
        });
        for (name, number) in [("bytes", *bytes), ("kept", kept.map(|kept| kept as u64))] {
            if let Some(number) = number {
                fields[name] = number.into();
            }
        }
        // After what could not be removed, the error is the end.
        if *is_complete { json::summary(fields) } else { json::event("removed", fields) }
    } else if !args.output.quiet {
        if args.dry_run {
            generations.iter().for_each(|folder| out!("{}", folder.display()));
            paths.iter().chain(leftovers).for_each(|name| out!("{name}"));
        }
        let verb = if args.dry_run { "would remove" } else { "removed" };
        let mut parts = vec![counted(paths.len(), "path")];
        let others = [(leftovers.len(), "leftover"), (generations.len(), "generation")];
        parts.extend(others.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| counted(count, what)));
        let what = match parts.split_last() {
            Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
            _ => parts.concat(),
        };
        let bytes = bytes.map(|bytes| format!(" ({})", human_bytes(bytes))).unwrap_or_default();
        let kept = kept.map(|kept| format!("; {kept} remain")).unwrap_or_default();
        out!("{verb} {what}{bytes}{kept}");
    }
}

/// Another collection would not help if this one lacks space.
fn failed(error: LocalStoreError) -> Failure {
    let shown = error.to_string();
    match narval_install::Error::from(error) {
        error if error.exit_code() == 6 => Failure::Coded(
            6,
            format!("{shown}; delete some other files of this file system, and run the same command again"),
        ),
        error => error.into(),
    }
}
