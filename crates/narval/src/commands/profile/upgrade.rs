//! `narval upgrade`: newer versions of what a profile has.

use std::collections::BTreeSet;
use std::sync::Arc;

use narval_install::names::{Upgrades, upgrades};
use narval_install::{
    Addition, Chosen, Destination, Element, Error, Manifest, Options, Origin, Progress, Wanted, install, plan,
};
use narval_nix::{PackageName, StorePath};
use serde_json::{Value, json};

use super::install::sums;
use crate::args::channels::{Lookup, Meant, NameArgs};
use crate::args::client::{ClientArgs, DeltaArgs, human_bytes};
use crate::args::names::cannot_search;
use crate::args::profile::ProfileArgs;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{note, out};
use crate::ui::progress::{Display, FETCH};
use crate::ui::signals;

/// Replace what a profile has by newer versions
///
/// Asks where each of them came from: what was installed by its name is looked up in its channel ('narval update' fetches a newer release of that), a release
/// (@api) in its cache, where it moves to the newest revision and never back; for
/// other paths the caches are asked for versions of the same package and output, by Nix's order of versions. Shows old and new versions and what has to be
/// fetched, and installs all of them in one new generation of the profile: 'narval rollback' brings the one before back. Of several builds of a version that
/// caches have, it takes the one that was used last.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval update && narval upgrade --dry-run
  narval upgrade git
  narval upgrade --profile ~/p

Exit codes: 0 done or nothing newer, 1 failed, 2 wrong usage,
3 not in the profile or in any cache, 4 verification failed, 5 network,
6 no space, 7 locked, 130 interrupted.")]
pub struct Args {
    /// Names that 'narval list' has, or packages or names of paths [default: all]
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    channels: NameArgs,
    #[command(flatten)]
    deltas: DeltaArgs,
    /// Show what would be replaced, and what would be fetched for it
    #[arg(long)]
    dry_run: bool,
}

/// A path that is replaced by another one.
struct Upgrade {
    old: StorePath,
    new: Addition,
    /// The cache or the channel that has it.
    source: String,
}

/// Runs `narval upgrade`.
///
/// # Errors
/// The profile does not exist, no source can be asked, or a path cannot be installed.
pub fn run(args: &Args) -> Result<(), Failure> {
    let (output, caches) = (args.client.output, &args.client.caches);
    output.start_log();
    let destination = args.client.store.destination()?;
    let profile = args.profile.open(destination.config().lock_timeout)?;
    let (_, manifest) = profile.existing()?;
    let chosen = match args.names.as_slice() {
        [] => manifest.elements().map(|(name, element)| (name.to_owned(), element.paths.clone())).collect(),
        names => profile.chosen(&manifest, &destination, names)?,
    };
    let mut all = of_channels(args, &destination, &manifest, &chosen)?;
    all.extend(of_caches(args, &manifest, &chosen)?);
    if all.is_empty() {
        if output.json {
            json::summary(json!({"dryRun": args.dry_run, "upgraded": []}));
        } else if !output.quiet {
            note!("nothing newer is there");
        }
        return Ok(());
    }
    let wanted: Vec<Wanted> = all.iter().map(|upgrade| Wanted::Path(upgrade.new.path.clone())).collect();
    let delta_bases = manifest.paths().into_iter().collect();
    let options = Options { deltas: args.deltas.chosen(), delta_bases, ..caches.options(None, false)? };
    let client = caches.client()?;
    let planned = plan(&destination, &options, &client, &wanted)?;
    let (download, unpacked) = sums(&planned);
    let size = |upgrade: &Upgrade| {
        let planned = planned.planned.iter().find(|one| one.path == upgrade.new.path);
        planned.map_or(0, |one| one.file_size.unwrap_or(one.nar_size))
    };
    let upgraded: Vec<_> = all.iter().map(|upgrade| as_json(upgrade, size(upgrade))).collect();
    let mut fields = json!({"dryRun": args.dry_run, "upgraded": upgraded,
        "download": download, "unpacked": unpacked});
    if !output.json && !output.quiet {
        all.iter().for_each(|upgrade| out!("{}", shown(upgrade, size(upgrade))));
        note!("{} to download, {} unpacked", human_bytes(download), human_bytes(unpacked));
    }
    if !args.dry_run {
        let progress = Arc::new(Progress::default());
        signals::interrupt_on_signal(&progress);
        let display = Display::start(&progress, output, FETCH);
        let installed = install(&destination, &options, &client, &wanted, &progress);
        display.finish();
        installed?;
        let additions: Vec<Addition> = all.into_iter().map(|upgrade| upgrade.new).collect();
        let generation = profile.add(&destination, &additions, None)?.generation;
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

/// What the channels have now in place of elements that came from them. One that cannot be looked up again stays as it is, and that is said, unless it was
/// named.
fn of_channels(
    args: &Args,
    destination: &Destination,
    manifest: &Manifest,
    chosen: &Chosen,
) -> Result<Vec<Upgrade>, Failure> {
    let caches: Vec<String> = args.client.caches.urls()?.iter().map(ToString::to_string).collect();
    let mut all = Vec::new();
    for (name, element) in manifest.elements() {
        let Some((origin, selector)) = element.origin.as_ref().zip(element.selector()) else { continue };
        if !chosen.contains_key(name) {
            continue;
        }
        if element.is_released() {
            match of_release(args, destination, element, origin) {
                Ok(upgrade) => all.extend(upgrade),
                Err(failure) if args.names.is_empty() => note!("{name} stays as it is: {failure}"),
                Err(failure) => return Err(failure),
            }
            continue;
        }
        let mut names = args.channels.clone();
        // A cache that has published names is asked without being a channel.
        if names.channel.is_empty() && !caches.contains(&origin.channel) {
            names.channel = vec![origin.channel.clone()];
        }
        names.system = names.system.or_else(|| Some(origin.system.clone()).filter(|system| !system.is_empty()));
        let mut lookup = Lookup::new(destination, &args.client, &names);
        lookup.is_silent = true;
        lookup.distinction.clone_from(&origin.distinction);
        let chosen_before = origin.choice.as_ref().and_then(|path| path.split('-').next());
        let again = lookup.again(&selector);
        // Another release has other paths, of which none was chosen yet.
        let again = match (again, chosen_before) {
            (Err(_), Some(hash)) => lookup.again(&format!("{selector}={hash}")),
            (again, _) => again,
        };
        match again {
            Ok(meant) => all.extend(meant.into_iter().filter_map(|one| upgrade_of(element, one))),
            Err(failure) if args.names.is_empty() => note!("{name} stays as it is: {failure}"),
            Err(failure) => return Err(failure),
        }
    }
    Ok(all)
}

/// The newest release of the same name, of the same cache. It is never an older one, whatever this machine has forgotten.
fn of_release(
    args: &Args,
    destination: &Destination,
    element: &Element,
    origin: &Origin,
) -> Result<Option<Upgrade>, Failure> {
    let (mut client, mut names) = (args.client.clone(), args.channels.clone());
    let is_used = client.caches.urls()?.iter().any(|url| url.to_string() == origin.channel);
    if !is_used {
        return Err(Failure::usage(format!("{} is not among the caches: name it with --from", origin.channel)));
    }
    // Another cache may have releases of this name, too.
    client.caches.from = vec![origin.channel.clone()];
    names.system = names.system.or_else(|| Some(origin.system.clone()).filter(|system| !system.is_empty()));
    let mut lookup = Lookup::new(destination, &client, &names);
    lookup.is_silent = true;
    let newest = lookup.released(&origin.name)?;
    let revision = |release: &str| release.rsplit('@').next().and_then(|revision| revision.parse::<u64>().ok());
    if let Some((found, _)) = &newest.origin
        && revision(&found.release) < revision(&origin.release)
        && !client.caches.allow_downgrade
    {
        return Err(Error::WrongPath(format!(
            "{} has {}, and the profile {}: --allow-downgrade goes back",
            origin.channel, found.release, origin.release
        ))
        .into());
    }
    Ok(upgrade_of(element, newest))
}

/// How an element changes by what its name means now.
fn upgrade_of(element: &Element, meant: Meant) -> Option<Upgrade> {
    let Wanted::Path(path) = meant.wanted else { return None };
    let (origin, output) = meant.origin?;
    if element.paths.contains(&path) {
        return None;
    }
    let old = element.replaced_by(&path, &output)?.clone();
    let source = origin.channel.clone();
    Some(Upgrade { old, new: Addition { path, origin: Some((origin, output)) }, source })
}

/// Newer versions that caches have of paths that came from no channel.
fn of_caches(args: &Args, manifest: &Manifest, chosen: &Chosen) -> Result<Vec<Upgrade>, Failure> {
    let caches = &args.client.caches;
    let from_nowhere: BTreeSet<&str> =
        manifest.elements().filter(|(_, element)| element.origin.is_none()).map(|(name, _)| name).collect();
    let of_paths = chosen.iter().filter(|(name, _)| from_nowhere.contains(&***name));
    let paths: Vec<StorePath> = of_paths.flat_map(|(_, paths)| paths.iter().cloned()).collect();
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let (urls, client, options) = (caches.urls()?, caches.client()?, caches.options(None, false)?);
    let Upgrades { newer, cannot } = upgrades(&paths, &urls, &client, options.check_signatures)?;
    if cannot.len() == urls.len() && chosen.keys().all(|name| from_nowhere.contains(&**name)) {
        return Err(Failure::Coded(3, cannot_search(&cannot, "NAME").unwrap_or_default()));
    }
    if !cannot.is_empty() && !args.client.output.json && !args.client.output.quiet {
        note!("not searched, because they cannot be: {}", cannot.join(", "));
    }
    let upgrade =
        |one: narval_install::names::Upgrade| Upgrade { old: one.old, new: one.new.path.into(), source: one.new.cache };
    Ok(newer.into_iter().map(upgrade).collect())
}

fn shown(upgrade: &Upgrade, size: u64) -> String {
    let (old, new) = (PackageName::of(upgrade.old.name()), PackageName::of(upgrade.new.path.name()));
    let output = if new.output.is_empty() { String::new() } else { format!(" ({})", new.output) };
    let rebuilt = if old.version == new.version { " (another build)" } else { "" };
    format!(
        "{}{output}  {} → {}{rebuilt}  {}  {}",
        new.package,
        old.version,
        new.version,
        human_bytes(size),
        upgrade.source
    )
}

fn as_json(upgrade: &Upgrade, size: u64) -> Value {
    let Upgrade { old, new, source } = upgrade;
    json!({"old": old.base_name(), "new": new.path.base_name(), "cache": source, "size": size})
}
