//! `narval cache recompress`.

use serde_json::json;

use super::jobs;
use crate::args::administered::{AdminTarget, AdministeredArgs, number};
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{counted, note};
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::watched;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  narval cache recompress\n  narval cache recompress --at https://cache.example.org"
)]
pub(super) struct RecompressArgs {
    #[command(flatten)]
    place: AdministeredArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn recompress(args: &RecompressArgs) -> Result<(), Failure> {
    let place = args.place.open()?;
    let (output, kept) = (OutputArgs { quiet: false, json: args.json }, "what was recompressed stays so");
    let (done, ended) = match &place.place {
        AdminTarget::Local(data) => {
            let cache = place.of(data)?;
            let done = watched(output, (kept, "continues"), |work| cache.recompress(work).map_err(Failure::runtime))?;
            data.wait_until_noticed();
            (done.0.to_value(), done.1)
        }
        AdminTarget::Remote(_) => jobs::perform(&place, "recompress", &json!({}), (output, kept))?,
    };
    ended?;
    let [recompressed, failed] = ["recompressed", "failed"].map(|name| number(&done, name).unwrap_or(0));
    if args.json {
        json::summary(done);
    } else {
        note!("recompressed {}; {failed} could not be, and stay as they are", counted(recompressed, "NAR"));
    }
    Ok(())
}
