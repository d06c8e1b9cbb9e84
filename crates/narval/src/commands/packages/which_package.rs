//! `narval which-package`: which package has a program.

use std::time::Duration;

use narval_install::Error;
use narval_install::names::{ChannelNames, NamesFolder, Programs};
use serde_json::json;

use crate::args::channels::{Lookup, NameArgs, names_folder};
use crate::args::client::ClientArgs;
use crate::args::names::show_package;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::note;
use crate::ui::progress::watched;

/// Find the packages that have a program
///
/// Looks in the names of the channel, which say for most packages what their main program is; and in the list of all programs that the channels of NixOS
/// have, once that was fetched (--all).
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval which-package rg
  narval which-package vi --json
  narval which-package --all xxd

Exit codes: 0 found, 1 failed, 2 wrong usage, 3 nothing found, 5 network,
6 no space, 7 locked, 130 interrupted.")]
pub struct Args {
    /// Name of a program
    #[arg(value_name = "PROGRAM")]
    program: String,
    /// Look also for programs that are not the main ones, and fetch the list of these, some 30 MB, if it is not there for the release
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    names: NameArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// Runs `narval which-package`.
///
/// # Errors
/// If no package has such a program.
pub fn run(args: &Args) -> Result<(), Failure> {
    args.client.output.start_log();
    let destination = args.client.store.destination()?;
    let mut lookup = Lookup::new(&destination, &args.client, &args.names);
    let folder = names_folder()?;
    let (system, lock_timeout) = (args.names.system(), destination.config().lock_timeout);
    let (mut shown, mut channels, mut can_fetch) = (0, Vec::new(), false);
    for channel in lookup.channels()? {
        let name = channel.channel().name().to_owned();
        let failed = |source| Error::Names { channel: name.clone(), source };
        let mut attributes = channel.index().with_program(&args.program).map_err(failed)?;
        let programs = match folder.programs(channel.index()) {
            // The names that a cache has published have no archive beside them.
            None if args.all && !channel.is_exact() => Some(fetch(&folder, channel, args, lock_timeout)?),
            programs => programs,
        };
        can_fetch |= programs.is_none() && !channel.is_exact();
        if let Some(programs) = programs {
            if args.all && !programs.are_there() && !args.client.output.quiet && !args.client.output.json {
                note!("{name} has no list of all programs");
            }
            let others = programs.with(&args.program, &system)?;
            attributes.extend(others.into_iter().filter(|other| !attributes.contains(other)).collect::<Vec<_>>());
        }
        for attribute in attributes {
            if let Some(package) = channel.index().package(&attribute).map_err(failed)? {
                show_package(&package, args.client.output);
                shown += 1;
            }
        }
        channels.push(name);
    }
    if shown == 0 {
        let what = if can_fetch { "whose main program is" } else { "with a program" };
        let hint = if can_fetch { "; --all fetches the list of all programs, some 30 MB" } else { "" };
        return Err(Failure::Coded(
            3,
            format!("{} has no package {what} '{}'{hint}", channels.join(" or "), args.program),
        ));
    }
    if args.client.output.json {
        json::summary(json!({"packages": shown}));
    }
    Ok(())
}

/// Fetches the list of all programs of a channel's release, with its progress shown.
fn fetch(
    folder: &NamesFolder,
    channel: &ChannelNames,
    args: &Args,
    lock_timeout: Duration,
) -> Result<Programs, Failure> {
    let client = args.client.caches.client()?;
    let ended = ("nothing was changed", "begins again");
    let (programs, stopped) = watched(args.client.output, ended, |work| {
        Ok(folder.fetch_programs((channel.channel(), channel.index()), &client, lock_timeout, work)?)
    })?;
    stopped.map(|()| programs)
}
