//! `narval which-package`: which package has a program.

use narval_install::Error;
use serde_json::json;

use crate::Failure;
use crate::args::channels::{Lookup, NameArgs, show_package};
use crate::args::client::ClientArgs;
use crate::ui::json;

/// Find the package whose main program has a name
///
/// Looks in the names of the channel, which say for most packages what their main program is.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval which-package rg
  narval which-package vi --json

Exit codes: 0 found, 1 failed, 2 wrong usage, 3 nothing found, 5 network.")]
pub struct Args {
    /// Name of a program
    #[arg(value_name = "PROGRAM")]
    program: String,
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
    let (mut shown, mut channels) = (0, Vec::new());
    for channel in lookup.channels()? {
        let name = channel.channel().name().to_owned();
        let failed = |source| Error::Names { channel: name.clone(), source };
        for attribute in channel.index().with_program(&args.program).map_err(failed)? {
            if let Some(package) = channel.index().package(&attribute).map_err(failed)? {
                show_package(&package, args.client.output);
                shown += 1;
            }
        }
        channels.push(name);
    }
    if shown == 0 {
        return Err(Failure::Coded(
            3,
            format!("{} has no package whose main program is '{}'", channels.join(" or "), args.program),
        ));
    }
    if args.client.output.json {
        json::summary(json!({"packages": shown}));
    }
    Ok(())
}
