//! `narval tree`: a closure as a tree with sizes, from a store or from caches.

use std::collections::{BTreeMap, HashSet};

use narval_install::{Closure, Destination, Error};
use narval_nix::StorePath;
use narval_store::{Environment, StoreConfig};
use serde_json::json;

use crate::args::client::{ClientArgs, human_bytes};
use crate::args::paths::{or_elsewhere, parse_wanted};
use crate::args::releases::expand_releases;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{out, paths};

/// Show a closure as a tree, with sizes
///
/// The largest closures come first. A path whose references were shown before has [...] after it. Paths are looked up in this
/// machine's store, or that of --store, and then in the caches.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval tree ./result
  narval tree --depth 2 --from https://cache.example.org …-hello-2.12")]
pub struct Args {
    /// Store paths: in full, HASH-NAME, only the hash part, where they are installed, or symlinks to these
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// Levels to show
    #[arg(long, value_name = "N")]
    depth: Option<usize>,
}

/// Runs `narval tree`.
///
/// # Errors
/// A path is not found.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.client.output.start_log();
    let closure = find(&args.client, &args.paths)?;
    let tree = Tree::new(&closure, |_| true);
    tree.print(&closure.roots, args.depth.unwrap_or(usize::MAX), args.client.output.json);
    if args.client.output.json {
        json::summary(json!({"paths": closure.nodes.len(), "narSize": closure.size()}));
    } else if !args.client.output.quiet {
        out!("{}, {} in all", paths(closure.nodes.len()), human_bytes(closure.size()));
    }
    Ok(())
}

/// The closure of paths: of this machine's store, if no other place is named and it has them, else of the store named and the caches.
pub(in crate::commands) fn find(client: &ClientArgs, paths: &[String]) -> Result<Closure, Failure> {
    let paths = &expand_releases(&client.caches, paths, client.store.destination()?.config())?;
    if client.store.store.is_none() && client.caches.from.is_empty() {
        let machine = StoreConfig::parse("auto", &Environment::of_process()).map_err(Failure::usage)?;
        if machine.database().exists() {
            let store = Destination::new(machine);
            // What is no path of this store may be one of the user's own.
            if let Ok(wanted) = parse_wanted(paths, store.config()) {
                match Closure::in_store(&store, &wanted) {
                    Err(Error::NotInStore { .. }) => {}
                    found => return Ok(found?),
                }
            }
        }
    }
    let destination = client.store.destination()?;
    let wanted = parse_wanted(paths, destination.config())?;
    let (options, http) = (client.caches.options(None, false)?, client.caches.client()?);
    Closure::find(&destination, &options, &http, &wanted).map_err(|error| or_elsewhere(error, &destination))
}

/// The references of a closure, to be shown.
pub(in crate::commands) struct Tree<'a> {
    closure: &'a Closure,
    /// The size of each path's closure, in bytes.
    sizes: BTreeMap<&'a StorePath, u64>,
    /// What each path refers to, but for itself, the largest first.
    references: BTreeMap<&'a StorePath, Vec<&'a StorePath>>,
}

impl<'a> Tree<'a> {
    /// Of the paths that `is_shown` selects.
    pub(in crate::commands) fn new(closure: &'a Closure, is_shown: impl Fn(&StorePath) -> bool) -> Self {
        let sizes: BTreeMap<_, _> = closure.nodes.keys().map(|path| (path, closure.size_of(path))).collect();
        let references = closure.nodes.iter().map(|(path, node)| {
            let shown = node.info.references.iter().filter(|reference| *reference != path && is_shown(reference));
            let mut shown: Vec<_> = shown.collect();
            shown.sort_by_key(|reference| (std::cmp::Reverse(sizes.get(reference)), *reference));
            (path, shown)
        });
        let references = references.collect();
        Self { closure, sizes, references }
    }

    /// Prints it from these paths on: a line for each, or a JSON object. Deep closures are no deep recursion.
    pub(in crate::commands) fn print(&self, roots: &'a [StorePath], depth_max: usize, is_json: bool) {
        let mut expanded = HashSet::new();
        // What is still to be printed, the next one last: the path, its level, whether it is the last of its level, and what is
        // before its line.
        let mut rest: Vec<(&StorePath, usize, bool, String)> =
            roots.iter().rev().map(|root| (root, 0, true, String::new())).collect();
        while let Some((path, level, is_last, before)) = rest.pop() {
            let (Some(node), Some(references)) = (self.closure.nodes.get(path), self.references.get(path)) else {
                continue;
            };
            let closure_size = self.sizes.get(path).copied().unwrap_or_default();
            let is_known = !references.is_empty() && !expanded.insert(path);
            if is_json {
                let references: Vec<_> = references.iter().map(|reference| reference.base_name()).collect();
                let (path, own) = (path.base_name(), node.info.nar_size);
                json::event(
                    "path",
                    json!({"path": path, "level": level, "narSize": own, "closureSize": closure_size, "references": references}),
                );
            } else {
                let branch = match (level, is_last) {
                    (0, _) => "",
                    (_, true) => "└── ",
                    (_, false) => "├── ",
                };
                let (own, all) = (human_bytes(node.info.nar_size), human_bytes(closure_size));
                out!("{own:>9} {all:>9}  {before}{branch}{path}{}", if is_known { " [...]" } else { "" });
            }
            if is_known || level >= depth_max {
                continue;
            }
            let below = match (level, is_last) {
                (0, _) => String::new(),
                (_, true) => before + "    ",
                (_, false) => before + "│   ",
            };
            let last = references.len().saturating_sub(1);
            let children = references.iter().enumerate().rev();
            rest.extend(children.map(|(at, child)| (*child, level + 1, at == last, below.clone())));
        }
    }
}
