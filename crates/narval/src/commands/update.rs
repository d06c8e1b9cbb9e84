//! `narval update`: asks channels for their current release.

use std::time::Instant;

use serde_json::json;

use crate::Failure;
use crate::args::channels::{NameArgs, names_folder, refresh};
use crate::args::client::{CacheArgs, LockArgs, OutputArgs};
use crate::ui::json;
use crate::ui::output::note;

/// Fetch the names of channels: packages and their store paths
///
/// A channel leads to a release, and names mean what that release says until this command is run again. What is installed does not change:
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
    caches: CacheArgs,
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
    if args.output.json {
        json::summary(json!({"channels": channels}));
    }
    Ok(())
}
