//! `narval list`: what a profile has.

use narval_install::{Element, Origin};
use narval_nix::PackageName;
use serde_json::json;

use crate::args::client::LockArgs;
use crate::args::profile::ProfileArgs;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{note, out};
use crate::ui::output_args::OutputArgs;

/// List what is installed in a profile
///
/// Shows names, versions, outputs, and where each of them came from. 'narval upgrade' and 'narval remove' take these names. A profile of Nix can be listed,
/// too.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  narval list\n  narval list --profile ~/.local/state/nix/profiles/profile --json")]
pub struct Args {
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    lock: LockArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `narval list`.
///
/// # Errors
/// There is no such profile, or it cannot be read.
pub fn run(args: &Args) -> Result<(), Failure> {
    let profile = args.profile.open(args.lock.timeout())?;
    let (generation, manifest) = profile.existing()?;
    for (name, element) in manifest.elements() {
        let paths: Vec<_> = element.paths.iter().map(|path| path.base_name()).collect();
        if args.output.json {
            let origin = element.origin.as_ref();
            json::event(
                "element",
                json!({"name": name, "version": version(element), "paths": paths, "priority": element.priority,
                    "active": element.active, "attribute": origin.map(|origin| &origin.attribute),
                    "channel": origin.map(|origin| &origin.channel), "release": origin.map(|origin| &origin.release),
                    "choice": origin.and_then(|origin| origin.choice.as_ref()), "flake": element.flake()}),
            );
        } else {
            let came_from = match (&element.origin, element.flake()) {
                (Some(origin), _) => format!("  {}", from(origin)),
                (None, Some(flake)) => format!("  {flake}"),
                (None, None) => String::new(),
            };
            let hidden = if element.active { "" } else { "  (not shown)" };
            out!("{name}  {}{came_from}{hidden}  {}", version(element), paths.join(" "));
        }
    }
    if args.output.json {
        json::summary(json!({"profile": profile.link(), "generation": generation}));
    } else if manifest.elements().next().is_none() && !args.output.quiet {
        note!("{} is empty", profile.link().display());
    }
    Ok(())
}

/// Where an element came from: the channel, or the release and its cache.
pub(super) fn from(origin: &Origin) -> String {
    match origin.attribute.starts_with('@') {
        true => format!("{} of {}", origin.release, origin.channel),
        false => origin.channel.clone(),
    }
}

/// The versions of an element's paths, as a rule one.
pub(super) fn version(element: &Element) -> String {
    let mut versions: Vec<_> = element.paths.iter().map(|path| PackageName::of(path.name()).version).collect();
    versions.dedup();
    versions.retain(|version| !version.is_empty());
    if versions.is_empty() { "-".to_owned() } else { versions.join(", ") }
}
