//! `narval verify`: checks files and signatures, and repairs on request.

use std::sync::Arc;
use std::thread::available_parallelism;

use narval_install::{Fault, Progress, repair, verify};
use serde_json::json;

use crate::Failure;
use crate::args::client::ClientArgs;
use crate::args::paths::parse_wanted;
use crate::ui::output::{counted, out};

/// Check files and signatures; repairs only with --repair
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  narval verify …-hello-2.12\n  narval verify --repair")]
pub struct Args {
    /// Store paths: in full, HASH-NAME, or only the hash part [default: the whole store]
    #[arg(value_name = "PATH")]
    paths: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// Fetch damaged paths again and replace them
    #[arg(long)]
    repair: bool,
}

/// Runs `narval verify`.
///
/// # Errors
/// Exit code 4 if there are faults that were not repaired.
pub fn run(args: Args) -> Result<(), Failure> {
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
            Fault::Missing => "its files are missing",
            Fault::Untrusted => "it has no trusted signature",
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
        let checked = counted(paths.len(), "path");
        out!("{checked} checked, {} faulty, {} repaired", faulty.len(), faulty.len() - left);
    }
    if left == 0 {
        Ok(())
    } else {
        Err(Failure::Coded(
            4,
            format!(
                "{} {}; 'narval verify --repair --from URL' replaces damaged files",
                counted(left, "path"),
                if left == 1 { "is faulty" } else { "are faulty" }
            ),
        ))
    }
}
