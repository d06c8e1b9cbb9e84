//! `narval ls`: lists the files of a store path, from a cache.

use narval_install::listing;
use narval_nix::listing::Node;
use serde_json::{Value, json};

use crate::args::client::ClientArgs;
use crate::args::paths::open;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::out;

/// List the files of a store path in a cache
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  narval ls --recursive …-hello-2.12/bin")]
pub struct Args {
    /// Store path, or a folder in it, such as HASH-NAME/bin: in full, HASH-NAME, only the hash part, where it is installed,
    /// or a symlink to any of these
    #[arg(value_name = "PATH")]
    path: String,
    #[command(flatten)]
    client: ClientArgs,
    /// List folders recursively
    #[arg(long, short)]
    recursive: bool,
}

/// Runs `narval ls`.
///
/// # Errors
/// There is no such path.
pub fn run(args: Args) -> Result<(), Failure> {
    let (caches, wanted, below) = open(&args.client, &args.path)?;
    let listing = listing(&caches, &wanted)?;
    let absent = || Failure::Coded(3, format!("{} does not exist", args.path));
    let node = listing.get(below.as_bytes()).ok_or_else(absent)?;
    if args.client.output.json {
        let text = node.to_json().map_err(|error| Failure::runtime(error.to_string()))?;
        let listing: Value = serde_json::from_str(&text).map_err(Failure::runtime)?;
        json::summary(json!({"path": wanted.to_string(), "below": below, "listing": listing}));
    } else {
        show(node, &below, args.recursive, true);
    }
    Ok(())
}

fn show(node: &Node, name: &str, recursive: bool, root: bool) {
    match node {
        Node::Regular { executable: true, size, .. } => out!("-r-xr-xr-x {size:>12} {name}"),
        Node::Regular { executable: false, size, .. } => out!("-r--r--r-- {size:>12} {name}"),
        Node::Symlink { target } => out!("lrwxrwxrwx {:>12} {name} -> {}", 0, String::from_utf8_lossy(target)),
        Node::Directory(entries) => {
            if !root {
                out!("dr-xr-xr-x {:>12} {name}", 0);
            }
            for (child, node) in entries.iter().filter(|_| root || recursive) {
                let child = String::from_utf8_lossy(child);
                let below = if name.is_empty() { child.into_owned() } else { format!("{name}/{child}") };
                show(node, &below, recursive, false);
            }
        }
    }
}
