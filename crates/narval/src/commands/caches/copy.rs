//! `narval copy`: closures between caches, folders and stores.

use std::path::PathBuf;

use narval_cache::BinaryCaches;
use narval_client::Scheme;
use narval_install::{
    Destination, Options, Progress, Wanted, copy_between_stores, copy_from_caches, copy_from_store, install,
};
use narval_nix::{PathInfo, StoreDir};
use narval_push::Target;
use serde_json::json;

use crate::args::client::{ClientArgs, DeltaArgs, StoreArgs, parse_cache};
use crate::args::paths::{closure_in, parse_wanted};
use crate::args::releases::ReleaseLookup;
use crate::args::secret_key::read_secret_key;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{note, paths};

/// Copy closures between caches and stores
///
/// From binary caches (--from) or a store (--store) to a binary cache in a folder (file://…) or a bucket (s3://…), or to a store. Only the
/// named source is used. By default: NARVAL_CACHES; if that is unset, your own store when copying to a cache, and
/// cache.nixos.org when copying to a store.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Store paths: in full, HASH-NAME, only the hash part, where they are installed, or symlinks to these
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Destination: file:///folder or s3://bucket for a binary cache, a folder or `local` for a store
    #[arg(long, value_name = "WHERE")]
    to: String,
    // Before the arguments that it reads: they are removed from the matches as they are read.
    #[command(flatten)]
    named: Named,
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    deltas: DeltaArgs,
    /// Do not compress NARs (from a store to a cache)
    #[arg(long)]
    no_compression: bool,
    /// Secret key to sign with (from a store to a cache)
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  A portable mirror:
  narval copy --from https://cache.nixos.org --to file:///media/cache …-hello

  The same in a bucket:
  narval copy --from https://cache.nixos.org \\
    --to 's3://cache?region=eu-west-1' …-hello

  From that mirror into a store:
  narval copy --from file:///media/cache --to ./root …-hello

  From a store to a signed cache, and to another store:
  narval copy --store ./root --to file:///srv/cache --sign-key cache.sec …-hello
  narval copy --store ./root --to ./other …-hello";

/// Which of the two sources were named on the command line. The environment only sets defaults.
#[derive(Clone, Copy, Debug)]
struct Named {
    store: bool,
    caches: bool,
}

impl clap::Args for Named {
    fn augment_args(command: clap::Command) -> clap::Command {
        command
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        command
    }
}

impl clap::FromArgMatches for Named {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let named = |id: &str| matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine);
        Ok(Self { store: named("store"), caches: named("from") })
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Where the paths come from.
enum Source {
    Store(Box<Destination>),
    BinaryCaches,
}

impl Args {
    /// Whether --to is a cache rather than a store.
    fn goes_to_a_cache(&self) -> bool {
        self.to.contains("://") && !self.to.starts_with("unix://")
    }

    /// The named source; by default the caches of the environment, else the user's own store when copying to a cache,
    /// and cache.nixos.org when copying to a store.
    fn source(&self) -> Result<Source, Failure> {
        let store = match (self.named.store, self.named.caches) {
            (true, true) => {
                return Err(Failure::usage("--store and --from each name a source: give the one to copy from"));
            }
            (true, false) => true,
            (false, true) => false,
            (false, false) => self.client.caches.from.is_empty() && self.goes_to_a_cache(),
        };
        Ok(if store { Source::Store(Box::new(self.client.store.destination()?)) } else { Source::BinaryCaches })
    }
}

/// Runs `narval copy`.
///
/// # Errors
/// A path is not found, not trusted, or cannot be written.
pub fn run(args: Args) -> Result<(), Failure> {
    args.client.output.start_log();
    let source = args.source()?;
    let store_dir = match &source {
        Source::Store(from) => from.store_dir().clone(),
        Source::BinaryCaches => StoreDir::default(),
    };
    let lock_timeout = args.client.store.lock.timeout();
    let lookup = ReleaseLookup { caches: &args.client.caches, system: None, store_dir: &store_dir, lock_timeout };
    let texts = lookup.expanded(&args.paths)?;
    let wanted = match &source {
        Source::Store(from) => parse_wanted(&texts, from.config())?,
        Source::BinaryCaches => parse_wanted(&texts, &store_dir)?,
    };
    let copied = if args.goes_to_a_cache() {
        to_cache(&args, &source, &wanted, &store_dir)?
    } else {
        to_store(&args, &source, &wanted)?
    };
    if args.client.output.json {
        json::summary(json!({"copied": copied}));
    } else if !args.client.output.quiet {
        note!("Copied {}", paths(copied));
    }
    Ok(())
}

fn to_cache(args: &Args, source: &Source, wanted: &[Wanted], store_dir: &StoreDir) -> Result<usize, Failure> {
    let url = parse_cache(&args.to)?;
    if !matches!(url.scheme(), Scheme::File | Scheme::S3) {
        return Err(Failure::usage(format!(
            "--to {url}: only file:// and s3:// caches can be copied to; 'narval push' sends to a server"
        )));
    }
    let client = args.client.caches.client()?;
    let open = || Target::open(&url, &client, store_dir);
    match source {
        Source::Store(from) => {
            let infos = closure_of(from, wanted)?;
            let key = args.sign_key.as_deref().map(read_secret_key).transpose()?;
            Ok(copy_from_store(from, infos, &open()?, !args.no_compression, key)?)
        }
        Source::BinaryCaches => {
            let options = args.client.caches.options(None, false)?;
            let caches =
                BinaryCaches::open(&options.caches, &client, store_dir, options.keys, options.check_signatures)?;
            Ok(copy_from_caches(&caches, wanted, &open()?)?)
        }
    }
}

fn to_store(args: &Args, source: &Source, wanted: &[Wanted]) -> Result<usize, Failure> {
    let to = StoreArgs { store: Some(args.to.clone()), ..args.client.store.clone() }.destination()?;
    let options = Options { deltas: args.deltas.chosen(), ..args.client.caches.options(None, false)? };
    match source {
        Source::Store(from) => {
            let keys = options.check_signatures.then_some(&options.keys);
            Ok(copy_between_stores(from, closure_of(from, wanted)?, &to, keys)?)
        }
        Source::BinaryCaches => {
            let client = args.client.caches.client()?;
            Ok(install(&to, &options, &client, wanted, &Progress::default())?.planned.len())
        }
    }
}

fn closure_of(from: &Destination, wanted: &[Wanted]) -> Result<Vec<PathInfo>, Failure> {
    let closure = closure_in(from, wanted)?;
    Ok(closure.nodes.into_values().map(|node| node.info).collect())
}
