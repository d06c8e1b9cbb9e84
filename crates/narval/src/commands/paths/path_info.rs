//! `narval path-info`: shows sizes, references and signatures of store paths, before they are installed.

use narval_install::Closure;
use serde_json::json;

use crate::args::client::{ClientArgs, human_bytes};
use crate::args::paths::{Named, or_elsewhere, parse_wanted};
use crate::args::releases::expand_releases;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{out, paths};

/// Show size, closure, references and signatures of store paths
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  narval path-info --recursive …-hello-2.12\n  narval path-info …-hello-2.12 --why …-glibc-2.42"
)]
pub struct Args {
    /// Store paths: in full, HASH-NAME, only the hash part, where they are installed, or symlinks to these
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

/// Runs `narval path-info`.
///
/// # Errors
/// A path is not found.
pub fn run(args: Args) -> Result<(), Failure> {
    args.client.output.start_log();
    let destination = args.client.store.destination()?;
    let paths_of = |texts: &[String]| expand_releases(&args.client.caches, texts, destination.config());
    let wanted = parse_wanted(&paths_of(&args.paths)?, destination.config())?;
    let (client, options) = (args.client.caches.client()?, args.client.caches.options(None, false)?);
    let closure = Closure::find(&destination, &options, &client, &wanted);
    let closure = closure.map_err(|error| or_elsewhere(error, &destination))?;
    if let Some(why) = &args.why {
        let to = Named::parse(why, destination.config())?.wanted.hash_part();
        let to = closure.nodes.keys().find(|path| path.hash_part() == to);
        let chain = to.and_then(|to| closure.why(to));
        let chain = chain.ok_or_else(|| Failure::Coded(3, format!("nothing here depends on {why}")))?;
        if args.client.output.json {
            json::summary(json!({"why": chain.iter().map(|path| path.base_name()).collect::<Vec<_>>()}));
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
            json::event(
                "path",
                json!({
                    "path": path.base_name(), "narHash": info.nar_hash.to_sri(), "narSize": info.nar_size,
                    "fileSize": node.file_size, "closureSize": total,
                    "references": info.references.iter().map(|path| path.base_name()).collect::<Vec<_>>(),
                    "deriver": info.deriver.as_ref().map(|path| path.base_name()),
                    "signatures": info.signatures.iter().map(ToString::to_string).collect::<Vec<_>>(),
                }),
            );
        } else {
            out!("{:>8} {:>8}  {path}", human_bytes(info.nar_size), human_bytes(total));
        }
    }
    if args.client.output.json {
        json::summary(json!({"paths": closure.nodes.len(), "narSize": closure.size()}));
    } else if !args.client.output.quiet {
        out!("{}, {} in all", paths(closure.nodes.len()), human_bytes(closure.size()));
    }
    Ok(())
}
