//! `narval profiles`: lists the profiles of a store, with their generations.

use narval_install::Profile;
use serde_json::json;

use crate::args::client::StoreArgs;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::out;
use crate::ui::output_args::OutputArgs;

/// List the profiles of a store, their generations and paths
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  narval profiles --json")]
pub struct Args {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Runs `narval profiles`.
///
/// # Errors
/// A profile cannot be read.
pub fn run(args: Args) -> Result<(), Failure> {
    let profiles = Profile::all(&args.store.config()?)?;
    for profile in &profiles {
        let current = profile.current()?;
        for number in profile.generations()? {
            let (paths, shown) = (profile.paths(number)?, Some(number) == current);
            let names: Vec<_> = paths.iter().map(|path| path.base_name()).collect();
            if args.output.json {
                let link = profile.link();
                let fields = json!({"profile": link, "generation": number, "current": shown, "paths": names});
                json::event("generation", fields);
            } else {
                out!(
                    "{} {number}{} {}",
                    profile.link().display(),
                    if shown { " (current)" } else { "" },
                    names.join(" ")
                );
            }
        }
    }
    if args.output.json {
        json::summary(json!({"profiles": profiles.len()}));
    }
    Ok(())
}
