//! `narval pin`: closures that a cache always keeps.

use std::time::Duration;

use clap::Subcommand;
use narval_keep::{Cache, PinFor};
use narval_nix::{HashPart, StorePath};

use crate::Failure;
use crate::args::data::{CacheArgs, administrator, ago, ahead, now};
use crate::args::paths::hash_part;
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
  narval pin add branch-x /nix/store/…-app --for 30d")]
    Add {
        #[command(flatten)]
        cache: CacheArgs,
        /// Name of the pin
        #[arg(value_name = "NAME")]
        name: String,
        /// Store path: in full, HASH-NAME, only the hash part, where it is installed, or a symlink to any of these
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
    #[command(after_help = "Example:\n  narval pin list")]
    List {
        #[command(flatten)]
        cache: CacheArgs,
    },
    /// Remove a pin
    #[command(after_help = "Example:\n  narval pin remove nightly")]
    Remove {
        #[command(flatten)]
        cache: CacheArgs,
        /// Name of the pin
        #[arg(value_name = "NAME")]
        name: String,
        /// Only the revision with this path [default: all]
        #[arg(value_name = "PATH")]
        path: Option<String>,
    },
}

/// Runs `narval pin`.
///
/// # Errors
/// If the data folder cannot be used, or the path or the pin does not exist.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Add { cache, name, path, keep, time } => {
            let (_, cache) = cache.open()?;
            let part = hash_part(&path, &cache.settings().store_dir)?;
            let until = time.map(|time| now().saturating_add(time.as_secs()));
            let pin = cache.pin(&name, &part, PinFor { keep, until }, &administrator()).map_err(Failure::usage)?;
            out!("{}  {}", pin.name, pin.path);
        }
        Command::List { cache } => {
            for pin in cache.open()?.1.pins().map_err(Failure::runtime)? {
                let keep = pin.holds.keep.map(|keep| format!(", keeps {keep}")).unwrap_or_default();
                let until = pin.holds.until.map(|until| format!(", ends {}", ahead(until))).unwrap_or_default();
                out!("{}  {}  {}{keep}{until}", pin.name, pin.path, ago(pin.created));
            }
        }
        Command::Remove { cache, name, path } => {
            let (_, cache) = cache.open()?;
            let part = path.map(|path| hash_part(&path, &cache.settings().store_dir)).transpose()?;
            let path = match part {
                Some(part) => Some(pinned(&cache, &name, part)?),
                None => None,
            };
            if cache.unpin(&name, path.as_ref(), &administrator()).map_err(Failure::runtime)? == 0 {
                return Err(Failure::usage(format!("there is no pin '{name}'; 'narval pin list' shows all pins")));
            }
        }
    }
    Ok(())
}

/// The revision of a pin with this hash part.
fn pinned(cache: &Cache, name: &str, part: HashPart) -> Result<StorePath, Failure> {
    let pins = cache.pins().map_err(Failure::runtime)?;
    let revisions = pins.into_iter().filter(|pin| pin.name == name);
    let mut paths = revisions.filter_map(|pin| StorePath::parse(&pin.path).ok());
    let none =
        || Failure::usage(format!("the pin '{name}' has no revision with {part}; 'narval pin list' shows all pins"));
    paths.find(|path| path.hash_part() == part).ok_or_else(none)
}
