//! `narval man`: writes the manual pages.

use std::path::PathBuf;

use crate::ui::failure::Failure;

/// Write the manual pages
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  narval man ~/.local/share/man/man1 && man narval-install")]
pub struct Args {
    /// Folder to write them to
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Runs `narval man`: one page for the program, and one for each subcommand.
///
/// # Errors
/// The folder cannot be written.
pub fn run(args: &Args, command: &clap::Command) -> Result<(), Failure> {
    let failed = |error| Failure::usage(format!("{}: {error}", args.folder.display()));
    std::fs::create_dir_all(&args.folder).map_err(failed)?;
    clap_mangen::generate_to(command.clone(), &args.folder).map_err(failed)
}
