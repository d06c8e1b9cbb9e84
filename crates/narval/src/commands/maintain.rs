//! `narval gc`, `rollback`, `profiles` and `verify`: keeping a store in order.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;

use narval_install::{Fault, Profile, Progress, repair, verify};
use narval_store::{Access, Daemon, GarbageCollector, GarbageOptions, GarbageSettings, StoreConfig};
use rustix::fs::{Access as Permission, access};
use serde_json::json;

use crate::Failure;
use crate::args::client::{ClientArgs, LockArgs, OutputArgs, StoreArgs, human_bytes};
use crate::commands::install::parse_wanted;
use crate::ui::output::out;

/// Remove store paths that no profile and no other root needs
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  narval gc --dry-run\n  narval gc --keep 3")]
pub struct GcArgs {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
    /// First remove the old generations of every profile, except the newest N and the current one
    #[arg(long, value_name = "N")]
    keep: Option<usize>,
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

/// Switch a profile to its previous generation, or to a given one
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  narval rollback --profile ~/.local/state/profile\n  narval rollback --profile ~/.local/state/profile --to 4"
)]
pub struct RollbackArgs {
    /// Profile to switch
    #[arg(long, value_name = "DIR")]
    profile: PathBuf,
    /// Number of the generation [default: the one before the current]
    #[arg(long, value_name = "N")]
    to: Option<u64>,
    #[command(flatten)]
    lock: LockArgs,
}

/// List the profiles of a store, their generations and paths
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  narval profiles --json")]
pub struct ProfilesArgs {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Check files and signatures; repairs only with --repair
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  narval verify …-hello-2.12\n  narval verify --repair")]
pub struct VerifyArgs {
    /// Store paths: in full, HASH-NAME, or the hash part alone [default: the whole store]
    #[arg(value_name = "PATH")]
    paths: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// Fetch damaged paths again and replace them
    #[arg(long)]
    repair: bool,
}

/// Runs `narval gc`.
///
/// # Errors
/// When the store can't be written.
pub fn gc(args: GcArgs) -> Result<(), Failure> {
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
        out!("{verb} {} paths ({}); {} stay", garbage.paths.len(), human_bytes(garbage.bytes_freed), garbage.kept);
    }
    Ok(())
}

/// As Nix chooses for `auto` (`store-api.cc`): whoever may write to the state directory does it directly, also beside a daemon.
fn is_collected_by_daemon(config: &StoreConfig) -> bool {
    let may_write = || access(&config.state_dir, Permission::READ_OK | Permission::WRITE_OK).is_ok();
    match config.access {
        Access::Daemon => true,
        Access::Auto => !may_write() && Daemon::new(&config.daemon_socket, config.store_dir.clone()).hello().is_ok(),
        Access::Database => false,
    }
}

/// A store that is asked for through its daemon is collected by its daemon: where its files are is not for us to say.
fn gc_by_daemon(daemon: &Daemon, args: &GcArgs) -> Result<(), Failure> {
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
        out!("{verb} {} paths ({})", names.len(), human_bytes(bytes));
    }
    Ok(())
}

/// Runs `narval rollback`.
///
/// # Errors
/// When there is no such generation.
pub fn rollback(args: RollbackArgs) -> Result<(), Failure> {
    let profile = Profile::at(&args.profile, args.lock.timeout())?;
    let number = profile.roll_back(args.to)?;
    out!("{} shows generation {number}", profile.link().display());
    Ok(())
}

/// Runs `narval profiles`.
///
/// # Errors
/// When a profile can't be read.
pub fn profiles(args: ProfilesArgs) -> Result<(), Failure> {
    for profile in Profile::all(&args.store.config()?)? {
        let current = profile.current()?;
        for number in profile.generations()? {
            let (paths, shown) = (profile.paths(number)?, Some(number) == current);
            let names: Vec<_> = paths.iter().map(|path| path.base_name()).collect();
            if args.output.json {
                out!(
                    "{}",
                    json!({"v": 1, "profile": profile.link(), "generation": number, "current": shown, "paths": names})
                );
            } else {
                out!(
                    "{} {number}{} {}",
                    profile.link().display(),
                    if shown { " (current)" } else { "" },
                    names.join(" ")
                );
            }
        }
    }
    Ok(())
}

/// Runs `narval verify`.
///
/// # Errors
/// Exit code 4 when something is wrong that was not repaired.
pub fn check(args: VerifyArgs) -> Result<(), Failure> {
    args.client.output.start_log();
    let destination = args.client.store.destination()?;
    let paths = if args.paths.is_empty() {
        destination.store().all_valid_paths().map_err(Failure::runtime)?
    } else {
        let found = parse_wanted(&args.paths, destination.store_dir())?
            .iter()
            .map(|one| destination.find(one))
            .collect::<Result<Vec<_>, _>>()?;
        found.into_iter().flatten().collect()
    };
    let keys = if args.client.caches.no_check_sigs { None } else { Some(args.client.caches.keys()?) };
    let cores = available_parallelism().map_or(1, std::num::NonZero::get);
    let faulty = verify(&destination, &paths, keys.as_ref(), cores)?;
    for one in &faulty {
        let what = match one.fault {
            Fault::Contents => "its files have been changed",
            Fault::Missing => "its files are gone",
            Fault::Untrusted => "no trusted key signed it",
        };
        if args.client.output.json {
            out!("{}", json!({"v": 1, "path": one.info.path.base_name(), "fault": what}));
        } else {
            out!("{}: {what}", one.info.path);
        }
    }
    let broken: Vec<_> =
        faulty.iter().filter(|one| one.fault != Fault::Untrusted).map(|one| one.info.clone()).collect();
    let mut left = faulty.len();
    if args.repair && !broken.is_empty() {
        let (client, options) = (args.client.caches.client()?, args.client.caches.options(None, true)?);
        repair(&destination, &options, &client, &broken, &Arc::new(Progress::default()))?;
        left -= broken.len();
    }
    if !args.client.output.quiet && !args.client.output.json {
        out!("{} paths checked, {} wrong, {} repaired", paths.len(), faulty.len(), faulty.len() - left);
    }
    if left == 0 {
        Ok(())
    } else {
        Err(Failure::Coded(
            4,
            format!(
                "{left} paths are not as they should be; 'narval verify --repair --from URL' replaces broken files"
            ),
        ))
    }
}
