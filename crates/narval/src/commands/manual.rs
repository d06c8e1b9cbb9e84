//! `narval completions` and `narval man`: what a package puts where shells and `man` look.

use std::io::Write;
use std::path::PathBuf;

use clap_complete::Shell;

use crate::Failure;

/// Print shell completions
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  narval completions bash > ~/.local/share/bash-completion/completions/narval")]
pub struct CompletionsArgs {
    /// Shell to complete for
    shell: Shell,
}

/// Write the manual pages
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  narval man ~/.local/share/man/man1 && man narval-install")]
pub struct ManArgs {
    /// Folder to write them to
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Runs `narval completions`.
///
/// # Errors
/// When standard output can't be written.
pub fn completions(args: &CompletionsArgs, mut command: clap::Command) -> Result<(), Failure> {
    // Into memory first: the generator panics when it can't write, and pipes into `head` are closed early.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "narval", &mut text);
    match std::io::stdout().lock().write_all(&text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::runtime(error)),
        _ => Ok(()),
    }
}

/// Runs `narval man`: one page for the program, and one for each subcommand.
///
/// # Errors
/// When the folder can't be written.
pub fn man(args: &ManArgs, command: &clap::Command) -> Result<(), Failure> {
    let failed = |error| Failure::usage(format!("{}: {error}", args.folder.display()));
    std::fs::create_dir_all(&args.folder).map_err(failed)?;
    clap_mangen::generate_to(command.clone(), &args.folder).map_err(failed)
}
