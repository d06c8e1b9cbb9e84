//! `narval install`: installs packages from binary caches, without Nix.

use std::path::PathBuf;
use std::sync::Arc;

use narval_install::{Added, Addition, Destination, Error, Options, Profile, Progress, Report, Wanted, install, plan};
use narval_nix::StorePath;
use serde_json::json;

use crate::args::channels::{Lookup, Meant, NameArgs};
use crate::args::client::{ClientArgs, DeltaArgs, human_bytes};
use crate::args::paths::or_elsewhere;
use crate::args::profile::ProfileArgs;
use crate::commands::profile::env;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{note, out, paths};
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::{Display, FETCH};
use crate::ui::signals;
use crate::ui::timeline::Timeline;

/// Install packages from binary caches, without Nix
///
/// Fetches the closure of each path, verifies signatures and hashes, and unpacks it into the store. Paths already in
/// the store are skipped; to resume an interrupted install, run it again.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Names of packages: ATTRIBUTE[@VERSION][^OUTPUT,…], such as git, python3Packages.numpy, nodejs@22 or git^man,doc; or store paths: in full,
    /// HASH-NAME, only the hash part, where they are installed, or symlinks to these
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    names: NameArgs,
    #[command(flatten)]
    deltas: DeltaArgs,
    /// Show what would be fetched, with sizes, without fetching it
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    profile: ProfileArgs,
    /// Only add the paths to the store: no profile has them, and 'narval gc' removes them. That is the default with a store in a folder (--store DIR) and no
    /// --profile
    #[arg(long, conflicts_with = "profile")]
    no_profile: bool,
    /// Priority of the paths in the profile: of two different files of one name, it shows that of the path with the lowest number [default: 5]
    #[arg(long, value_name = "N", conflicts_with = "no_profile")]
    priority: Option<u32>,
    /// Flush everything to disk before reporting success
    #[arg(long)]
    durable: bool,
    /// Number of cores to use [default: all that are available]
    #[arg(long, value_name = "N")]
    cores: Option<usize>,
    /// Write a timeline of fetches, decompression, hashing and writes, for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  narval install ripgrep
  narval install nodejs@22 git^man,doc
  narval install 00bgd045z0d4icpbc2yyz4gx48ak44la
  narval run …-hello-2.12

  From a cache of your own:
  narval install --from https://cache.example.org \\
    --trusted-public-key example-1:… /nix/store/…-hello-2.12

  Show what would be fetched from a folder into another store:
  narval install --dry-run --from file:///media/cache --store ./root \\
    …-hello-2.12

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not in any cache,
4 verification failed, 5 network, 6 no space, 7 locked, 130 interrupted.";

/// Runs `narval install`.
///
/// # Errors
/// A path cannot be installed.
pub fn run(args: Args) -> Result<(), Failure> {
    let timeline = args.trace.as_ref().map(|path| {
        Timeline::create(path).map_err(|error| Failure::of_file(&format!("--trace {}", path.display()), &error))
    });
    let timeline = timeline.transpose()?;
    args.client.output.start_log_with(timeline.as_ref());
    let destination = args.client.store.destination()?;
    let mut lookup = Lookup::new(&destination, &args.client, &args.names);
    let meant = lookup.meant(&args.paths)?;
    let wanted: Vec<Wanted> = meant.iter().map(|one| one.wanted.clone()).collect();
    let failed = |error: Error| lookup.explained(&error, &meant).unwrap_or_else(|| or_elsewhere(error, &destination));
    let (client, options) = (args.client.caches.client()?, args.client.caches.options(args.cores, args.durable)?);
    // Before anything is fetched: the location may be unusable.
    let profile = if args.no_profile { None } else { args.profile.for_store(&args.client.store)? };
    if args.priority.is_some() && profile.is_none() {
        return Err(Failure::usage("--priority is about a profile: name it with --profile DIR"));
    }
    let delta_bases = profile.as_ref().map_or_else(Vec::new, shown);
    let options = Options { deltas: args.deltas.chosen(), delta_bases, ..options };
    if args.dry_run {
        let report = plan(&destination, &options, &client, &wanted);
        let report = report.map_err(failed)?;
        show_plan(&report, args.client.output);
        return Ok(());
    }
    let progress = Arc::new(Progress::default());
    signals::interrupt_on_signal(&progress);
    let display = Display::start(&progress, args.client.output, FETCH);
    let result = install(&destination, &options, &client, &wanted, &progress);
    display.finish();
    if let (Some(timeline), Some(path)) = (timeline, &args.trace) {
        timeline.finish().map_err(|error| Failure::runtime(format!("{}: {error}", path.display())))?;
    }
    let report = result.map_err(failed)?;
    let added: Vec<Addition> = report.roots.iter().flat_map(|path| additions(path, &meant)).collect();
    let added = profile.as_ref().map(|profile| profile.add(&destination, &added, args.priority)).transpose()?;
    show_report(&report, added.as_ref(), args.client.output, &destination);
    if !args.client.output.json && !args.client.output.quiet {
        match &profile {
            Some(profile) if args.profile.profile.is_none() => env::offer(profile, destination.config())?,
            Some(_) => {}
            None => show_what_next(&report, &destination, args.client.store.store.as_deref()),
        }
    }
    Ok(())
}

/// A path, with each name that it was found by: two releases may have one path.
fn additions(path: &StorePath, meant: &[Meant]) -> impl Iterator<Item = Addition> {
    let found = meant.iter().filter(|one| one.wanted.is(path));
    found.map(|one| Addition { path: path.clone(), origin: one.origin.clone() })
}

/// The paths of a profile's current generation. If it cannot be read, other bases for deltas are as good, and changing it fails
/// with the reason.
fn shown(profile: &Profile) -> Vec<StorePath> {
    let paths = profile.current().and_then(|number| number.map(|number| profile.paths(number)).transpose());
    paths.ok().flatten().unwrap_or_default()
}

fn show_plan(report: &Report, output: OutputArgs) {
    let (download, unpacked) = sums(report);
    if output.json {
        let paths = report.planned.iter().map(|one| {
            let delta = one.delta_base.as_ref().map(|base| json!({"base": base.base_name()}));
            json!({"path": one.path.base_name(), "narSize": one.nar_size, "fileSize": one.file_size, "cache": one.cache,
                "delta": delta})
        });
        json::summary(
            json!({"dryRun": true, "paths": paths.collect::<Vec<_>>(), "download": download, "unpacked": unpacked}),
        );
        return;
    }
    for one in &report.planned {
        let size = one.file_size.map_or_else(|| "?".to_owned(), human_bytes);
        out!("{size:>8} → {:>8}  {}", human_bytes(one.nar_size), one.path);
    }
    out!(
        "{} to install: {} to download, {} unpacked",
        paths(report.planned.len()),
        human_bytes(download),
        human_bytes(unpacked)
    );
    let deltas = report.planned.iter().filter(|one| one.delta_base.is_some()).count();
    if deltas > 0 {
        out!("{deltas} of them as deltas, where these are smaller");
    }
}

/// What is downloaded and unpacked, in bytes.
pub(in crate::commands) fn sums(report: &Report) -> (u64, u64) {
    let download = report.planned.iter().map(|one| one.file_size.unwrap_or(one.nar_size)).sum();
    (download, report.planned.iter().map(|one| one.nar_size).sum())
}

/// Says how to use what is in no profile, and how to keep it.
fn show_what_next(report: &Report, destination: &Destination, store: Option<&str>) {
    let store = store.map(|store| format!("--store '{store}' ")).unwrap_or_default();
    let has_programs = |path: &&StorePath| destination.store().real_path(path).join("bin").is_dir();
    if let Some(path) = report.roots.iter().find(has_programs) {
        note!("this runs it: narval run {store}{}", path.base_name());
    }
    note!("'narval gc' removes what is in no profile; --profile DIR keeps it");
}

fn show_report(report: &Report, added: Option<&Added>, output: OutputArgs, destination: &Destination) {
    let replaced = added.map(|added| &*added.replaced).unwrap_or_default();
    if output.json {
        let replaced = replaced.iter().map(|(old, new)| json!({"old": old.base_name(), "new": new.base_name()}));
        json::summary(json!({
                "roots": report.roots.iter().map(|path| path.base_name()).collect::<Vec<_>>(),
                "installed": report.planned.len(), "downloaded": report.downloaded, "unpacked": report.unpacked,
                "deltas": report.deltas, "saved": report.saved, "replaced": replaced.collect::<Vec<_>>(), "generation": added.map(|added| added.generation),
                "seconds": report.elapsed.as_secs_f64(), "requests": report.requests, "connections": report.connections,
        }));
        return;
    }
    if output.quiet {
        return;
    }
    if report.planned.is_empty() {
        note!("Everything is already installed");
    } else {
        let (unpacked, downloaded) = (human_bytes(report.unpacked), human_bytes(report.downloaded));
        let seconds = report.elapsed.as_secs_f64();
        let saved = match report.deltas {
            0 => String::new(),
            _ => format!(", {} saved by deltas", human_bytes(report.saved)),
        };
        note!(
            "Installed {} ({unpacked}, {downloaded} downloaded{saved}) in {seconds:.1}s",
            paths(report.planned.len())
        );
    }
    for (old, new) in replaced {
        note!("replaced {} by {}", old.name(), new.name());
    }
    for root in &report.roots {
        out!("{}", destination.store().real_path(root).display());
    }
}
