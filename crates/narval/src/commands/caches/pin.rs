//! `narval pin`: closures that a cache always keeps.

use std::time::Duration;

use clap::Subcommand;
use narval_http::Method;
use narval_nix::HashPart;
use serde_json::json;

use crate::args::administered::{AdministeredArgs, AdministeredCache, escaped, number, text};
use crate::args::data::{ago, ahead};
use crate::ui::failure::Failure;
use crate::ui::output::out;
use crate::values::time::parse_time;

/// Keep closures in a writable cache
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Keep a path with its closure
    ///
    /// Without --for and --keep, it is kept forever. Pinning another path under an existing name adds a revision of
    /// that pin.
    #[command(after_help = "\
Examples:
  narval pin add release-1.2 /nix/store/…-app
  narval pin add nightly /nix/store/…-app --keep 3
  narval pin add branch-x /nix/store/…-app --for 30d
  narval pin add release ./result --keep 3 --at https://cache.example.org")]
    Add {
        #[command(flatten)]
        place: AdministeredArgs,
        /// Name of the pin
        #[arg(value_name = "NAME")]
        name: String,
        /// Store path: in full, HASH-NAME, only the hash part, where it is installed, or a symlink to any of these; or its name, if one path of
        /// the cache has it
        #[arg(value_name = "PATH")]
        path: String,
        /// Keep only the newest N revisions of this name
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        keep: Option<u32>,
        /// Keep it for this long, such as `30d`
        #[arg(long = "for", value_name = "TIME", value_parser = parse_time)]
        time: Option<Duration>,
    },
    /// List pins
    #[command(after_help = "Examples:\n  narval pin list\n  narval pin list --at https://cache.example.org")]
    List {
        #[command(flatten)]
        place: AdministeredArgs,
    },
    /// Remove a pin
    #[command(after_help = "Example:\n  narval pin remove nightly")]
    Remove {
        #[command(flatten)]
        place: AdministeredArgs,
        /// Name of the pin
        #[arg(value_name = "NAME")]
        name: String,
        /// Only the revision with this path, or the path of this name [default: all]
        #[arg(value_name = "PATH")]
        path: Option<String>,
    },
}

/// Runs `narval pin`.
///
/// # Errors
/// If the data folder or the URL cannot be used, or the path or the pin does not exist.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Add { place, name, path, keep, time } => {
            let place = place.open()?;
            let body =
                json!({"path": place.find(&path)?.as_str(), "keep": keep, "seconds": time.map(|time| time.as_secs())});
            let pin = place.ask(&Method::PUT, &format!("pins/{}", escaped(&name)), Some(&body))?;
            out!("{}  {}", text(&pin, "name"), text(&pin, "path"));
        }
        Command::List { place } => {
            place.open()?.each("pins", |pin| {
                let keep = number(&pin, "keep").map(|keep| format!(", keeps {keep}")).unwrap_or_default();
                let until = number(&pin, "until").map(|until| format!(", ends {}", ahead(until))).unwrap_or_default();
                let created = number(&pin, "created").unwrap_or_default();
                out!("{}  {}  {}{keep}{until}", text(&pin, "name"), text(&pin, "path"), ago(created));
                Ok(())
            })?;
        }
        Command::Remove { place, name, path } => {
            let place = place.open()?;
            let revision = path.map(|path| pinned(&place, &name, &path)).transpose()?;
            let query = revision.map(|path| format!("?path={path}")).unwrap_or_default();
            place.ask(&Method::DELETE, &format!("pins/{}{query}", escaped(&name)), None)?;
        }
    }
    Ok(())
}

/// The revision of a pin with this path.
fn pinned(place: &AdministeredCache, name: &str, path: &str) -> Result<HashPart, Failure> {
    let (part, mut exists) = (place.find(path)?, false);
    place.each("pins", |pin| {
        exists |= text(&pin, "name") == name && text(&pin, "path").starts_with(part.as_str());
        Ok(())
    })?;
    let none = format!("the pin '{name}' has no revision with {part}; 'narval pin list' shows all pins");
    if exists { Ok(part) } else { Err(Failure::usage(none)) }
}
