//! `narval key`: generates signing keys and shows their public keys.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Subcommand;
use narval_keep::{CacheName, OVERLAP_SECONDS};
use narval_nix::SecretKey;
use serde_json::json;

use crate::args::administered::{AdminTarget, AdminTargetArgs, AdministeredCache, number, text};
use crate::args::data::{administrator, ago, ahead, now};
use crate::args::secret_key::{parse_secret_key, read_secret_key, write_secret};
use crate::commands::cache::jobs;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{note, out, paths};
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::watched;
use crate::values::time::parse_time;

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
    /// Make a new key for a cache, beside the one that it has
    ///
    /// All servers of the cache sign with both within a second, and with the new one alone after --overlap: give it to clients until then ('narval use' reads it from
    /// the cache). What an older key has signed is signed with the new one, too, and keeps its signatures. The secret is in the index of the data, and never shown. Keys of the configuration file are not changed: remove
    /// them there.
    #[command(
        after_help = "Examples:\n  narval key rotate team\n  narval key rotate team --overlap 7d --at https://cache.example.org"
    )]
    Rotate {
        #[command(flatten)]
        cache: CacheKeysArgs,
        /// How long the keys of before sign, too [default: 30d]
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        overlap: Option<Duration>,
    },
    /// List the keys that servers of a cache sign with, without those of configuration files
    #[command(after_help = "Example:\n  narval key list team --at https://cache.example.org")]
    List(CacheKeysArgs),
}

#[derive(Debug, clap::Args)]
struct CacheKeysArgs {
    #[command(flatten)]
    place: AdminTargetArgs,
    /// Name of the cache
    #[arg(value_name = "CACHE")]
    cache: CacheName,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `narval key`.
///
/// # Errors
/// An invalid name, a file that cannot be read or written, or one without a key.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Generate { name, out } => generate(&name, out.as_deref()),
        Command::Public { file } => public(file.as_deref()),
        Command::Rotate { cache, overlap } => rotate(&cache, overlap.map_or(OVERLAP_SECONDS, |time| time.as_secs())),
        Command::List(args) => {
            let keys = args.place.open()?.each(&format!("caches/{}/keys", args.cache), |key| {
                let ends = number(&key, "ends").map_or_else(String::new, |time| format!(", ends {}", ahead(time)));
                if args.json {
                    json::event("key", key);
                } else {
                    out!("{}  made {}{ends}", text(&key, "publicKey"), ago(number(&key, "created").unwrap_or(0)));
                }
                Ok(())
            })?;
            if args.json {
                json::summary(json!({"keys": keys}));
            }
            Ok(())
        }
    }
}

fn rotate(args: &CacheKeysArgs, overlap_seconds: u64) -> Result<(), Failure> {
    let place = AdministeredCache { place: args.place.open()?, name: args.cache.clone() };
    let (output, kept) = (OutputArgs { quiet: false, json: args.json }, "what was signed stays so");
    let (rotated, ended) = match &place.place {
        AdminTarget::Local(data) => {
            let cache = place.of(data)?;
            let mut keys = args.place.data.sign_keys(&args.cache)?;
            keys.extend(data.signing_keys().map_err(Failure::runtime)?.remove(&args.cache).unwrap_or_default());
            cache.set_sign_keys(keys);
            let requested_at = now().max(cache.keys().map_err(Failure::runtime)?.last().map_or(0, |key| key.created));
            let (rotated, ended) = watched(output, (kept, "makes another key"), |work| {
                cache.rotate(overlap_seconds, requested_at, &administrator(), work).map_err(Failure::runtime)
            })?;
            data.wait_until_noticed();
            (rotated.to_value(), ended)
        }
        AdminTarget::Remote(_) => {
            let options = json!({"overlapSeconds": overlap_seconds});
            jobs::perform(&place, "rotate", &options, (output, kept))?
        }
    };
    if args.json {
        json::summary(rotated);
        return ended;
    }
    if !rotated.is_null() {
        out!("{}", text(&rotated, "publicKey"));
        let [signed, failed] = ["signed", "failed"].map(|name| number(&rotated, name).unwrap_or(0));
        note!("signed {} with it that an older key has signed; {failed} could not be", paths(signed));
    }
    ended
}

fn generate(name: &str, out: Option<&Path>) -> Result<(), Failure> {
    let key = SecretKey::generate(name).map_err(|error| Failure::usage(format!("key name '{name}': {error}")))?;
    // One that was just made is here.
    let text = key.to_file_text().unwrap_or_default();
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
