//! `narval cache migrate`.

use std::path::PathBuf;

use narval_keep::{Data, Migrated};
use serde_json::json;

use crate::Failure;
use crate::args::client::{OutputArgs, human_bytes};
use crate::args::data::{DataArgs, administrator};
use crate::ui::json;
use crate::ui::output::{counted, note, paths};
use crate::ui::progress::watched;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval cache migrate --from /var/lib/narval --to s3://cache \\
    --database postgres://db/narval --cache-dir /var/cache/narval
  narval cache migrate --from s3://cache --from-cache-dir /var/cache/narval \\
    --to /var/lib/narval")]
pub(super) struct MigrateArgs {
    /// Data folder or address of the bucket (`s3://…`) to copy from; its server may be running
    #[arg(long, value_name = "DIR|URL")]
    from: PathBuf,
    /// Database with the index of the source, if it is in one
    #[arg(long, value_name = "URL")]
    from_database: Option<String>,
    /// If the source is a bucket: its folder on this machine, with the index unless that is in a database
    #[arg(long, value_name = "DIR")]
    from_cache_dir: Option<PathBuf>,
    /// Data folder or address of the bucket to copy to
    #[arg(long, value_name = "DIR|URL")]
    to: PathBuf,
    /// Database for the index of the destination
    #[arg(long, value_name = "URL")]
    database: Option<String>,
    /// If the destination is a bucket: its folder on this machine, for the index unless that is in a database
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn migrate(args: MigrateArgs) -> Result<(), Failure> {
    let MigrateArgs { from, from_database, from_cache_dir, to, database, cache_dir, json } = args;
    let from = DataArgs::named_explicitly(from, from_database, from_cache_dir).open()?;
    let to = DataArgs::named_explicitly(to, database, cache_dir).create()?;
    if from.path() == to.path() || is_same_folder(&from, &to) {
        return Err(Failure::usage(format!(
            "option --to: '{}' is the source: name another place",
            to.path().display()
        )));
    }
    let output = OutputArgs { quiet: false, json };
    let (done, ended) = watched(output, ("what was copied is kept", "continues"), |work| {
        from.migrate_to(&to, &administrator(), work).map_err(Failure::runtime)
    })?;
    ended?;
    to.wait_until_noticed();
    let Migrated { paths: copied, present, nars, bytes, files, tokens, pins } = done;
    if json {
        json::summary(json!({"paths": copied, "present": present, "nars": nars, "bytes": bytes, "files": files,
            "tokens": tokens, "pins": pins}));
        return Ok(());
    }
    note!(
        "copied {} with {} ({}), {}, {} and {}; {present} were there already",
        paths(copied),
        counted(nars, "NAR"),
        human_bytes(bytes),
        counted(files, "other file"),
        counted(tokens, "token"),
        counted(pins, "pin")
    );
    note!("what was pushed to the source meanwhile may be missing: stop its server, and run the same command again");
    Ok(())
}

/// Whether both are one folder under two names.
fn is_same_folder(one: &Data, other: &Data) -> bool {
    let real = |data: &Data| data.path().canonicalize().ok();
    real(one).is_some() && real(one) == real(other)
}
