//! `narval lock`: the paths of a project's packages, on all of its systems.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use narval_cache::Wanted;
use narval_install::names::{CHANNEL_DEFAULT, Resolution, machine_system};
use narval_install::{Destination, Error};
use narval_names::Selector;
use narval_nix::release::ReleaseSystem;
use narval_nix::{NarHash, StorePath};
use serde_json::json;

use crate::args::channels::{Lookup, NameArgs};
use crate::args::client::ClientArgs;
use crate::args::releases::is_release;
use crate::config::{LockedPackage, LockedPath, Origin};
use crate::project::accept::with_caches;
use crate::project::locked::{self, Lock, Packages};
use crate::project::{Project, ProjectArgs, SYSTEMS_MAX};
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{counted, note, out};

/// Lock the packages of a project: the same paths on every machine
///
/// Reads narval.toml in this folder or above it, looks up the packages that narval.lock does not have yet, on all systems, and writes narval.lock: for each
/// the store path, the hash of its contents and the release that it comes from. 'narval shell' and 'narval run -- CMD' use exactly these paths.
///
/// narval.toml has the keys packages (names, @releases and store paths, as 'narval install' takes them), systems, channel, caches and public-keys. Caches and
/// keys that are not yours are used when you have accepted them.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which path a name means where it may mean several, of one system: git=HASH
    #[arg(value_name = "NAME=HASH")]
    choices: Vec<String>,
    /// Ask the channel for its current release, and look these names up again; without a NAME, all
    #[arg(long, value_name = "NAME", num_args = 0..)]
    upgrade: Option<Vec<String>>,
    /// Only check that narval.lock belongs to narval.toml, on all systems
    #[arg(long, conflicts_with_all = ["upgrade", "dry_run", "choices"])]
    check: bool,
    /// Show what would change, and write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    project: ProjectArgs,
    #[command(flatten)]
    names: NameArgs,
    #[command(flatten)]
    client: ClientArgs,
}

const EXAMPLES: &str = "\
Examples:
  narval lock
  narval lock --upgrade
  narval lock --upgrade nodejs@22 git
  narval lock --system aarch64-linux

narval.toml:
  packages = ['nodejs@22', 'git^out,man', '@api']
  channel = 'nixos-25.11'
  systems = ['x86_64-linux', 'aarch64-linux']

Exit codes: 0 done or nothing new, 1 failed, 2 wrong usage or file,
3 not one path or in no cache, 4 verification failed, 5 network,
6 no space, 7 locked, 130 interrupted.";

/// Runs `narval lock`.
///
/// # Errors
/// A name cannot be resolved on a system, no cache has its path, or a file is wrong.
pub fn run(args: &Args) -> Result<(), Failure> {
    let output = args.client.output;
    output.start_log();
    let project = args.project.open()?;
    let old = Lock::read(&project)?.unwrap_or_default();
    let systems = systems(args, &project, &old)?;
    if args.check {
        systems.iter().try_for_each(|system| old.of(&project, system).map(drop))?;
        if output.json {
            json::summary(json!({"project": project.folder(), "packages": old.packages.len()}));
        }
        return Ok(());
    }
    let again = Again::of(args, &project)?;
    let channel = project.file.channel.as_ref().map(|channel| channel.value.clone());
    let client = with_caches(&project, &args.client, channel.as_deref(), args.project.accept_project)?;
    let destination = client.store.destination()?;
    let mut new = Lock { channel: channel.clone(), packages: Packages::new() };
    for (at, system) in systems.iter().enumerate() {
        let mut names = NameArgs { system: Some(system.to_string()), ..args.names.clone() };
        // What caches have under a name may be for any system: they are not searched.
        match &channel {
            Some(channel) => names.channel = vec![channel.clone()],
            None if names.channel.is_empty() => names.channel = vec![CHANNEL_DEFAULT.to_owned()],
            None => {}
        }
        // The channel is asked once.
        names.names_age = names.names_age.or_else(|| (again.asks && at == 0).then_some(Duration::ZERO));
        let mut lookup = Lookup::new(&destination, &client, &names);
        lookup.is_silent = true;
        for name in project.file.packages.iter().map(|package| &package.value) {
            let key = (name.clone(), system.clone());
            let is_same_channel = old.channel == channel;
            let before = old.packages.get(&key).filter(|_| is_same_channel && !again.is(name));
            let package = match before {
                Some(before) => before.clone(),
                None => {
                    let choices = again.choices.get(name).map_or(&[][..], Vec::as_slice);
                    locked(
                        &mut lookup,
                        (&destination, client.caches.offline),
                        (name, system),
                        (choices, systems.len() == 1),
                    )?
                }
            };
            new.packages.insert(key, package);
        }
    }
    let changes = changes(&old, &new);
    let is_changed = if args.dry_run { !changes.is_empty() } else { new.write(&project)? };
    show(&changes, &new, (&project, is_changed), args);
    Ok(())
}

/// The systems of a project: those that it names, or those that its lock has and this machine's.
fn systems(args: &Args, project: &Project, old: &Lock) -> Result<BTreeSet<ReleaseSystem>, Failure> {
    let parse = |system: &String| system.parse::<ReleaseSystem>().map_err(Failure::usage);
    let given = args.names.system.as_ref().map(parse).transpose()?;
    let named: BTreeSet<_> = project.file.systems.iter().map(|system| system.value.clone()).collect();
    if !named.is_empty() {
        return match given.filter(|given| !named.contains(given)) {
            Some(given) => Err(project.says(format!("it is not for {given}: add that to 'systems'"))),
            None => Ok(named),
        };
    }
    let mut all: BTreeSet<_> = old.packages.keys().map(|(_, system)| system.clone()).collect();
    if !args.check || all.is_empty() {
        all.insert(given.map_or_else(|| parse(&machine_system()), Ok)?);
    }
    if all.len() > SYSTEMS_MAX {
        return Err(project.says(format!("a project has at most {SYSTEMS_MAX} systems")));
    }
    Ok(all)
}

/// What is looked up again, although it is locked.
struct Again {
    /// Whether the channel is asked for its current release.
    asks: bool,
    /// `None`: nothing; empty: all.
    names: Option<Vec<String>>,
    /// The paths that were chosen, as `NAME=HASH`, by the names.
    choices: BTreeMap<String, Vec<String>>,
}

impl Again {
    fn of(args: &Args, project: &Project) -> Result<Self, Failure> {
        let known = |name: &str| {
            let is_known = project.file.packages.iter().any(|package| package.value == name);
            let unknown = || Failure::Coded(3, format!("narval.toml has no '{name}' among its packages"));
            is_known.then(|| name.to_owned()).ok_or_else(unknown)
        };
        let mut choices: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for choice in &args.choices {
            let (name, _) = choice.rsplit_once('=').ok_or_else(|| {
                Failure::usage(format!(
                    "'{choice}' is no choice: give NAME=HASH; narval.toml has the names of packages"
                ))
            })?;
            choices.entry(known(name)?).or_default().push(choice.clone());
        }
        let names = args.upgrade.as_ref().map(|names| names.iter().map(|name| known(name)).collect()).transpose()?;
        Ok(Self { asks: args.upgrade.is_some(), names, choices })
    }

    fn is(&self, name: &String) -> bool {
        let is_named = self.names.as_ref().is_some_and(|names| names.is_empty() || names.contains(name));
        is_named || self.choices.contains_key(name)
    }
}

/// Looks up what a name means on a system.
fn locked(
    lookup: &mut Lookup<'_>,
    (destination, is_offline): (&Destination, bool),
    (name, system): (&String, &ReleaseSystem),
    choices: (&[String], bool),
) -> Result<LockedPackage, Failure> {
    let mut package = LockedPackage {
        origin: Origin::Default,
        name: name.clone(),
        system: system.clone(),
        release: None,
        revision: None,
        outputs: Vec::new(),
    };
    let on = |failure: Failure| match failure {
        Failure::Coded(code, message) => Failure::Coded(code, format!("{name} on {system}: {message}")),
        Failure::Usage(message) => Failure::Usage(format!("{name} on {system}: {message}")),
        Failure::Runtime(message) => Failure::Runtime(format!("{name} on {system}: {message}")),
    };
    let meant = if is_release(name) {
        vec![lookup.released(name).map_err(on)?]
    } else if let Ok(wanted) = Wanted::parse(name, destination.store_dir()) {
        vec![wanted.into()]
    } else {
        let selector = Selector::parse(name).map_err(Failure::usage)?;
        if selector.choice.is_some() {
            return Err(on(Failure::usage("a path is of one system: choose it with 'narval lock NAME=HASH'")));
        }
        let chosen = chosen(lookup, name, &selector, choices).map_err(on)?;
        lookup.again(chosen.unwrap_or(name)).map_err(on)?
    };
    for one in meant {
        let (path, nar_hash) = found(lookup, (destination, is_offline), &one.wanted).map_err(on)?;
        let (origin, output) = one.origin.unzip();
        let text = |text: String| Some(text).filter(|text| !text.is_empty());
        if let Some(origin) = origin {
            (package.release, package.revision) = (text(origin.release), text(origin.revision));
        }
        let output = output.unwrap_or_else(|| "out".to_owned());
        package.outputs.push(LockedPath { origin: Origin::Default, name: output, path, nar_hash });
    }
    Ok(package)
}

/// Of the choices for a name, the one that is among its paths on this system.
fn chosen<'a>(
    lookup: &mut Lookup<'_>,
    name: &str,
    selector: &Selector,
    (choices, is_only_system): (&'a [String], bool),
) -> Result<Option<&'a String>, Failure> {
    if choices.is_empty() {
        return Ok(None);
    }
    let (_, resolution) = lookup.resolve(name, selector)?;
    let paths: Vec<StorePath> = match resolution {
        Resolution::Several { variants, .. } => variants.into_iter().map(|variant| variant.path).collect(),
        Resolution::One(resolved) => resolved.outputs.into_iter().map(|output| output.path).collect(),
        _ => Vec::new(),
    };
    let hash = |choice: &String| Selector::parse(choice).ok().and_then(|selector| selector.choice);
    let found = choices.iter().find(|choice| paths.iter().any(|path| hash(choice) == Some(path.hash_part())));
    Ok(found.or_else(|| choices.first().filter(|_| is_only_system)))
}

/// A path and the hash of its contents: what a trusted key has signed, or, offline, what the store has.
fn found(
    lookup: &mut Lookup<'_>,
    (destination, is_offline): (&Destination, bool),
    wanted: &Wanted,
) -> Result<(StorePath, NarHash), Failure> {
    let answer = lookup.caches().and_then(|(_, caches)| Ok(caches.find(wanted).map_err(Error::from)?));
    let missing = match answer {
        Ok(found) => return Ok((found.info.path, found.info.nar_hash)),
        Err(missing) => missing,
    };
    if let Some(path) = destination.find(wanted)?.filter(|_| is_offline)
        && let Some(there) = destination.store().path_info(&path).map_err(Error::from)?
    {
        return Ok((path, there.nar_hash));
    }
    Err(missing)
}

/// What is different for a name on a system.
struct Change<'a> {
    name: &'a str,
    system: &'a ReleaseSystem,
    old: Vec<&'a StorePath>,
    new: Vec<&'a StorePath>,
}

fn changes<'a>(old: &'a Lock, new: &'a Lock) -> Vec<Change<'a>> {
    let keys: BTreeSet<_> = old.packages.keys().chain(new.packages.keys()).collect();
    let paths = |lock: &'a Lock, key: &(String, ReleaseSystem)| -> Vec<&'a StorePath> {
        lock.packages.get(key).into_iter().flat_map(|package| package.outputs.iter().map(|one| &one.path)).collect()
    };
    let change = |key: &'a (String, ReleaseSystem)| Change {
        name: &key.0,
        system: &key.1,
        old: paths(old, key),
        new: paths(new, key),
    };
    keys.into_iter().map(change).filter(|change| change.old != change.new).collect()
}

fn show(changes: &[Change<'_>], new: &Lock, (project, is_changed): (&Project, bool), args: &Args) {
    let output = args.client.output;
    let names = |paths: &[&StorePath]| paths.iter().map(|path| path.base_name().to_owned()).collect::<Vec<_>>();
    for Change { name, system, old, new } in changes {
        if output.json {
            json::event(
                "locked",
                json!({"name": name, "system": system.as_str(), "old": names(old), "new": names(new)}),
            );
        } else if !output.quiet {
            let shown = |paths: &[&StorePath]| match paths {
                [] => "-".to_owned(),
                paths => paths.iter().map(|path| path.name()).collect::<Vec<_>>().join(" "),
            };
            out!("{name}  {system}  {} → {}", shown(old), shown(new));
        }
    }
    if output.json {
        json::summary(json!({"project": project.folder(), "dryRun": args.dry_run, "changed": is_changed,
            "packages": new.packages.len()}));
    } else if !output.quiet {
        let what = counted(new.packages.len(), "package");
        let file = project.folder().join(locked::FILE);
        let outcome = match (is_changed, args.dry_run) {
            (true, true) => "would change",
            (true, false) => "is written",
            (false, _) => "is as it was",
        };
        note!("{} {outcome}: {what}", file.display());
    }
}
