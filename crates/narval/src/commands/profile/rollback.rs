//! `narval rollback`: switches a profile to an earlier generation.

use std::path::PathBuf;

use narval_install::Profile;
use serde_json::json;

use crate::Failure;
use crate::args::client::{LockArgs, OutputArgs};
use crate::ui::json;
use crate::ui::output::out;

/// Switch a profile to its previous generation, or to a given one
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  narval rollback --profile ~/.local/state/profile\n  narval rollback --profile ~/.local/state/profile --to 4"
)]
pub struct Args {
    /// Profile to switch
    #[arg(long, value_name = "DIR")]
    profile: PathBuf,
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
    let profile = Profile::at(&args.profile, args.lock.timeout())?;
    let number = profile.roll_back(args.to)?;
    if args.output.json {
        json::summary(json!({"profile": profile.link(), "generation": number}));
    } else if !args.output.quiet {
        out!("{} shows generation {number}", profile.link().display());
    }
    Ok(())
}
