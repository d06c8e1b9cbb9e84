//! `narval why`: the chains of references from one path to another.

use std::collections::{BTreeMap, HashSet};

use narval_install::Closure;
use narval_nix::{HashPart, StoreDir, StorePath};
use serde_json::json;

use super::tree::{Tree, find};
use crate::args::client::{ClientArgs, human_bytes};
use crate::args::paths::Named;
use crate::args::releases::expand_releases;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::out;

/// Show why a path depends on another
///
/// Prints the shortest chain of references, with the sizes of each path and of its closure. Exit code 3: there is none.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval why ./result …-glibc-2.42
  narval why --all --from https://cache.example.org …-hello-2.12 …-glibc-2.42")]
pub struct Args {
    /// Store path that depends on the other: in full, HASH-NAME, only the hash part, where it is installed, or a symlink to
    /// any of these
    #[arg(value_name = "PATH")]
    path: String,
    /// Store path that it depends on
    #[arg(value_name = "DEPENDENCY")]
    dependency: String,
    #[command(flatten)]
    client: ClientArgs,
    /// Show all chains, as a tree
    #[arg(long)]
    all: bool,
}

/// Runs `narval why`.
///
/// # Errors
/// The path is not found, or does not depend on the other.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.client.output.start_log();
    let closure = find(&args.client, std::slice::from_ref(&args.path))?;
    let dependency = std::slice::from_ref(&args.dependency);
    let dependency = expand_releases(&args.client.caches, dependency, &args.client.store.config()?)?;
    let to = hash_part(dependency.first().unwrap_or(&args.dependency), &args.client)?;
    let to = closure.nodes.keys().find(|path| path.hash_part() == to);
    let chain = to.and_then(|to| Some((to, closure.why(to)?)));
    let (to, chain) =
        chain.ok_or_else(|| Failure::Coded(3, format!("{} does not depend on {}", args.path, args.dependency)))?;
    if args.all {
        let leads_there = leading_to(&closure, to);
        let tree = Tree::new(&closure, |path| leads_there.contains(path));
        tree.print(&closure.roots, usize::MAX, args.client.output.json);
        if args.client.output.json {
            json::summary(json!({"paths": leads_there.len()}));
        }
        return Ok(());
    }
    if args.client.output.json {
        json::summary(json!({"why": chain.iter().map(|path| path.base_name()).collect::<Vec<_>>()}));
        return Ok(());
    }
    for (level, path) in chain.iter().enumerate() {
        let own = closure.nodes.get(path).map_or(0, |node| node.info.nar_size);
        let (own, all) = (human_bytes(own), human_bytes(closure.size_of(path)));
        let branch = if level == 0 { String::new() } else { "    ".repeat(level - 1) + "└── " };
        out!("{own:>9} {all:>9}  {branch}{path}");
    }
    Ok(())
}

fn hash_part(text: &str, client: &ClientArgs) -> Result<HashPart, Failure> {
    // The path may be of this machine's store, whatever the user's own store is.
    let parsed = Named::parse(text, &client.store.config()?)
        .or_else(|error| Named::parse(text, &StoreDir::default()).map_err(|_| error));
    Ok(parsed?.wanted.hash_part())
}

/// The paths from which there is a chain of references to this one, itself included.
fn leading_to<'a>(closure: &'a Closure, to: &'a StorePath) -> HashSet<&'a StorePath> {
    let mut referrers: BTreeMap<&StorePath, Vec<&StorePath>> = BTreeMap::new();
    for (path, node) in &closure.nodes {
        node.info.references.iter().for_each(|reference| referrers.entry(reference).or_default().push(path));
    }
    let (mut found, mut queue) = (HashSet::from([to]), vec![to]);
    while let Some(path) = queue.pop() {
        for referrer in referrers.get(path).into_iter().flatten() {
            if found.insert(*referrer) {
                queue.push(referrer);
            }
        }
    }
    found
}
