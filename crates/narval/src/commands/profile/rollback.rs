//! `narval rollback`: switches a profile to an earlier generation.

use serde_json::json;

use crate::args::client::LockArgs;
use crate::args::profile::ProfileArgs;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::out;
use crate::ui::output_args::OutputArgs;

/// Switch a profile to its previous generation, or to a given one
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  narval rollback\n  narval rollback --to 4\n  narval rollback --profile ~/p")]
pub struct Args {
    #[command(flatten)]
    profile: ProfileArgs,
    /// Number of the generation [default: the one before the current]
    #[arg(long, value_name = "N")]
    to: Option<u64>,
    #[command(flatten)]
    lock: LockArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `narval rollback`.
///
/// # Errors
/// There is no such generation.
pub fn run(args: Args) -> Result<(), Failure> {
    let profile = args.profile.open(args.lock.timeout())?;
    let number = profile.roll_back(args.to)?;
    if args.output.json {
        json::summary(json!({"profile": profile.link(), "generation": number}));
    } else if !args.output.quiet {
        out!("{} shows generation {number}", profile.link().display());
    }
    Ok(())
}
