//! `narval copy`: closures between caches, folders and stores.

use std::path::PathBuf;
use std::sync::Arc;

use narval_install::cache::Caches;
use narval_install::http::Scheme;
use narval_install::{Closure, Destination, Progress, Trace, copy_from_caches, copy_from_store, install};
use narval_nix::StoreDir;
use narval_store::CacheFolder;

use crate::client::{ClientArgs, StoreArgs, parse_cache};
use crate::install::parse_wanted;
use crate::output::note;
use crate::{Failure, key};

/// Copy closures from caches (--from) or a store (--store) to a cache folder (file://…) or a store (a folder)
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Store paths, hash-name or hash parts
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Where to: file:///folder for a binary cache, a folder or `local` for a store
    #[arg(long, value_name = "WHERE")]
    to: String,
    #[command(flatten)]
    client: ClientArgs,
    /// Write NARs as they are, when copying from a store to a cache
    #[arg(long)]
    no_compression: bool,
    /// A secret key to sign with, when copying from a store to a cache
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  narval copy --from https://cache.nixos.org --to file:///media/cache …-hello-2.12     a mirror to carry
  narval copy --from file:///media/cache --to ./root …-hello-2.12                       into a store
  narval copy --store ./root --to file:///media/cache --sign-key cache.sec …-hello-2.12";

/// Runs `narval copy`.
///
/// # Errors
/// When a path is nowhere, can't be trusted, or can't be written.
pub fn run(args: Args) -> Result<(), Failure> {
    args.client.output.start_log();
    let store_dir = StoreDir::default();
    let wanted = parse_wanted(&args.paths, &store_dir)?;
    let copied = if args.to.contains("://") {
        let url = parse_cache(&args.to)?;
        if url.scheme() != Scheme::File {
            return Err(Failure::usage(format!(
                "--to {url}: only file:// caches can be written; serve the folder with 'narval static'"
            )));
        }
        let folder = CacheFolder::create(&url.file_path(), store_dir.clone()).map_err(narval_install::Error::from)?;
        if args.client.caches.from.is_empty() {
            let from = args.client.store.destination()?;
            let (client, options) = (args.client.caches.client()?, args.client.caches.options(None, false)?);
            let closure = Closure::find(&from, &options, &client, &wanted)?;
            let infos: Vec<_> = closure.nodes.into_values().map(|node| Arc::new(node.info)).collect();
            let key = args.sign_key.as_deref().map(key::read_secret_key).transpose()?;
            copy_from_store(&from, &infos, &folder, !args.no_compression, key.as_ref())?
        } else {
            let options = args.client.caches.options(None, false)?;
            let caches = Caches::open(
                &options.caches,
                &args.client.caches.client()?,
                &store_dir,
                options.keys,
                options.check_signatures,
            )?;
            copy_from_caches(&caches, &wanted, &folder)?
        }
    } else {
        let to = StoreArgs { store: Some(args.to.clone()) }.destination()?;
        into_store(&args, &to, &wanted)?
    };
    if !args.client.output.quiet {
        note!("Copied {copied} paths");
    }
    Ok(())
}

fn into_store(args: &Args, to: &Destination, wanted: &[narval_install::Wanted]) -> Result<usize, Failure> {
    let (client, options) = (args.client.caches.client()?, args.client.caches.options(None, false)?);
    Ok(install(to, &options, &client, wanted, &Progress::default(), &Trace::new(false))?.planned.len())
}
