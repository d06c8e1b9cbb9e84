//! `narval update`: asks channels for their current release.

use std::time::Instant;

use narval_client::{Scheme, Url};
use narval_install::names::NamesFolder;
use narval_nix::StoreDir;
use serde_json::json;

use crate::args::channels::{NameArgs, names_folder, refresh};
use crate::args::client::{LockArgs, SourceCacheArgs};
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::note;
use crate::ui::output_args::OutputArgs;

/// Fetch the names of channels: packages and their store paths
///
/// Asks also the caches for names that they have published ('narval names publish'). A channel leads to a release, and names mean what that release says until this command is run again. What is installed does not change:
/// 'narval upgrade' does that.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval update
  narval update --channel nixos-25.11

Exit codes: 0 done or nothing new, 1 failed, 2 wrong usage, 5 network,
6 no space, 7 locked, 130 interrupted.")]
pub struct Args {
    #[command(flatten)]
    names: NameArgs,
    #[command(flatten)]
    caches: SourceCacheArgs,
    #[command(flatten)]
    lock: LockArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `narval update`.
///
/// # Errors
/// A channel cannot be read; its old names stay.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.output.start_log();
    let (folder, client) = (names_folder()?, args.caches.client()?);
    let mut channels = Vec::new();
    for channel in args.names.channels()? {
        let begun = Instant::now();
        let refreshed = refresh(&folder, &channel, &client, args.lock.timeout(), args.output)?;
        if args.output.json {
            channels
                .push(json!({"channel": channel.name(), "release": refreshed.release, "revision": refreshed.revision,
                "new": refreshed.is_new, "attributes": refreshed.attributes, "paths": refreshed.paths}));
        } else if !args.output.quiet {
            let (name, release) = (channel.name(), &refreshed.release);
            match refreshed.is_new {
                true => note!(
                    "{name}: {} names and {} paths of {release} in {:.1}s",
                    refreshed.attributes,
                    refreshed.paths,
                    begun.elapsed().as_secs_f64()
                ),
                false => note!("{name}: nothing new since {release}"),
            }
        }
    }
    let published = published(args, &folder)?;
    if args.output.json {
        json::summary(json!({"channels": channels, "caches": published}));
    }
    Ok(())
}

/// The caches that have published names, which are fetched.
fn published(args: &Args, folder: &NamesFolder) -> Result<Vec<String>, Failure> {
    let (client, options) = (args.caches.client()?, args.caches.options(None, false)?);
    let mut published = Vec::new();
    let is_asked = |url: &&Url| !args.caches.offline && url.scheme() != Scheme::File;
    for url in options.caches.iter().filter(is_asked) {
        let trust = (&options.keys, options.check_signatures);
        match folder.refresh_exact(url, &client, trust, &StoreDir::default(), args.lock.timeout()) {
            Ok(true) => published.push(url.to_string()),
            Ok(false) => {}
            Err(error) => tracing::warn!("{url} is not asked for names: {error}"),
        }
    }
    if !args.output.json && !args.output.quiet {
        published.iter().for_each(|url| note!("{url} has published names"));
    }
    Ok(published)
}
