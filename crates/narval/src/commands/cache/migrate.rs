//! `narval cache migrate`.

use std::path::PathBuf;

use narval_keep::{CacheName, Data};
use serde_json::{Value, json};

use super::export::KEPT;
use super::{export, jobs};
use crate::args::administered::{AdminTargetArgs, AdministeredArgs, AtArgs, number};
use crate::args::data::{DataArgs, administrator};
use crate::ui::failure::Failure;
use crate::ui::output::{counted, note};
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::watched;

#[derive(Debug, clap::Args)]
#[command(mut_arg("at", |arg| arg.alias(None::<&str>)))]
#[command(after_help = "\
Examples:
  narval cache migrate --from /var/lib/narval --to s3://cache \\
    --database postgres://db/narval --cache-dir /var/cache/narval
  narval cache migrate --from s3://cache --from-cache-dir /var/cache/narval \\
    --to /var/lib/narval
  narval cache migrate --cache team --destination new \\
    --at https://cache.example.org")]
pub(super) struct MigrateArgs {
    /// Data folder or address of the bucket (`s3://…`) to copy from; its server may be running
    #[arg(long, value_name = "DIR|URL", required_unless_present = "at", conflicts_with = "at")]
    from: Option<PathBuf>,
    /// Database with the index of the source, if it is in one
    #[arg(long, value_name = "URL")]
    from_database: Option<String>,
    /// If the source is a bucket: its folder on this machine, with the index unless that is in a database
    #[arg(long, value_name = "DIR")]
    from_cache_dir: Option<PathBuf>,
    /// Data folder or address of the bucket to copy to
    #[arg(long, value_name = "DIR|URL", required_unless_present = "at", conflicts_with = "at")]
    to: Option<PathBuf>,
    /// Database for the index of the destination
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// If the destination is a bucket: its folder on this machine, for the index unless that is in a database
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Only this cache, and the tokens that are for it [default: all; with --at, the one at the URL]
    #[arg(long, value_name = "NAME")]
    cache: Option<CacheName>,
    #[command(flatten)]
    at: AtArgs,
    /// With --at: the name of a [[destination]] of the server
    #[arg(long, value_name = "NAME", requires = "at", required_unless_present = "to")]
    destination: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn migrate(args: MigrateArgs) -> Result<(), Failure> {
    let MigrateArgs { from, from_database, from_cache_dir, to, database, cache_dir, cache, at, destination, json } =
        args;
    let output = OutputArgs { quiet: false, json };
    let (Some(from), Some(to)) = (from, to) else {
        let data = DataArgs::named_explicitly(PathBuf::new(), None, None);
        let place = AdministeredArgs { place: AdminTargetArgs { data, at }, cache }.open()?;
        let (copied, ended) = jobs::perform(&place, "migrate", &json!({"to": destination}), (output, KEPT))?;
        ended?;
        show(copied, json);
        return Ok(());
    };
    let from = DataArgs::named_explicitly(from, from_database, from_cache_dir).open()?;
    let to = DataArgs::named_explicitly(to, database, cache_dir).create()?;
    if from.path() == to.path() || is_same_folder(&from, &to) {
        return Err(Failure::usage(format!(
            "option --to: '{}' is the source: name another place",
            to.path().display()
        )));
    }
    let (done, ended) = watched(output, (KEPT, "continues"), |work| {
        from.migrate_to(&to, cache.as_ref(), &administrator(), work).map_err(Failure::runtime)
    })?;
    ended?;
    to.wait_until_noticed();
    show(done.to_value(), json);
    Ok(())
}

fn show(copied: Value, is_json: bool) {
    if !is_json {
        let [tokens, pins] = ["tokens", "pins"].map(|name| number(&copied, name).unwrap_or(0));
        note!("copied {} and {}", counted(tokens, "token"), counted(pins, "pin"));
    }
    export::show(copied, is_json);
    if !is_json {
        note!("what was pushed to the source meanwhile may be missing: stop its server, and copy again");
    }
}

/// Whether both are one folder under two names.
fn is_same_folder(one: &Data, other: &Data) -> bool {
    let real = |data: &Data| data.path().canonicalize().ok();
    real(one).is_some() && real(one) == real(other)
}
