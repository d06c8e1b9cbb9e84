//! `narval key`: generates signing keys and shows their public keys.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use narval_nix::SecretKey;

use crate::Failure;
use crate::args::secret_key::{parse_secret_key, read_secret_key, write_secret};

/// Generate signing keys and show their public keys
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Generate a secret key
    ///
    /// Without --out, the secret key is printed to standard output. With --out, it is written to a file that only you
    /// can read, and the public key is printed. The format is that of Nix.
    #[command(after_help = "\
Examples:
  narval key generate cache.example.org-1 --out cache.sec
  narval serve --sign-key cache.sec")]
    Generate {
        /// Name of the key; by convention a host name and a number
        #[arg(value_name = "NAME")]
        name: String,
        /// File to write the key to; must not exist
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Show the public key of a secret key
    ///
    /// Clients need it in `trusted-public-keys`.
    #[command(after_help = "\
Examples:
  narval key public cache.sec
  narval key public < cache.sec")]
    Public {
        /// Secret key file [default: standard input]
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

/// Runs `narval key`.
///
/// # Errors
/// An invalid name, a file that cannot be read or written, or one without a key.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Generate { name, out } => generate(&name, out.as_deref()),
        Command::Public { file } => public(file.as_deref()),
    }
}

fn generate(name: &str, out: Option<&Path>) -> Result<(), Failure> {
    let key = SecretKey::generate(name).map_err(|error| Failure::usage(format!("key name '{name}': {error}")))?;
    let text = key.to_file_text();
    match out {
        None => print_line(&text),
        Some(path) => {
            write_secret(path, &text)?;
            print_line(&key.public_key().to_string())
        }
    }
}

fn public(file: Option<&Path>) -> Result<(), Failure> {
    let key = match file {
        Some(path) => read_secret_key(path)?,
        None => parse_secret_key(io::stdin().lock(), "standard input")?,
    };
    print_line(&key.public_key().to_string())
}

fn print_line(text: &str) -> Result<(), Failure> {
    writeln!(io::stdout().lock(), "{text}").map_err(|error| Failure::runtime(format!("cannot write the key: {error}")))
}
