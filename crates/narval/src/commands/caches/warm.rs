//! `narval warm`: compresses NARs and makes their deltas in advance.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use narval_codec::delta::delta_fits;
use narval_install::{DeltaBases, Profile, Wanted};
use narval_nix::{PathInfo, StorePath};
use narval_serve::{Config, DeltaMode, Dialect, NarCacheConfig, Service, Warmed, WarmedDelta, warm, warm_delta};
use narval_store::Store;

use super::warm_near::{self, ThroughArgs};
use crate::args::client::human_bytes;
use crate::args::paths::parse_wanted;
use crate::config::{Options, Warming};
use crate::server;
use crate::ui::failure::Failure;
use crate::ui::log;
use crate::ui::output::counted;
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::watched;

const OUTPUT: OutputArgs = OutputArgs { quiet: false, json: false };

/// Compress NARs in advance, or have a near cache fetch them
///
/// Fills the folder of compressed NARs that `narval serve` uses. The server may be running. With --deltas-from, makes the
/// deltas with which clients upgrade from the previous generation of a profile to the current one. It can be interrupted: the same command continues.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval warm /nix/store/…-firefox-140.0
  narval warm --all
  narval warm --deltas-from /nix/var/nix/profiles/system

  What will be needed, at night, through a near cache:
  narval warm --through http://127.0.0.1:5037 --at 02:00-05:00 @web
  narval warm --through http://127.0.0.1:5037 --once firefox git")]
pub struct Args {
    /// Store paths, compressed with their closures
    #[arg(value_name = "PATH", required_unless_present_any = ["all", "deltas_from"])]
    paths: Vec<String>,
    /// Every valid path of the store
    #[arg(long, conflicts_with = "paths")]
    all: bool,
    /// Make the deltas from the previous to the current generation of this profile
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["paths", "all"])]
    deltas_from: Option<PathBuf>,
    /// Store, as for `narval serve`
    #[arg(long, value_name = "URI")]
    store: Option<String>,
    /// Number of paths compressed at once [default: number of processors]
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    #[command(flatten)]
    settings: Options<Warming>,
    #[command(flatten, next_help_heading = "Near cache")]
    through: ThroughArgs,
}

/// Runs `narval warm`.
///
/// # Errors
/// An invalid path, an unusable cache, or paths that could not be compressed.
pub fn run(args: Args) -> Result<(), Failure> {
    log::start(None)?;
    if let Some(through) = &args.through.through {
        return warm_near::run(&args.through, through, &args.paths);
    }
    let store = server::open_store(args.store.as_deref())?;
    let settings = args.settings.over(None).map_err(Failure::usage)?.settings;
    let nar_cache = settings.nar_cache.config(DeltaMode::On);
    if let Some(profile) = &args.deltas_from {
        return warm_deltas(profile, store, nar_cache);
    }
    let paths =
        if args.all { store.all_valid_paths().map_err(Failure::runtime)? } else { closure(&store, &args.paths)? };
    if nar_cache.is_none() {
        return Err(Failure::usage("there is no folder for compressed NARs: give --nar-cache DIR"));
    }
    let infos = store.path_infos(&paths).map_err(Failure::runtime)?;
    let mut absent = paths.iter().zip(&infos).filter(|(_, info)| info.is_none());
    if let Some((path, _)) = absent.next() {
        return Err(Failure::usage(format!("'{path}' is not a valid path of this store")));
    }
    let paths: Vec<PathInfo> = infos.into_iter().flatten().collect();
    let service = Service::new(Config { nar_cache, ..Config::new(Dialect::Narval) }, store).map_err(Failure::usage)?;
    let processors = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let (mut made, mut present, mut failed) = (0, 0, 0);
    let ((), ended) = watched(OUTPUT, ("what was compressed is kept", "continues"), |work| {
        warm(&service, &paths, args.jobs.unwrap_or(processors).get(), work, |path, warmed| match warmed {
            Warmed::Made => made += 1,
            Warmed::Present => present += 1,
            Warmed::Failed(reason) => {
                failed += 1;
                tracing::error!("{path}: {reason}");
            }
        });
        Ok(())
    })?;
    tracing::info!("{made} compressed, {present} already present");
    ended?;
    if failed > 0 {
        Err(Failure::runtime(format!("cannot compress {}: see above", counted(failed, "path"))))
    } else {
        Ok(())
    }
}

/// Makes the deltas from the previous generation of a profile to the current one.
fn warm_deltas(profile: &Path, store: Store, cache: Option<NarCacheConfig>) -> Result<(), Failure> {
    let cache = cache.ok_or_else(|| Failure::usage("there is no folder for deltas: give --nar-cache DIR"))?;
    let (before, after) = generations(profile, &store)?;
    let closure = |paths| store.closure(paths).map_err(Failure::runtime).map(|(valid, _)| valid);
    let (old, new) = (closure(before)?, closure(after)?);
    let there: BTreeSet<_> = old.iter().map(|info| &info.path).collect();
    let bases = DeltaBases::of(old.iter().map(|info| info.path.clone()).collect());
    let mut pairs = Vec::new();
    for info in new.iter().filter(|info| !there.contains(&info.path)) {
        let fits = |base: &PathInfo| delta_fits(base.nar_size, info.nar_size) && base.nar_hash != info.nar_hash;
        pairs.extend(bases.best(&info.path, &store, fits).map_err(Failure::runtime)?.map(|base| (base, info)));
    }
    let nar_cache = Some(cache);
    let service = Service::new(Config { nar_cache, ..Config::new(Dialect::Narval) }, store).map_err(Failure::usage)?;
    let (mut made, mut present, mut large, mut failed) = (0, 0, 0, 0);
    let ((), ended) = watched(OUTPUT, ("the deltas that were made are kept", "continues"), |work| {
        work.begin("making", "deltas", pairs.len() as u64, pairs.iter().map(|(_, info)| info.nar_size).sum());
        for (base, info) in pairs {
            if work.is_stopped() {
                break;
            }
            let warmed = warm_delta(&service, &base, info);
            work.count(1);
            work.count_bytes(info.nar_size);
            match warmed {
                WarmedDelta::Made(size) => {
                    made += 1;
                    tracing::info!("{}: {} from {}", info.path, human_bytes(size), base.path.name());
                }
                WarmedDelta::Present => present += 1,
                WarmedDelta::NotWorthIt => large += 1,
                WarmedDelta::Failed(reason) => {
                    failed += 1;
                    tracing::error!("{reason}");
                }
            }
        }
        Ok(())
    })?;
    tracing::info!("{made} deltas made, {present} already present, {large} not smaller than the compressed NAR");
    ended?;
    if failed > 0 { Err(Failure::runtime(format!("{failed} deltas could not be made"))) } else { Ok(()) }
}

/// The paths of the previous generation of a profile of Nix or of ours, and those of the current one.
fn generations(profile: &Path, store: &Store) -> Result<(Vec<StorePath>, Vec<StorePath>), Failure> {
    let failed = |error: std::io::Error| Failure::usage(format!("--deltas-from {}: {error}", profile.display()));
    let link = std::path::absolute(profile).map_err(failed)?;
    let current = std::fs::read_link(&link).map_err(failed)?;
    let name = link.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let number = |file: &OsStr| -> Option<u64> {
        file.to_str()?.strip_prefix(&*name)?.strip_prefix('-')?.strip_suffix("-link")?.parse().ok()
    };
    let not_a_profile = || Failure::usage(format!("--deltas-from {}: it is not a profile", profile.display()));
    let current = current.file_name().and_then(number).ok_or_else(not_a_profile)?;
    let folder = link.parent().unwrap_or(Path::new("/"));
    let names = std::fs::read_dir(folder).map_err(failed)?.filter_map(Result::ok);
    let previous = names.filter_map(|entry| number(&entry.file_name())).filter(|other| *other < current).max();
    let previous = previous.ok_or_else(|| {
        Failure::usage(format!("--deltas-from {}: there is no generation before {current}", profile.display()))
    })?;
    let paths = |number: u64| -> Result<Vec<StorePath>, Failure> {
        let generation = folder.join(format!("{name}-{number}-link"));
        let of_nix =
            std::fs::read_link(&generation).ok().and_then(|target| store.store_dir().parse(target.to_str()?).ok());
        match of_nix {
            Some(path) => Ok(vec![path]),
            None => Ok(Profile::at(&link, Duration::ZERO)?.paths(number)?),
        }
    };
    Ok((paths(previous)?, paths(current)?))
}

/// The closure of the paths.
fn closure(store: &Store, roots: &[String]) -> Result<Vec<StorePath>, Failure> {
    let find = |wanted: Wanted| {
        let found = match &wanted {
            Wanted::Path(path) => Some(path.clone()),
            Wanted::HashPart(part) => store.path_from_hash_part(part).map_err(Failure::runtime)?,
        };
        found.ok_or_else(|| Failure::usage(format!("'{wanted}' is not a valid path of this store")))
    };
    let roots = parse_wanted(roots, store.config())?.into_iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let (valid, invalid) = store.closure(roots).map_err(Failure::runtime)?;
    match invalid.first() {
        Some(path) => Err(Failure::usage(format!("'{path}' is not a valid path of this store"))),
        None => Ok(valid.into_iter().map(|info| info.path).collect()),
    }
}
