//! `narval cache backup` and `restore`.

use std::num::NonZeroUsize;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use narval_keep::{BackedUp, BackupOptions, BackupSummary, Data, Removed, Restored, StorageLocation};
use serde_json::json;

use crate::args::client::human_bytes;
use crate::args::data::{self, DataArgs, administrator, ago};
use crate::config::location::place_of;
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{counted, note, out, paths};
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::watched;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval cache backup /srv/backup
  narval cache backup /srv/backup --keep 30
  narval cache backup 's3://backups/cache?region=eu-central-1' --with-keys
  narval cache backup /srv/settings --without-nars")]
pub(super) struct BackupArgs {
    /// Folder or address of the bucket (`s3://…`) for backups; the same one each time, so that only what is new is written
    #[arg(value_name = "TO")]
    to: PathBuf,
    #[command(flatten)]
    data: DataArgs,
    /// Leave out the bytes of NARs and logs: the index and the settings alone
    #[arg(long)]
    without_nars: bool,
    /// Also save the secret keys that caches have in the index: whoever reads the backup can sign with them
    #[arg(long)]
    with_keys: bool,
    /// Remove a backup, and the NARs that only it needs, when N newer ones have been there for a day [default: all are kept]
    #[arg(long, value_name = "N")]
    keep: Option<NonZeroUsize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  narval cache restore /srv/backup --list
  narval cache restore /srv/backup --data /var/lib/narval
  narval cache restore 's3://backups/cache' --data s3://cache \\
    --database postgres://db/narval --cache-dir /var/cache/narval")]
pub(super) struct RestoreArgs {
    /// Folder or address of the bucket (`s3://…`) with backups
    #[arg(value_name = "FROM")]
    from: PathBuf,
    #[command(flatten)]
    data: DataArgs,
    /// Which backup, as --list shows it [default: the last one]
    #[arg(long, value_name = "NAME")]
    backup: Option<String>,
    /// List the backups
    #[arg(long, conflicts_with = "backup")]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The place of backups; a bucket needs a folder on this machine for what is on its way.
fn place(named: &Path, local: &Path) -> Result<StorageLocation, Failure> {
    place_of(named, Some(local.to_owned()), None)
}

pub(super) fn backup(args: &BackupArgs) -> Result<(), Failure> {
    let data = args.data.open()?;
    let to = place(&args.to, data.folder())?;
    let options = BackupOptions { with_nars: !args.without_nars, with_keys: args.with_keys, keep: args.keep };
    let output = OutputArgs { quiet: false, json: args.json };
    let (done, ended) = watched(output, ("there is no new backup", "continues"), |work| {
        data.backup(&to, options, work).map_err(Failure::runtime)
    })?;
    ended?;
    let BackedUp { backup, nars, nar_bytes, rows, files, deleted, keys_left_out, problems, removed } = done;
    if args.json {
        json::summary(
            json!({"backup": backup.to_value(), "nars": nars, "bytes": nar_bytes, "rows": rows, "files": files,
            "deleted": deleted, "keysLeftOut": keys_left_out, "problems": problems,
            "removed": {"backups": removed.backups, "nars": removed.nars, "bytes": removed.nar_bytes}}),
        );
    } else {
        problems.iter().for_each(|problem| out!("{problem}"));
        note!(
            "backup {}: {} ({}); new in it: {} ({}), {}",
            backup.id,
            paths(backup.paths),
            human_bytes(backup.bytes),
            counted(nars, "NAR"),
            human_bytes(nar_bytes),
            counted(files, "other file")
        );
        if removed != Removed::default() {
            let (backups, nars) = (counted(removed.backups, "old backup"), counted(removed.nars, "NAR"));
            note!("removed {backups}, and {nars} ({}) that no other one needs", human_bytes(removed.nar_bytes));
        }
        if deleted > 0 {
            note!("{} deleted meanwhile, and left out", paths(deleted));
        }
        if keys_left_out > 0 {
            note!("{} left out: --with-keys saves them", counted(keys_left_out, "secret key"));
        }
    }
    match problems.len() {
        0 => Ok(()),
        count => Err(Failure::runtime(format!(
            "the backup was made without {}, whose NARs are lost or damaged: 'narval cache fsck --contents' names them",
            paths(count as u64)
        ))),
    }
}

pub(super) fn restore(args: &RestoreArgs) -> Result<(), Failure> {
    if args.list {
        return list(args);
    }
    let data::DataLocation { storage, database } = args.data.place()?;
    let from = place(&args.from, storage.folder())?;
    let output = OutputArgs { quiet: false, json: args.json };
    let (restored, ended) = watched(output, ("nothing can use the place", "starts again"), |work| {
        let restored = Data::restore((&from, args.backup.as_deref()), &storage, database, &administrator(), work);
        Ok(restored.map_err(Failure::runtime)?.1)
    })?;
    ended?;
    let Restored { backup, copied, found } = restored;
    let restored = if backup.has_nars { copied.paths + copied.present } else { found.paths as u64 };
    if args.json {
        json::summary(
            json!({"backup": backup.to_value(), "paths": restored, "nars": copied.nars, "bytes": copied.bytes,
            "files": copied.files, "tokens": copied.tokens, "pins": copied.pins, "problems": found.problems}),
        );
        return Ok(());
    }
    found.problems.iter().for_each(|problem| out!("{problem}"));
    note!(
        "restored backup {} ({}): {}, {} and {}",
        backup.id,
        ago(backup.created),
        paths(restored),
        counted(copied.tokens, "token"),
        counted(copied.pins, "pin")
    );
    if !backup.has_keys {
        note!(
            "the backup has no secret keys: 'narval key rotate CACHE' makes one where a cache had its key in the index"
        );
    }
    Ok(())
}

fn list(args: &RestoreArgs) -> Result<(), Failure> {
    let local = std::env::temp_dir().join(narval_files::temporary_name("narval-"));
    let made = std::fs::DirBuilder::new().mode(0o700).create(&local);
    made.map_err(|error| Failure::of_file(&format!("'{}'", local.display()), &error))?;
    let backups = Data::backups(&place(&args.from, &local)?).map_err(Failure::runtime);
    // Nothing else is in it.
    std::fs::remove_dir_all(&local).ok();
    let backups = backups?;
    for backup in &backups {
        let BackupSummary { id, created, has_nars, paths: count, bytes, .. } = backup;
        if args.json {
            json::event("backup", backup.to_value());
        } else {
            let what = if *has_nars { human_bytes(*bytes) } else { "without NARs".to_owned() };
            out!("{id}  {}  {}, {what}", ago(*created), paths(*count));
        }
    }
    if args.json {
        json::summary(json!({"backups": backups.len()}));
    }
    Ok(())
}
