//! `narval cache sign`: signs paths that are in a cache already.

use std::ops::ControlFlow;
use std::path::PathBuf;

use serde_json::json;

use crate::args::data::{WritableCacheArgs, administrator};
use crate::args::paths::hash_part;
use crate::args::secret_key::read_secret_key;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{counted, note, paths};
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::watched;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval cache sign --all --dry-run
  narval cache sign --all
  narval cache sign --sign-key new.sec /nix/store/…-glibc-2.40")]
pub(super) struct SignArgs {
    #[command(flatten)]
    cache: WritableCacheArgs,
    /// Store paths: in full, HASH-NAME, only the hash part, where they are installed, or symlinks to these
    #[arg(value_name = "PATH", required_unless_present = "all")]
    paths: Vec<String>,
    /// All paths of the cache
    #[arg(long, conflicts_with = "paths")]
    all: bool,
    /// Secret key to sign with, repeatable [default: those of the cache in the configuration file]
    #[arg(long, value_name = "FILE")]
    sign_key: Vec<PathBuf>,
    /// Show how many paths lack a signature, without signing them
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn sign(args: &SignArgs) -> Result<(), Failure> {
    let keys = match args.sign_key.as_slice() {
        [] => args.cache.data.sign_keys(&args.cache.cache)?,
        files => files.iter().map(|file| read_secret_key(file)).collect::<Result<_, _>>()?,
    };
    if keys.is_empty() {
        return Err(Failure::usage(format!(
            "the cache '{}' has no key: give one with --sign-key, or set 'sign-keys' in the configuration file ('narval key generate' makes one)",
            args.cache.cache
        )));
    }
    let names: Vec<&str> = keys.iter().map(narval_nix::SecretKey::name).collect();
    let names = names.join(", ");
    let (data, cache) = args.cache.open()?;
    cache.set_sign_keys(keys);
    let parts = match args.all {
        true => None,
        false => {
            let settings = cache.settings();
            let parts: Vec<_> =
                args.paths.iter().map(|path| hash_part(path, &settings.store_dir)).collect::<Result<_, _>>()?;
            for (path, missing) in args.paths.iter().zip(&parts) {
                if !cache.missing(&[*missing], None).map_err(Failure::runtime)?.is_empty() {
                    return Err(Failure::usage(format!("'{path}' is not in the cache '{}'", cache.name())));
                }
            }
            Some(parts)
        }
    };
    let total = match &parts {
        Some(parts) => parts.len() as u64,
        None => cache.usage().map_err(Failure::runtime)?.paths,
    };
    let output = OutputArgs { quiet: false, json: args.json };
    let (report, ended) = watched(output, ("what was signed stays so", "continues"), |work| {
        work.begin("signing", "paths", total, 0);
        let mut counted = 0;
        let report = cache.sign(parts.as_deref(), args.dry_run, &administrator(), |report| {
            work.count((report.paths - std::mem::replace(&mut counted, report.paths)) as u64);
            if work.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        report.map_err(Failure::runtime)
    })?;
    data.wait_until_noticed();
    ended?;
    if args.json {
        let fields = json!({
            "paths": report.paths, "unsigned": report.unsigned, "signed": report.signed, "failed": report.failed,
            "dryRun": args.dry_run,
        });
        // After what could not be signed, the error is the end.
        if report.failed == 0 { json::summary(fields) } else { json::event("signed", fields) }
    } else if args.dry_run {
        note!("{} of {} not signed by {names}", report.unsigned, counted(report.paths, "path"));
    } else {
        note!(
            "signed {} of {} with {names}; the others have the signature",
            report.signed,
            counted(report.paths, "path")
        );
    }
    match report.failed {
        0 => Ok(()),
        failed => Err(Failure::runtime(format!("{} could not be signed: see the messages above", paths(failed)))),
    }
}
