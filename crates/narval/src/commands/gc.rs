//! `narval gc`: removes store paths that no root needs.

use narval_install::Profile;
use narval_store::{Access, Daemon, GarbageCollector, GarbageOptions, GarbageSettings, StoreConfig};
use rustix::fs::{Access as Permission, access};
use serde_json::json;

use crate::Failure;
use crate::args::client::{OutputArgs, StoreArgs, human_bytes};
use crate::ui::output::{counted, out};

/// Remove store paths that no profile or other root needs
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

/// Runs `narval gc`.
///
/// # Errors
/// The store cannot be written.
pub fn run(args: Args) -> Result<(), Failure> {
    args.output.start_log();
    let config = args.store.config()?;
    if let (Some(keep), false) = (args.keep, args.dry_run) {
        for profile in Profile::all(&config)? {
            profile.prune(keep)?;
        }
    }
    if is_collected_by_daemon(&config) {
        return gc_by_daemon(&Daemon::new(&config.daemon_socket, config.store_dir), &args);
    }
    let settings = GarbageSettings::of_process();
    let options = GarbageOptions {
        dry_run: args.dry_run,
        keep_outputs: settings.keep_outputs,
        drop_derivations: !settings.keep_derivations,
        ..GarbageOptions::default()
    };
    let collected = GarbageCollector::open(config).and_then(|collector| collector.collect(&options));
    let garbage = collected.map_err(narval_install::Error::from)?;
    if args.output.json {
        let paths: Vec<_> = garbage.paths.iter().map(|path| path.base_name()).collect();
        out!(
            "{}",
            json!({"v": 1, "paths": paths, "bytes": garbage.bytes_freed, "kept": garbage.kept, "dryRun": args.dry_run})
        );
    } else if !args.output.quiet {
        if args.dry_run {
            garbage.paths.iter().for_each(|path| out!("{path}"));
        }
        let verb = if args.dry_run { "would remove" } else { "removed" };
        out!(
            "{verb} {} ({}); {} remain",
            counted(garbage.paths.len(), "path"),
            human_bytes(garbage.bytes_freed),
            garbage.kept
        );
    }
    Ok(())
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
fn gc_by_daemon(daemon: &Daemon, args: &Args) -> Result<(), Failure> {
    let collected = daemon.collect_garbage(args.dry_run).map_err(Failure::runtime)?;
    let name = |path: &String| path.rsplit('/').next().unwrap_or_default().to_owned();
    let names: Vec<String> = collected.paths.iter().map(name).collect();
    let bytes = collected.bytes_freed;
    if args.output.json {
        out!("{}", json!({"v": 1, "paths": names, "bytes": bytes, "dryRun": args.dry_run}));
    } else if !args.output.quiet {
        if args.dry_run {
            names.iter().for_each(|name| out!("{name}"));
        }
        let verb = if args.dry_run { "would remove" } else { "removed" };
        out!("{verb} {} ({})", counted(names.len(), "path"), human_bytes(bytes));
    }
    Ok(())
}
