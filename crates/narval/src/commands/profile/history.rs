//! `narval history`: the generations of a profile, and what each has changed.

use std::collections::BTreeMap;

use narval_install::{Element, Manifest};
use narval_nix::StorePath;
use serde_json::json;

use crate::args::client::LockArgs;
use crate::args::data::ago;
use crate::args::profile::ProfileArgs;
use crate::commands::profile::list::from;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::out;
use crate::ui::output_args::OutputArgs;

/// Show the generations of a profile, and their changes
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  narval history\n  narval history --json\n  narval rollback --to 4")]
pub struct Args {
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    lock: LockArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `narval history`.
///
/// # Errors
/// There is no such profile, or it cannot be read.
pub fn run(args: &Args) -> Result<(), Failure> {
    let profile = args.profile.open(args.lock.timeout())?;
    let (current, _) = profile.existing()?;
    let mut before = Manifest::default();
    for number in profile.generations()? {
        let manifest = profile.manifest(number)?;
        let (old, new) = (before.paths(), manifest.paths());
        let (added, removed): (Vec<_>, Vec<_>) = (new.difference(&old).collect(), old.difference(&new).collect());
        let of_element = |element: &Element| {
            let origin = element.origin.as_ref().map(from);
            element.paths.iter().filter_map(|path| Some((path.clone(), origin.clone()?))).collect::<Vec<_>>()
        };
        // What was removed came from where it was before.
        let origins: BTreeMap<StorePath, String> =
            manifest.elements().flat_map(|(_, element)| of_element(element)).collect();
        let made = profile.made(number).and_then(|made| made.duration_since(std::time::UNIX_EPOCH).ok());
        if args.output.json {
            let names = |paths: &[&StorePath]| paths.iter().map(|path| path.base_name().to_owned()).collect::<Vec<_>>();
            json::event(
                "generation",
                json!({"generation": number, "current": number == current, "made": made.map(|made| made.as_secs()),
                    "added": names(&added), "removed": names(&removed),
                    "from": origins.iter().map(|(path, origin)| (path.base_name(), origin)).collect::<BTreeMap<_, _>>()}),
            );
        } else {
            let signed = |sign: char, paths: &[&StorePath]| -> String {
                let origin =
                    |path: &StorePath| origins.get(path).map(|origin| format!(" ({origin})")).unwrap_or_default();
                paths.iter().map(|path| format!("  {sign}{}{}", path.name(), origin(path))).collect()
            };
            let made = made.map(|made| format!("  {}", ago(made.as_secs()))).unwrap_or_default();
            let shown = if number == current { "  (current)" } else { "" };
            out!("{number}{made}{shown}{}{}", signed('-', &removed), signed('+', &added));
        }
        before = manifest;
    }
    if args.output.json {
        json::summary(json!({"profile": profile.link(), "generation": current}));
    }
    Ok(())
}
