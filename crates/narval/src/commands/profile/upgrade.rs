//! `narval upgrade`: newer versions of what a profile has.

use std::path::PathBuf;
use std::sync::Arc;

use narval_install::names::{Upgrade, Upgrades, upgrades};
use narval_install::{Error, Options, Profile, Progress, Wanted, install, plan};
use narval_nix::{PackageName, StorePath};
use serde_json::{Value, json};

use super::install::sums;
use crate::Failure;
use crate::args::client::{ClientArgs, DeltaArgs, human_bytes};
use crate::args::names::cannot_search;
use crate::ui::json;
use crate::ui::output::{note, out};
use crate::ui::progress::{Display, FETCH};
use crate::ui::signals;

/// Replace paths of a profile by newer versions
///
/// Asks the caches for versions of the same package and output, by Nix's order of versions, and installs the newest ones in one new generation of the
/// profile: 'narval rollback' brings the one before back. Of several builds of a version, it takes the one that was used last.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval upgrade --profile ~/profile --dry-run
  narval upgrade --profile ~/profile git

Exit codes: 0 done or nothing newer, 1 failed, 2 wrong usage,
3 not in the profile or in any cache, 4 verification failed, 5 network,
6 no space, 7 locked, 130 interrupted.")]
pub struct Args {
    /// Packages or names of paths of the profile [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The profile
    #[arg(long, value_name = "DIR")]
    profile: PathBuf,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    deltas: DeltaArgs,
    /// Show what would be replaced, and what would be fetched for it
    #[arg(long)]
    dry_run: bool,
}

/// Runs `narval upgrade`.
///
/// # Errors
/// The profile does not exist, no cache can be searched, or a path cannot be installed.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (output, caches) = (args.client.output, &args.client.caches);
    output.start_log();
    let destination = args.client.store.destination()?;
    let profile = Profile::at(&args.profile, destination.config().lock_timeout)?;
    let current = profile.current()?;
    let none = || Failure::usage(format!("there is no profile {}", profile.link().display()));
    let current = profile.paths(current.ok_or_else(none)?)?;
    let chosen = chosen(&args.names, &current, &profile)?;
    let (urls, client, options) = (caches.urls()?, caches.client()?, caches.options(None, false)?);
    let Upgrades { newer, cannot } = upgrades(&chosen, &urls, &client, options.check_signatures)?;
    if cannot.len() == urls.len() && !chosen.is_empty() {
        return Err(Failure::Coded(3, cannot_search(&cannot, "NAME").unwrap_or_default()));
    }
    if !cannot.is_empty() && !output.json && !output.quiet {
        note!("not searched, because they cannot be: {}", cannot.join(", "));
    }
    if newer.is_empty() {
        if output.json {
            json::summary(json!({"dryRun": args.dry_run, "upgraded": []}));
        } else if !output.quiet {
            note!("the caches have nothing newer");
        }
        return Ok(());
    }
    let wanted: Vec<Wanted> = newer.iter().map(|upgrade| Wanted::Path(upgrade.new.path.clone())).collect();
    let options = Options { deltas: args.deltas.chosen(), delta_bases: current, ..options };
    let planned = plan(&destination, &options, &client, &wanted)?;
    let (download, unpacked) = sums(&planned);
    let mut fields = json!({"dryRun": args.dry_run, "upgraded": newer.iter().map(as_json).collect::<Vec<_>>(),
        "download": download, "unpacked": unpacked});
    if !output.json && !output.quiet {
        newer.iter().for_each(|upgrade| out!("{}", shown(upgrade)));
        note!("{} to download, {} unpacked", human_bytes(download), human_bytes(unpacked));
    }
    if !args.dry_run {
        let progress = Arc::new(Progress::default());
        signals::interrupt_on_signal(&progress);
        let display = Display::start(&progress, output, FETCH);
        let installed = install(&destination, &options, &client, &wanted, &progress);
        display.finish();
        let generation = profile.add(&destination, &installed?.roots, None)?.generation;
        fields["generation"] = generation.into();
        if !output.json && !output.quiet {
            note!("generation {generation} of {}", profile.link().display());
        }
    }
    if output.json {
        json::summary(fields);
    }
    Ok(())
}

/// The paths of the profile that are to be upgraded.
fn chosen(names: &[String], paths: &[StorePath], profile: &Profile) -> Result<Vec<StorePath>, Failure> {
    let is_named = |path: &StorePath, name: &String| {
        [path.name(), PackageName::of(path.name()).package].contains(&name.as_str()) || path.base_name() == name
    };
    if let Some(unknown) = names.iter().find(|name| !paths.iter().any(|path| is_named(path, name))) {
        let has = paths.iter().map(|path| path.name().to_owned()).collect();
        let (what, profile) = (unknown.clone(), profile.link().to_owned());
        return Err(Error::NotInProfile { what, profile, has }.into());
    }
    let is_chosen = |path: &&StorePath| names.is_empty() || names.iter().any(|name| is_named(path, name));
    Ok(paths.iter().filter(is_chosen).cloned().collect())
}

fn shown(upgrade: &Upgrade) -> String {
    let (old, new) = (PackageName::of(upgrade.old.name()), PackageName::of(upgrade.new.path.name()));
    let output = if new.output.is_empty() { String::new() } else { format!(" ({})", new.output) };
    format!("{}{output}  {} → {}  {}", new.package, old.version, new.version, human_bytes(upgrade.new.size))
}

fn as_json(upgrade: &Upgrade) -> Value {
    let Upgrade { old, new } = upgrade;
    json!({"old": old.base_name(), "new": new.path.base_name(), "cache": new.cache, "size": new.size})
}
