//! `narval cache`: maintains a writable cache, also while its server runs.

pub mod audit;
mod backup;
mod caches;
mod check;
mod export;
pub(crate) mod jobs;
mod migrate;
mod recompress;
mod sign;

use std::time::{Duration, Instant};

use clap::Subcommand;
use narval_http::Method;
use narval_keep::{
    COLLECT_GRACE, Cache, CacheStats, CollectOptions, Collected, Data, Hold, RejectionKind, UNFINISHED_GRACE,
};
use serde_json::{Value, json};

use crate::args::administered::{
    AdminTarget, AdminTargetArgs, AdministeredArgs, AdministeredCache, escaped, number, path_of, text,
};
use crate::args::client::human_bytes;
use crate::args::data::{DataArgs, WritableCacheArgs, administrator, ago, ahead};
use crate::ui::failure::Failure;
use crate::ui::json;
use crate::ui::output::{counted, note, out, paths};
use crate::ui::output_args::OutputArgs;
use crate::ui::progress::watched;
use crate::values::time::parse_time;

/// How long `gc` waits for another collection.
const GC_WAIT: Duration = Duration::from_secs(600);

/// How often it looks whether that has ended.
const GC_LOOK_EVERY: Duration = Duration::from_millis(500);

/// Maintain a writable cache
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Remove paths that are neither pinned nor recently used
    ///
    /// Paths are hidden immediately. Their NARs are deleted a day later, because clients may still request them. NARs
    /// of an abandoned push are also deleted after a day, or with --unfinished after ten minutes. --dry-run shows what
    /// would be removed and why. One process collects at a time, on whichever machine: the command says who does, and waits. It can be
    /// interrupted: what was removed stays so, and the same command continues.
    #[command(after_help = "Examples:\n  narval cache gc --dry-run\n  narval cache gc --at https://cache.example.org")]
    Gc {
        #[command(flatten)]
        place: AdministeredArgs,
        /// Show what would be removed, without removing it
        #[arg(long)]
        dry_run: bool,
        /// Also delete NARs without a path that were not used for ten minutes, for a full disk
        #[arg(long)]
        unfinished: bool,
        /// How long to wait for another process that is collecting, such as `0s` [default: 10m]
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        wait: Option<Duration>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete a path and its NAR immediately
    ///
    /// Pins and leases do not protect it. A path that others in the cache refer to is only deleted together with them, with --referrers: without,
    /// nothing is deleted, and the error names them. Clients remember the path for up to 30 days: to push it again they need 'nix copy
    /// --refresh'.
    #[command(
        after_help = "Examples:\n  narval cache delete /nix/store/…-with-a-secret\n  narval cache delete /nix/store/…-with-a-secret --referrers\n  narval cache delete with-a-secret --at https://cache.example.org"
    )]
    Delete {
        #[command(flatten)]
        place: AdministeredArgs,
        /// Store path: in full, HASH-NAME, only the hash part, where it is installed, or a symlink to any of these; or its name, if one path of
        /// the cache has it
        #[arg(value_name = "PATH")]
        path: String,
        /// Also delete all paths that refer to it, directly or through others, whatever pins them
        #[arg(long)]
        referrers: bool,
    },
    /// Create a cache, which the server then has below `/NAME`
    ///
    /// A running server has it within a second, and so have all servers of the same database. Its settings are in the data, not in the configuration file. If it
    /// exists, nothing changes.
    #[command(
        after_help = "Examples:\n  narval cache create team\n  narval cache create team --set public=true --set retentionDays=30 \\\n    --at https://cache.example.org"
    )]
    Create(caches::NamedArgs),
    /// Show or change the settings of a cache
    ///
    /// What the configuration file says of a cache comes back when that is read.
    #[command(
        after_help = "Examples:\n  narval cache settings team\n  narval cache settings team --set quota=500000000000 \\\n    --at https://cache.example.org"
    )]
    Settings(caches::NamedArgs),
    /// Delete a cache that 'create' has created, with everything in it
    ///
    /// No server has it from now on. A server removes what is in it, as a job; then its name can be used again.
    #[command(after_help = "Example:\n  narval cache destroy team --at https://cache.example.org")]
    Destroy(caches::DestroyArgs),
    /// Show the size of each cache
    #[command(after_help = "Examples:\n  narval cache stats\n  narval cache stats --at https://cache.example.org")]
    Stats {
        #[command(flatten)]
        place: AdminTargetArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the paths of a cache
    #[command(after_help = "Examples:\n  narval cache list\n  narval cache list --at https://cache.example.org")]
    List {
        #[command(flatten)]
        place: AdministeredArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show who did what
    ///
    /// Uploads, commits, deletions, collections, pins, tokens and sign-ins, oldest first, with those that were refused. With the index in a
    /// database, of all its servers, up to a second ago, and for 400 days; else what is in 'audit.jsonl' of the data folder.
    Audit(audit::AuditArgs),
    /// Show which pin or use keeps a path
    #[command(after_help = "Example:\n  narval cache why /nix/store/…-glibc-2.40")]
    Why {
        #[command(flatten)]
        cache: WritableCacheArgs,
        /// Store path: in full, HASH-NAME, only the hash part, where it is installed, or a symlink to any of these; or its name, if one path of
        /// the cache has it
        #[arg(value_name = "PATH")]
        path: String,
    },
    /// Sign paths that are in the cache without its signature
    ///
    /// For paths that were pushed with a token without --sign, and after a key was added. Paths that have the signature are left alone, so the
    /// command can be interrupted and run again. Only sign what you trust: clients accept every path that is signed.
    Sign(sign::SignArgs),
    /// Check the index against the files
    ///
    /// It can be interrupted: what --repair has repaired stays so, and the same command starts from the beginning. So does --rebuild, and until it is
    /// complete, the index of before is in force.
    Fsck(check::FsckArgs),
    /// List, watch and cancel jobs of a server: long work that it does by itself
    ///
    /// 'narval cache gc', 'fsck', 'recompress', 'export' and 'migrate' and 'narval key rotate' start them, with --at. A job goes on after a restart, or at another server of the same data; its result is known for a week.
    #[command(
        after_help = "Examples:\n  narval cache jobs --at https://cache.example.org\n  narval cache jobs --cancel 0a1b2c3d4f5g6h7i --at https://cache.example.org"
    )]
    Jobs(jobs::JobsArgs),
    /// Save all caches in another folder or bucket
    ///
    /// With settings, hashes of tokens, pins, releases and the audit log, and while servers run: what was pushed before it begins is in it. Only what is new since
    /// the last backup in the same place is written. A backup is whole, or not there: when it was interrupted, the same command continues.
    Backup(backup::BackupArgs),
    /// Restore a backup into an empty place
    ///
    /// Onto either database and either storage, whatever the backup is of. Every NAR is verified. Until it is complete, nothing can use the place: when it was
    /// interrupted, the same command starts again. A backup without NARs is restored beside the files that are there, which are all read.
    Restore(backup::RestoreArgs),
    /// Recompress the NARs of a cache to zstd
    ///
    /// Those in zstd are left alone. The old files stay for 30 days, because clients remember their names. It can be interrupted, and run again.
    Recompress(recompress::RecompressArgs),
    /// Copy a cache to a plain binary cache, or print the data that is only in the index
    ///
    /// With --destination, everything that clients read is copied to a folder that Nix and web servers read, or to a bucket, below the cache's name. Every NAR is compared with
    /// its hash. It can be interrupted, and run again: it copies what is missing or has changed, and removes nothing. Without --destination, settings, token hashes, pins and releases are printed.
    Export(export::ExportArgs),
    /// Restore the output of `narval cache export`
    #[command(after_help = "Example:\n  narval cache import saved.json")]
    Import {
        #[command(flatten)]
        data: DataArgs,
        /// The file
        #[arg(value_name = "FILE")]
        file: std::path::PathBuf,
    },
    /// Copy all caches from a folder to a bucket, or from a bucket to a folder
    ///
    /// With settings, tokens and pins, but without the audit log. Every NAR is verified, and the source is not changed. Run again, the command
    /// copies what is missing: first while the source's server runs, which may take long, then once more after it was stopped.
    Migrate(migrate::MigrateArgs),
}

/// Runs `narval cache`.
///
/// # Errors
/// If the data folder cannot be used, or a path does not exist.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Gc { place, dry_run, unfinished, wait, json } => {
            gc(&place, dry_run, unfinished, wait.unwrap_or(GC_WAIT), json)
        }
        Command::Delete { place, path, referrers } => delete(&place, &path, referrers),
        Command::Create(args) => caches::create(&args),
        Command::Settings(args) => caches::settings(&args),
        Command::Destroy(args) => caches::destroy(&args),
        Command::Stats { place, json } => stats(&place, json),
        Command::List { place, json } => list(&place.open()?, json),
        Command::Audit(args) => audit::audit(&args),
        Command::Why { cache, path } => why(&cache, &path),
        Command::Sign(args) => sign::sign(&args),
        Command::Fsck(args) => check::fsck(&args),
        Command::Jobs(args) => jobs::run(&args),
        Command::Backup(args) => backup::backup(&args),
        Command::Restore(args) => backup::restore(&args),
        Command::Recompress(args) => recompress::recompress(&args),
        Command::Export(args) => export::export(&args),
        Command::Import { data, file } => check::import(&data, &file),
        Command::Migrate(args) => migrate::migrate(args),
    }
}

/// Collects as soon as no other process does.
fn collect(cache: &Cache, options: &CollectOptions<'_>, wait: Duration) -> Result<Collected, Failure> {
    let (begun, mut is_reported) = (Instant::now(), false);
    loop {
        let rejection = match cache.collect(options, &administrator()) {
            Err(rejection) if rejection.kind == RejectionKind::Busy => rejection,
            result => return result.map_err(Failure::runtime),
        };
        // Nobody, if it has just ended.
        let collector = cache.collector().map_err(Failure::runtime)?;
        if begun.elapsed() >= wait {
            let who = collector.map_or_else(|| rejection.to_string(), |who| format!("{who} is collecting"));
            return Err(Failure::runtime(format!(
                "{who}: nothing was removed; wait longer with '--wait 1h', or try again"
            )));
        }
        if let Some(who) = collector.filter(|_| !is_reported) {
            note!("{who} is collecting, or was killed less than two minutes ago: waiting");
            is_reported = true;
        }
        options.work.check().map_err(Failure::runtime)?;
        std::thread::sleep(GC_LOOK_EVERY);
    }
}

fn gc(args: &AdministeredArgs, dry_run: bool, unfinished: bool, wait: Duration, json: bool) -> Result<(), Failure> {
    let place = args.open()?;
    let output = OutputArgs { quiet: false, json };
    let (collected, ended) = match &place.place {
        AdminTarget::Local(data) => {
            let cache = place.of(data)?;
            if let Some(warning) = cache.settings().warning() {
                note!("narval: {warning}");
            }
            let grace = if unfinished { UNFINISHED_GRACE } else { COLLECT_GRACE };
            let (collected, ended) = watched(output, ("what was removed stays so", "continues"), |work| {
                collect(&cache, &CollectOptions { dry_run, grace, work, ..CollectOptions::default() }, wait)
            })?;
            data.wait_until_noticed();
            (collected.to_value(dry_run, usize::MAX), ended)
        }
        AdminTarget::Remote(_) => {
            let options = json!({"dryRun": dry_run, "unfinished": unfinished});
            jobs::perform(&place, "gc", &options, (output, "what was removed stays so"))?
        }
    };
    let list = collected.get("paths").and_then(Value::as_array);
    let [removed, kept, files, bytes] =
        ["removed", "kept", "files", "bytes"].map(|name| number(&collected, name).unwrap_or(0));
    if json {
        json::summary(collected);
        return ended;
    }
    for path in list.into_iter().flatten() {
        let for_size = path.get("forSize").and_then(Value::as_bool).unwrap_or(false);
        let why = if for_size { "the cache is too large" } else { "retention" };
        out!("{}  last used {} ({why})", text(path, "path"), ago(number(path, "used").unwrap_or(0)));
    }
    let (removed, files, bytes) = (paths(removed), counted(files, "NAR"), human_bytes(bytes));
    if dry_run {
        note!("would remove {removed} and keep {kept}; would delete {files} without a path ({bytes})");
    } else {
        note!("removed {removed}, kept {kept}; deleted {files} without a path ({bytes})");
    }
    ended
}

fn delete(args: &AdministeredArgs, path: &str, referrers: bool) -> Result<(), Failure> {
    let place = args.open()?;
    let path = format!("paths/{}?referrers={referrers}", place.find(path)?);
    let deleted = place.ask(&Method::DELETE, &path, None)?;
    let [gone, files, bytes] = ["paths", "files", "bytes"].map(|name| number(&deleted, name).unwrap_or(0));
    note!("deleted {} and {} ({})", paths(gone), counted(files, "NAR"), human_bytes(bytes));
    Ok(())
}

fn stats(args: &AdminTargetArgs, json: bool) -> Result<(), Failure> {
    let place = args.open()?;
    let mut names = Vec::new();
    place.each("caches", |cache| {
        names.push(text(&cache, "name"));
        Ok(())
    })?;
    for name in &names {
        if let AdminTarget::Local(data) = &place {
            with_keys(args, data, name)?;
        }
        let stats = place.ask(&Method::GET, &format!("caches/{}/stats", escaped(name)), None)?;
        if json {
            json::event("cache", stats);
        } else {
            show_stats(&serde_json::from_value(stats).map_err(Failure::runtime)?);
        }
    }
    if json {
        json::summary(json!({"caches": names.len()}));
    }
    Ok(())
}

/// Without its keys, what they have not signed cannot be told.
fn with_keys(args: &AdminTargetArgs, data: &Data, name: &str) -> Result<(), Failure> {
    let name = name.parse().map_err(Failure::runtime)?;
    let keys = args
        .data
        .sign_keys(&name)
        .map_err(|failure| note!("narval: paths without a signature are not counted: {failure}"));
    if let Some(cache) = data.cache(&name).map_err(Failure::runtime)? {
        cache.set_sign_keys(keys.unwrap_or_default());
    }
    Ok(())
}

fn show_stats(of: &CacheStats) {
    let retention = of.retention_days.map_or_else(|| "forever".to_owned(), |days| format!("for {days} days"));
    let unsigned = match of.unsigned {
        Some(unsigned @ 1..) => format!("; {unsigned} not signed by its keys ('narval cache sign --all' signs them)"),
        _ => String::new(),
    };
    out!(
        "{}: {}, {}, {}, {} of logs and the like, kept {retention}{unsigned}",
        of.cache,
        paths(of.paths),
        counted(of.files, "NAR"),
        human_bytes(of.bytes),
        human_bytes(of.small_bytes)
    );
}

fn list(place: &AdministeredCache, json: bool) -> Result<(), Failure> {
    let listed = place.each("paths?limit=1000", |path| {
        if json {
            let [used, size] = ["used", "fileSize"].map(|name| number(&path, name));
            json::event("path", json!({"path": text(&path, "path"), "used": used, "fileSize": size}));
        } else {
            let [used, size] = ["used", "fileSize"].map(|name| number(&path, name).unwrap_or(0));
            out!("{}  {}  used {}", text(&path, "path"), human_bytes(size), ago(used));
        }
        Ok(())
    })?;
    if json {
        json::summary(json!({"paths": listed}));
    }
    Ok(())
}

fn why(args: &WritableCacheArgs, path: &str) -> Result<(), Failure> {
    let (_, cache) = args.open()?;
    let part = path_of(&cache, path)?;
    let why = cache.why(&part).map_err(Failure::runtime)?;
    let why = why.ok_or_else(|| Failure::usage(format!("'{path}' is not in the cache '{}'", cache.name())))?;
    let hold = match why.hold {
        Hold::Pin(name) => format!("pin '{name}'"),
        Hold::Lease(until) => format!("a client was told that the cache has it; ends {}", ahead(until)),
        Hold::Used(time) => format!("pushed or requested {}", ago(time)),
    };
    out!("{hold}");
    for (depth, path) in why.chain.iter().enumerate() {
        out!("{}└ {path}", "  ".repeat(depth));
    }
    if !why.kept {
        out!("that is too long ago: the next 'narval cache gc' removes it");
    }
    Ok(())
}
