//! `narval pin`: closures that a cache always keeps.

use std::time::Duration;

use clap::Subcommand;
use narval_keep::{Pin, PinFor};
use narval_nix::StorePath;

use crate::Failure;
use crate::args::administered::{AdministeredArgs, Place};
use crate::args::data::{administrator, ago, ahead, now};
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
  narval pin add release ./result --keep 3 --to https://cache.example.org")]
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
    #[command(after_help = "Examples:\n  narval pin list\n  narval pin list --to https://cache.example.org")]
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
            let part = place.path(&path)?;
            let seconds = time.map(|time| time.as_secs());
            match place {
                Place::Here(_, cache) => {
                    let until = seconds.map(|seconds| now().saturating_add(seconds));
                    let pin = cache.pin(&name, &part, PinFor { keep, until }, &administrator());
                    let pin = pin.map_err(Failure::usage)?;
                    out!("{}  {}", pin.name, pin.path);
                }
                Place::There(there) => out!("{}", there.cache.pin(&name, &part, keep, seconds)?),
            }
        }
        Command::List { place } => {
            for pin in pins(&place.open()?)? {
                let keep = pin.holds.keep.map(|keep| format!(", keeps {keep}")).unwrap_or_default();
                let until = pin.holds.until.map(|until| format!(", ends {}", ahead(until))).unwrap_or_default();
                out!("{}  {}  {}{keep}{until}", pin.name, pin.path, ago(pin.created));
            }
        }
        Command::Remove { place, name, path } => {
            let place = place.open()?;
            let path = path.map(|path| pinned(&place, &name, &path)).transpose()?;
            let is_removed = match &place {
                Place::Here(_, cache) => {
                    cache.unpin(&name, path.as_ref(), &administrator()).map_err(Failure::runtime)? > 0
                }
                Place::There(there) => there.cache.unpin(&name, path.map(|path| path.hash_part()).as_ref())?,
            };
            if !is_removed {
                return Err(Failure::usage(format!("there is no pin '{name}'; 'narval pin list' shows all pins")));
            }
        }
    }
    Ok(())
}

fn pins(place: &Place) -> Result<Vec<Pin>, Failure> {
    match place {
        Place::Here(_, cache) => cache.pins().map_err(Failure::runtime),
        Place::There(there) => serde_json::from_value(there.cache.pins()?).map_err(Failure::runtime),
    }
}

/// The revision of a pin with this path.
fn pinned(place: &Place, name: &str, text: &str) -> Result<StorePath, Failure> {
    let revisions = pins(place)?.into_iter().filter(|pin| pin.name == name);
    let mut paths = revisions.filter_map(|pin| StorePath::parse(&pin.path).ok());
    let part = place.path(text)?;
    let none =
        || Failure::usage(format!("the pin '{name}' has no revision with {part}; 'narval pin list' shows all pins"));
    paths.find(|path| path.hash_part() == part).ok_or_else(none)
}
