//! `narval diff`: what a closure has gained, lost and changed.

use narval_install::Closure;
use narval_nix::{ClosureDifference, PackageChange, PathInfo};
use serde_json::{Value, json};

use super::tree::find;
use crate::args::client::{ClientArgs, human_bytes};
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{counted, out, paths};

/// A package whose versions are the same on both sides is listed if its size changes by at least this, as in `nix store diff-closures`.
const SIZE_CHANGE_MIN: u64 = 8 * 1024;

/// Show what differs between two closures
///
/// Prints the packages that one of them has more, or in another version, and by how much the closure grows by each. ∅ means none. Each side is looked
/// up in this machine's store, or that of --store, and then in the caches.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval diff /nix/var/nix/profiles/system-41-link /nix/var/nix/profiles/system
  narval diff --from https://cache.example.org @api@41 @api")]
pub struct Args {
    /// Closure before: a store path in full, HASH-NAME, only the hash part, where it is installed, a symlink to any of these, a profile or a generation
    /// of one, or a release such as @api@41
    #[arg(value_name = "BEFORE")]
    before: String,
    /// Closure after: the same
    #[arg(value_name = "AFTER")]
    after: String,
    #[command(flatten)]
    client: ClientArgs,
    /// List also packages that were built anew without another version or size
    #[arg(long)]
    all: bool,
}

/// Runs `narval diff`.
///
/// # Errors
/// A path is not found.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.client.output.start_log();
    let find = |text: &String| find(&args.client, std::slice::from_ref(text));
    let (before, after) = (find(&args.before)?, find(&args.after)?);
    let difference = ClosureDifference::of(infos(&before), infos(&after));
    let packages = difference.packages();
    let rebuilt = packages.iter().filter(|change| change.is_rebuilt()).count();
    if args.client.output.json {
        packages.iter().for_each(|change| json::event("change", as_json(change)));
        let side = |closure: &Closure| json!({"paths": closure.nodes.len(), "narSize": closure.size()});
        json::summary(json!({
            "changed": packages.len() - rebuilt, "rebuilt": rebuilt, "pathsOfBoth": difference.both, "before": side(&before), "after": side(&after)
        }));
        return Ok(());
    }
    let is_shown = |change: &&PackageChange<'_, _>| {
        args.all || !change.is_rebuilt() || change.size_change().unsigned_abs() >= SIZE_CHANGE_MIN
    };
    packages.iter().filter(is_shown).for_each(|change| out!("{}", line(change)));
    if !args.client.output.quiet {
        let side = |closure: &Closure| format!("{}, {}", paths(closure.nodes.len()), human_bytes(closure.size()));
        let (both, rebuilt) = (paths(difference.both), counted(rebuilt, "package"));
        out!("before: {}; after: {}; {both} of both, {rebuilt} built anew", side(&before), side(&after));
    }
    Ok(())
}

fn infos(closure: &Closure) -> impl Iterator<Item = &PathInfo> {
    closure.nodes.values().map(|node| &node.info)
}

/// `openssl-dev: 3.0.13 → 3.0.14, +12 kB`.
fn line(change: &PackageChange<'_, PathInfo>) -> String {
    let dash = if change.output.is_empty() { "" } else { "-" };
    let versions = |versions: Vec<&str>| match versions.as_slice() {
        [] => "∅".to_owned(),
        [""] => "without version".to_owned(),
        versions => versions.join(", "),
    };
    let (before, after) = (versions(change.versions_before()), versions(change.versions_after()));
    let versions = if change.is_rebuilt() { after } else { format!("{before} → {after}") };
    let sign = if change.size_change() < 0 { '-' } else { '+' };
    format!(
        "{}{dash}{}: {versions}, {sign}{}",
        change.package,
        change.output,
        human_bytes(change.size_change().unsigned_abs())
    )
}

fn as_json(change: &PackageChange<'_, PathInfo>) -> Value {
    let names = |paths: &[&PathInfo]| paths.iter().map(|info| info.path.base_name().to_owned()).collect::<Vec<_>>();
    json!({
        "package": change.package,
        "output": change.output,
        "versionsBefore": change.versions_before(),
        "versionsAfter": change.versions_after(),
        "pathsBefore": names(&change.before),
        "pathsAfter": names(&change.after),
        "sizeChange": change.size_change(),
    })
}
