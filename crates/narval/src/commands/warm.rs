//! `narval warm`: compresses NARs in advance.

use std::num::NonZeroUsize;

use narval_nix::StorePath;
use narval_serve::{Config, Face, Service, Warmed, warm};
use narval_store::Store;

use crate::args::nar_cache::NarCacheArgs;
use crate::ui::log;
use crate::ui::output::counted;
use crate::{Failure, server};

/// Compress NARs for `narval serve` in advance
///
/// Fills the folder of compressed NARs that `narval serve` uses. The server may be running.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval warm /nix/store/…-firefox-140.0
  narval warm --all")]
pub struct Args {
    /// Store paths; their closures are compressed
    #[arg(value_name = "PATH", required_unless_present = "all")]
    paths: Vec<String>,
    /// Every valid path of the store
    #[arg(long, conflicts_with = "paths")]
    all: bool,
    /// Store, as for `narval serve`
    #[arg(long, value_name = "URI")]
    store: Option<String>,
    /// Number of paths compressed at once [default: number of processors]
    #[arg(long, short, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    #[command(flatten)]
    nar_cache: NarCacheArgs,
}

/// Runs `narval warm`.
///
/// # Errors
/// An invalid path, an unusable cache, or paths that could not be compressed.
pub fn run(args: Args) -> Result<(), Failure> {
    log::start(None)?;
    let store = server::open_store(args.store.as_deref())?;
    let paths =
        if args.all { store.all_valid_paths().map_err(Failure::runtime)? } else { closure(&store, &args.paths)? };
    let nar_cache = args.nar_cache.config();
    if nar_cache.is_none() {
        return Err(Failure::usage("there is no folder for compressed NARs: give --nar-cache DIR"));
    }
    let service = Service::new(Config { nar_cache, ..Config::new(Face::Narval) }, store).map_err(Failure::usage)?;
    let processors = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let (mut made, mut present, mut failed) = (0, 0, 0);
    warm(&service, &paths, args.jobs.unwrap_or(processors).get(), |path, warmed| match warmed {
        Warmed::Made => made += 1,
        Warmed::Present => present += 1,
        Warmed::Failed(reason) => {
            failed += 1;
            tracing::error!("{path}: {reason}");
        }
    });
    tracing::info!("{made} compressed, {present} already present");
    if failed > 0 {
        Err(Failure::runtime(format!("cannot compress {}: see above", counted(failed, "path"))))
    } else {
        Ok(())
    }
}

/// The closure of the paths.
fn closure(store: &Store, roots: &[String]) -> Result<Vec<StorePath>, Failure> {
    let parse = |root: &String| {
        let parsed = store.store_dir().parse(root.trim_end_matches('/'));
        parsed.map_err(|error| Failure::usage(format!("'{root}' is not a store path: {error}")))
    };
    let roots: Vec<StorePath> = roots.iter().map(parse).collect::<Result<_, _>>()?;
    let (valid, invalid) = store.closure(roots).map_err(Failure::runtime)?;
    match invalid.first() {
        Some(path) => Err(Failure::usage(format!("'{path}' is not a valid path of this store"))),
        None => Ok(valid.into_iter().map(|info| info.path).collect()),
    }
}
