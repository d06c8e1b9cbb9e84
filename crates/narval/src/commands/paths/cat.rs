//! `narval cat`: prints a file of a store path, from a cache.

use narval_install::cat;

use crate::args::client::ClientArgs;
use crate::args::paths::open;
use crate::ui::failure::Failure;

/// Print a file of a store path in a cache
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  narval cat …-hello-2.12/share/man/man1/hello.1.gz > hello.1.gz")]
pub struct Args {
    /// File to print: HASH-NAME/share/file
    #[arg(value_name = "PATH")]
    path: String,
    #[command(flatten)]
    client: ClientArgs,
}

/// Runs `narval cat`.
///
/// # Errors
/// There is no such file.
pub fn run(args: Args) -> Result<(), Failure> {
    let (caches, wanted, below) = open(&args.client, &args.path)?;
    Ok(cat(&caches, &wanted, &below, &mut std::io::stdout().lock())?)
}
