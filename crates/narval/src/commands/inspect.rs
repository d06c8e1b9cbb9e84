//! `narval path-info`, `ls` and `cat`: looking before installing.

use narval_cache::Caches;
use narval_install::{Closure, Wanted, cat as write_file, listing};
use narval_nix::listing::Node;
use serde_json::json;

use crate::Failure;
use crate::args::client::{ClientArgs, human_bytes};
use crate::commands::install::parse_wanted;
use crate::ui::output::out;

/// Show the size, closure, references and signatures of store paths
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  narval path-info --recursive …-hello-2.12\n  narval path-info …-hello-2.12 --why …-glibc-2.42"
)]
pub struct PathInfoArgs {
    /// Store paths: in full, HASH-NAME, or the hash part alone
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    #[command(flatten)]
    client: ClientArgs,
    /// Show every path in the closure
    #[arg(long, short)]
    recursive: bool,
    /// Show why the path depends on this one
    #[arg(long, value_name = "PATH")]
    why: Option<String>,
}

/// List the files of a store path in a cache
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  narval ls --recursive …-hello-2.12/bin")]
pub struct LsArgs {
    /// Store path, in full, HASH-NAME or the hash part alone, and a folder in it: HASH-NAME/bin
    #[arg(value_name = "PATH")]
    path: String,
    #[command(flatten)]
    client: ClientArgs,
    /// List folders recursively
    #[arg(long, short)]
    recursive: bool,
}

/// Print a file of a store path in a cache
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  narval cat …-hello-2.12/share/man/man1/hello.1.gz > hello.1.gz")]
pub struct CatArgs {
    /// File to print: HASH-NAME/share/file
    #[arg(value_name = "PATH")]
    path: String,
    #[command(flatten)]
    client: ClientArgs,
}

/// Runs `narval path-info`.
///
/// # Errors
/// When a path is nowhere to be found.
pub fn path_info(args: PathInfoArgs) -> Result<(), Failure> {
    args.client.output.start_log();
    let destination = args.client.store.destination()?;
    let wanted = parse_wanted(&args.paths, destination.store_dir())?;
    let (client, options) = (args.client.caches.client()?, args.client.caches.options(None, false)?);
    let closure = Closure::find(&destination, &options, &client, &wanted)?;
    if let Some(why) = &args.why {
        let to = Wanted::parse(why, destination.store_dir())?.hash_part();
        let to = closure.nodes.keys().find(|path| path.hash_part() == to);
        let chain = to.and_then(|to| closure.why(to));
        let chain = chain.ok_or_else(|| Failure::Coded(3, format!("nothing here needs {why}")))?;
        if args.client.output.json {
            out!("{}", json!({"v": 1, "why": chain.iter().map(|path| path.base_name()).collect::<Vec<_>>()}));
        } else {
            chain.iter().enumerate().for_each(|(depth, path)| out!("{}{path}", "  ".repeat(depth)));
        }
        return Ok(());
    }
    let shown: Vec<_> = if args.recursive { closure.nodes.keys().collect() } else { closure.roots.iter().collect() };
    for path in shown {
        let Some(node) = closure.nodes.get(path) else { continue };
        let (info, total) = (&node.info, closure.size_of(path));
        if args.client.output.json {
            out!(
                "{}",
                json!({
                    "v": 1, "path": path.base_name(), "narHash": info.nar_hash.to_sri(), "narSize": info.nar_size,
                    "fileSize": node.file_size, "closureSize": total,
                    "references": info.references.iter().map(|path| path.base_name()).collect::<Vec<_>>(),
                    "deriver": info.deriver.as_ref().map(|path| path.base_name()),
                    "signatures": info.signatures.iter().map(ToString::to_string).collect::<Vec<_>>(),
                })
            );
        } else {
            out!("{:>8} {:>8}  {path}", human_bytes(info.nar_size), human_bytes(total));
        }
    }
    if !args.client.output.json && !args.client.output.quiet {
        out!("{} paths, {} in all", closure.nodes.len(), human_bytes(closure.size()));
    }
    Ok(())
}

fn open(client: &ClientArgs, path: &str) -> Result<(Caches, Wanted, String), Failure> {
    client.output.start_log();
    let (caches, destination) = (&client.caches, client.store.destination()?);
    let dir = destination.store_dir();
    let relative = path.strip_prefix(dir.as_str()).map_or(path, |rest| rest.trim_start_matches('/'));
    let (base, below) = relative.split_once('/').unwrap_or((relative, ""));
    let (wanted, options) = (Wanted::parse(base, dir)?, caches.options(None, false)?);
    let opened = Caches::open(&options.caches, &caches.client()?, dir, options.keys, options.check_signatures)?;
    Ok((opened, wanted, below.to_owned()))
}

/// Runs `narval ls`.
///
/// # Errors
/// When there is no such path.
pub fn ls(args: LsArgs) -> Result<(), Failure> {
    let (caches, wanted, below) = open(&args.client, &args.path)?;
    let listing = listing(&caches, &wanted)?;
    let absent = || Failure::Coded(3, format!("{} is not there", args.path));
    let node = listing.get(below.as_bytes()).ok_or_else(absent)?;
    if args.client.output.json {
        out!("{}", node.to_json().map_err(|error| Failure::runtime(error.to_string()))?);
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

/// Runs `narval cat`.
///
/// # Errors
/// When there is no such file.
pub fn cat(args: CatArgs) -> Result<(), Failure> {
    let (caches, wanted, below) = open(&args.client, &args.path)?;
    Ok(write_file(&caches, &wanted, &below, &mut std::io::stdout().lock())?)
}
