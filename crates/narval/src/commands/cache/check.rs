//! `narval cache fsck` and `import`.

use std::path::Path;

use narval_files::Work;
use narval_keep::{CacheName, Data, FsckOptions};
use serde_json::{Value, json};

use super::jobs;
use crate::args::administered::{AdminTarget, AdminTargetArgs, AdministeredArgs, number};
use crate::args::data::{self, DataArgs, cache_of};
use crate::ui::failure::Failure;
use crate::ui::output::{counted, note, out, paths};
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::watched;

/// What the command does when it is run again.
const FROM_THE_START: &str = "starts from the beginning";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval cache fsck
  narval cache fsck --contents --repair
  narval cache fsck --contents --at https://cache.example.org
  narval cache fsck --rebuild")]
pub(super) struct FsckArgs {
    #[command(flatten)]
    place: AdminTargetArgs,
    /// Only this cache [default: all, or the one at the URL]
    #[arg(long, value_name = "NAME", conflicts_with = "rebuild")]
    cache: Option<CacheName>,
    /// Read every NAR and compare its hash, not only its length
    #[arg(long)]
    contents: bool,
    /// Remove lost paths from the index, restore what can be restored, and delete stray files
    #[arg(long)]
    repair: bool,
    /// Rebuild the index from the files, verifying all NARs; stop the server first
    ///
    /// The old index is kept beside it; with --database, the database must be empty. Tokens and pins are not in the files: restore them with `narval cache import`.
    #[arg(long, conflicts_with_all = ["contents", "repair"])]
    rebuild: bool,
}

pub(super) fn fsck(args: &FsckArgs) -> Result<(), Failure> {
    let output = OutputArgs { quiet: false, json: false };
    let (report, ended) = if args.rebuild {
        let data::DataLocation { storage, database } = args.place.data.place()?;
        if let narval_keep::StorageLocation::Folder(folder) = &storage
            && !folder.join("caches").is_dir()
        {
            return Err(Failure::usage(format!("'{}' is not a data folder: it has no 'caches'", folder.display())));
        }
        let kept = match database {
            None => "the index of before is in force",
            Some(_) => "the index is not used before it is complete",
        };
        let rebuild = |work: &Work| Ok(Data::rebuild(storage, database, work).map_err(Failure::runtime)?.1);
        let (report, ended) = watched(output, (kept, FROM_THE_START), rebuild)?;
        (report.to_value(usize::MAX), ended)
    } else {
        let place = args.place.open()?;
        let kept = if args.repair { "what was repaired stays so" } else { "nothing was changed" };
        match &place {
            AdminTarget::Local(data) => {
                let options = FsckOptions { contents: args.contents, repair: args.repair };
                let check = |work: &Work| match &args.cache {
                    Some(name) => cache_of(data, name)?.fsck(options, work).map_err(Failure::runtime),
                    None => data.fsck(options, work).map_err(Failure::runtime),
                };
                let (report, ended) = watched(output, (kept, FROM_THE_START), check)?;
                data.wait_until_noticed();
                (report.to_value(usize::MAX), ended)
            }
            AdminTarget::Remote(_) => {
                let cache = AdministeredArgs { place: args.place.clone(), cache: args.cache.clone() }.open()?;
                let options = json!({"contents": args.contents, "repair": args.repair});
                jobs::perform(&cache, "fsck", &options, (output, kept))?
            }
        }
    };
    let listed = report.get("problems").and_then(Value::as_array);
    listed.into_iter().flatten().filter_map(Value::as_str).for_each(|problem| out!("{problem}"));
    let [checked, files, problems] = ["paths", "files", "found"].map(|name| number(&report, name).unwrap_or(0));
    note!("{}, {}, {}", paths(checked), counted(files, "NAR"), counted(problems, "problem"));
    ended?;
    match problems {
        0 => Ok(()),
        _ if args.rebuild || args.repair => Ok(()),
        _ => Err(Failure::runtime("there are problems; 'narval cache fsck --repair' fixes them")),
    }
}

pub(super) fn import(data: &DataArgs, file: &Path) -> Result<(), Failure> {
    let text =
        std::fs::read_to_string(file).map_err(|error| Failure::of_file(&format!("'{}'", file.display()), &error))?;
    let data = data.create()?;
    let imported = data.import(&text).map_err(Failure::usage)?;
    data.wait_until_noticed();
    note!("imported {} tokens and {} pins", imported.tokens, imported.pins);
    Ok(())
}
