//! `narval remove`: removes packages from a profile.

use narval_install::Wanted;
use narval_nix::StorePath;
use serde_json::json;

use crate::args::client::StoreArgs;
use crate::args::paths::Named;
use crate::args::profile::ProfileArgs;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::out;
use crate::ui::output_args::OutputArgs;

/// Remove packages from a profile
///
/// Creates a generation without them; 'narval rollback' switches back. The files are kept as long as a generation
/// contains them ('narval gc --keep').
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Packages: names that 'narval list' has, names of paths with or without version (without it, all outputs), store paths, HASH-NAME, or hash parts
    #[arg(required = true, value_name = "NAME|PATH")]
    packages: Vec<String>,
    #[command(flatten)]
    profile: ProfileArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

const EXAMPLES: &str = "\
Examples:
  narval remove git
  narval remove --profile ~/p hello-2.12 00bgd045z0d4icpbc2yyz4gx48ak44la

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 not in the profile, 6 no space,
7 locked.";

/// Runs `narval remove`.
///
/// # Errors
/// One of the packages is not in the profile, which is then not changed.
pub fn run(args: Args) -> Result<(), Failure> {
    args.output.start_log();
    let destination = args.store.destination()?;
    let profile = args.profile.open(destination.config().lock_timeout)?;
    // Names of packages have no slash. What the profile can parse stays as it is, for its messages.
    let is_place = |text: &String| text.contains('/') && Wanted::parse(text, destination.store_dir()).is_err();
    let given = |text: &String| match is_place(text) {
        true => Named::parse(text, destination.config()).map(|named| named.wanted.to_string()),
        false => Ok(text.clone()),
    };
    let done = profile.remove(&destination, &args.packages.iter().map(given).collect::<Result<Vec<_>, _>>()?)?;
    let names = |paths: &[StorePath]| paths.iter().map(|path| path.base_name().to_string()).collect::<Vec<_>>();
    if args.output.json {
        let (removed, left) = (names(&done.removed), names(&done.left));
        let (link, generation) = (profile.link(), done.generation);
        json::summary(json!({"profile": link, "generation": generation, "removed": removed, "paths": left}));
    } else if !args.output.quiet {
        done.removed.iter().for_each(|path| out!("removed {}", path.name()));
        out!("{} shows generation {}", profile.link().display(), done.generation);
    }
    Ok(())
}
