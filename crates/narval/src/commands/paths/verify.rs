//! `narval verify`: checks files and signatures, and repairs on request.

use std::sync::Arc;
use std::thread::available_parallelism;

use narval_install::{Destination, Fault, Faulty, Progress, repair, verify};
use narval_nix::StorePath;
use narval_store::LocalStoreError;
use serde_json::json;

use crate::args::client::{ClientArgs, other_store_with};
use crate::args::paths::{named_by, parse_wanted};
use crate::ui::failure::Failure;
use crate::ui::output::{counted, out};
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::{Display, FETCH, watched};
use crate::ui::{json, signals};

/// Check files and signatures; repairs only with --repair
///
/// It can be interrupted: the faults so far are printed, what was repaired stays so, and the same command starts from the beginning.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  narval verify …-hello-2.12\n  narval verify --repair")]
pub struct Args {
    /// Store paths: in full, HASH-NAME, only the hash part, where they are installed, or symlinks to these [default: the whole store]
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
/// Exit code 3 if a path is not in the store, 4 if there are faults that were not repaired.
pub fn run(args: Args) -> Result<(), Failure> {
    args.client.output.start_log();
    let destination = args.client.store.destination()?;
    let paths = chosen(&args.paths, &destination)?;
    let keys = if args.client.caches.no_check_sigs { None } else { Some(args.client.caches.keys()?) };
    let cores = available_parallelism().map_or(1, std::num::NonZero::get);
    let (faulty, ended) = watched(args.client.output, ("nothing was changed", "starts from the beginning"), |work| {
        Ok(verify(&destination, &paths, keys.as_ref(), cores, work)?)
    })?;
    for Faulty { info, fault } in &faulty {
        let what = match fault {
            Fault::Contents => "its files have been changed",
            Fault::Missing => "its files are missing",
            Fault::NotANar(reason) | Fault::Unreadable(reason) => reason,
            Fault::Untrusted => "it has no trusted signature",
        };
        if args.client.output.json {
            json::event("path", json!({"path": info.path.base_name(), "fault": what}));
        } else {
            out!("{}: {what}", info.path);
        }
    }
    ended?;
    let (repairable, mut left): (Vec<_>, Vec<_>) = faulty.iter().partition(|one| one.fault.is_repairable());
    let mut repaired = 0;
    if args.repair && !repairable.is_empty() {
        let (client, options) = (args.client.caches.client()?, args.client.caches.options(None, true)?);
        let broken: Vec<_> = repairable.iter().map(|one| one.info.clone()).collect();
        let (progress, output) = (Arc::new(Progress::default()), args.client.output);
        signals::interrupt_on_signal(&progress);
        let display = Display::start(&progress, OutputArgs { quiet: output.quiet || output.json, json: false }, FETCH);
        let result = repair(&destination, &options, &client, &broken, &progress);
        display.finish();
        result?;
        repaired = broken.len();
    } else {
        left.extend(repairable);
    }
    if !args.client.output.quiet && !args.client.output.json {
        let checked = counted(paths.len(), "path");
        out!("{checked} checked, {} faulty, {repaired} repaired", faulty.len());
    }
    if !left.is_empty() {
        return Err(Failure::Coded(4, summary(&left)));
    }
    if args.client.output.json {
        json::summary(json!({"checked": paths.len(), "faulty": faulty.len(), "repaired": repaired}));
    }
    Ok(())
}

/// The paths to verify.
fn chosen(texts: &[String], destination: &Destination) -> Result<Vec<StorePath>, Failure> {
    if !destination.exists() {
        let path = destination.config().real_store_dir.clone();
        return Err(narval_install::Error::from(LocalStoreError::NoStore { path }).into());
    }
    if texts.is_empty() {
        return destination.store().all_valid_paths().map_err(Failure::runtime);
    }
    let (mut paths, mut absent, mut other) = (Vec::new(), Vec::new(), None);
    for wanted in parse_wanted(texts, destination.config())? {
        match destination.find(&wanted)? {
            Some(path) => paths.push(path),
            None => {
                other = other.or_else(|| other_store_with(destination.config(), &wanted));
                absent.push(wanted.to_string());
            }
        }
    }
    if absent.is_empty() {
        Ok(paths)
    } else {
        let hint = other.map(|other| format!("; {}", named_by(&other))).unwrap_or_default();
        Err(Failure::Coded(3, format!("not in the store: {}{hint}", absent.join(", "))))
    }
}

/// The kinds of faults, in the order in which they are counted.
const KINDS: [&str; 5] = [
    "with changed files",
    "without files",
    "that no NAR can hold",
    "that cannot be read",
    "without a trusted signature",
];

const fn kind_of(fault: &Fault) -> &'static str {
    let [changed, missing, not_a_nar, unreadable, untrusted] = KINDS;
    match fault {
        Fault::Contents => changed,
        Fault::Missing => missing,
        Fault::NotANar(_) => not_a_nar,
        Fault::Unreadable(_) => unreadable,
        Fault::Untrusted => untrusted,
    }
}

/// How many paths have which fault, and what to do about it.
fn summary(faulty: &[&Faulty]) -> String {
    let counts = KINDS.iter().filter_map(|kind| {
        let count = faulty.iter().filter(|one| kind_of(&one.fault) == *kind).count();
        (count > 0).then(|| format!("{count} {kind}"))
    });
    let mut text = format!(
        "{} {}: {}",
        counted(faulty.len(), "path"),
        if faulty.len() == 1 { "is faulty" } else { "are faulty" },
        counts.collect::<Vec<_>>().join(", ")
    );
    if faulty.iter().any(|one| one.fault.is_repairable()) {
        text.push_str("; 'narval verify --repair --from URL' replaces damaged files");
    }
    if faulty.iter().any(|one| one.fault == Fault::Untrusted) {
        text.push_str("; '--trusted-public-key KEY' names the key of the cache that they are from");
    }
    text
}
