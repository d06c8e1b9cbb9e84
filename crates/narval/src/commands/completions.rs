//! `narval completions`: prints shell completions.

use std::io::Write;

use clap_complete::Shell;

use crate::ui::failure::Failure;

/// Print shell completions
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  narval completions bash > ~/.local/share/bash-completion/completions/narval")]
pub struct Args {
    /// Shell to complete for
    shell: Shell,
}

/// Runs `narval completions`.
///
/// # Errors
/// Standard output cannot be written.
pub fn run(args: &Args, mut command: clap::Command) -> Result<(), Failure> {
    // Into memory first: the generator panics if it cannot write, and `head` closes its pipe early.
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "narval", &mut text);
    match std::io::stdout().lock().write_all(&text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(Failure::runtime(error)),
        _ => Ok(()),
    }
}
