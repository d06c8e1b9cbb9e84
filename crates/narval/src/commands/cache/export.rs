//! `narval cache export`.

use std::io::{self, BufWriter, Write};

use narval_client::Url;
use narval_keep::Destination;
use serde_json::{Value, json};

use super::jobs;
use crate::args::administered::{AdminTarget, AdministeredArgs, number};
use crate::args::client::human_bytes;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{counted, note, paths};
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::watched;

/// What an interrupted copy leaves.
pub(super) const KEPT: &str = "what was copied is kept";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval cache export > saved.json
  narval cache export --cache team --destination file:///media/mirror
  narval cache export --destination mirror --at https://cache.example.org")]
pub(super) struct ExportArgs {
    #[command(flatten)]
    place: AdministeredArgs,
    /// Where to copy the cache to: file:///FOLDER, s3://BUCKET, or the name of a [[destination]] of the configuration file; with --at, one of the server's
    #[arg(long, value_name = "NAME|URL")]
    destination: Option<String>,
    /// Print JSON about what was copied
    #[arg(long, requires = "destination")]
    json: bool,
}

pub(super) fn export(args: &ExportArgs) -> Result<(), Failure> {
    let Some(destination) = &args.destination else { return print(args) };
    let place = args.place.open()?;
    let output = OutputArgs { quiet: false, json: args.json };
    let (copied, ended) = match &place.place {
        AdminTarget::Local(data) => {
            let (url, cache) = (url_of(args, destination)?, place.of(data)?);
            let (copied, ended) =
                watched(output, (KEPT, "continues"), |work| cache.copy_to(&url, work).map_err(Failure::runtime))?;
            (copied.to_value(), ended)
        }
        AdminTarget::Remote(_) => jobs::perform(&place, "export", &json!({"to": destination}), (output, KEPT))?,
    };
    ended?;
    show(copied, args.json);
    Ok(())
}

/// Says what was copied.
pub(super) fn show(copied: Value, is_json: bool) {
    if is_json {
        json::summary(copied);
        return;
    }
    let [new, present, nars, bytes, files] =
        ["paths", "present", "nars", "bytes", "files"].map(|name| number(&copied, name).unwrap_or(0));
    let (nars, bytes, files) = (counted(nars, "NAR"), human_bytes(bytes), counted(files, "other file"));
    note!("copied {} with {nars} ({bytes}) and {files}; {present} were there already", paths(new));
}

fn url_of(args: &ExportArgs, destination: &str) -> Result<Url, Failure> {
    if destination.contains("://") {
        return destination
            .parse()
            .map_err(|error| Failure::usage(format!("option --destination: '{destination}': {error}")));
    }
    match args.place.place.data.destination(destination)? {
        Some(Destination::Export(url)) => Ok(url),
        _ => Err(Failure::usage(format!(
            "option --destination: '{destination}' is no address such as file:///FOLDER, and no [[destination]] with 'url' of the configuration file"
        ))),
    }
}

/// Prints what is only in the index.
fn print(args: &ExportArgs) -> Result<(), Failure> {
    let AdminTarget::Local(data) = args.place.place.open()? else {
        return Err(Failure::usage("option --destination: needed with --at: the name of a destination of the server"));
    };
    let mut stdout = BufWriter::new(io::stdout().lock());
    data.export(&mut stdout).map_err(Failure::runtime)?;
    writeln!(stdout)
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::runtime(format!("cannot write to standard output: {error}")))
}
