//! `narval cache`: maintains a writable cache, also while its server runs.

mod check;

use clap::Subcommand;
use narval_cache::written::{COLLECT_GRACE, CollectOptions, Hold, UNFINISHED_GRACE};
use serde_json::json;

use crate::Failure;
use crate::args::client::human_bytes;
use crate::args::data::{CacheArgs, DataArgs, administrator, ago, ahead, hash_part};
use crate::ui::output::{counted, note, out, paths};

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
    /// would be removed and why.
    #[command(after_help = "Example:\n  narval cache gc --dry-run")]
    Gc {
        #[command(flatten)]
        cache: CacheArgs,
        /// Show what would be removed, without removing it
        #[arg(long)]
        dry_run: bool,
        /// Also delete NARs without a path that were not used for ten minutes, for a full disk
        #[arg(long)]
        unfinished: bool,
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
        after_help = "Examples:\n  narval cache delete /nix/store/…-with-a-secret\n  narval cache delete /nix/store/…-with-a-secret --referrers"
    )]
    Delete {
        #[command(flatten)]
        cache: CacheArgs,
        /// Store path: in full, HASH-NAME, or only the hash part
        #[arg(value_name = "PATH")]
        path: String,
        /// Also delete all paths that refer to it, directly or through others, whatever pins them
        #[arg(long)]
        referrers: bool,
    },
    /// Show the size of each cache
    #[command(after_help = "Example:\n  narval cache stats")]
    Stats {
        #[command(flatten)]
        data: DataArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the paths of a cache
    #[command(after_help = "Example:\n  narval cache list")]
    List {
        #[command(flatten)]
        cache: CacheArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show which pin or use keeps a path
    #[command(after_help = "Example:\n  narval cache why /nix/store/…-glibc-2.40")]
    Why {
        #[command(flatten)]
        cache: CacheArgs,
        /// Store path: in full, HASH-NAME, or only the hash part
        #[arg(value_name = "PATH")]
        path: String,
    },
    /// Check the index against the files
    Fsck(check::FsckArgs),
    /// Print the data that is only in the index: settings, token hashes, pins
    #[command(after_help = "Example:\n  narval cache export > saved.json")]
    Export {
        #[command(flatten)]
        data: DataArgs,
    },
    /// Restore the output of `narval cache export`
    #[command(after_help = "Example:\n  narval cache import saved.json")]
    Import {
        #[command(flatten)]
        data: DataArgs,
        /// The file
        #[arg(value_name = "FILE")]
        file: std::path::PathBuf,
    },
}

/// Runs `narval cache`.
///
/// # Errors
/// If the data folder cannot be used, or a path does not exist.
pub fn run(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Gc { cache, dry_run, unfinished, json } => gc(&cache, dry_run, unfinished, json),
        Command::Delete { cache, path, referrers } => delete(&cache, &path, referrers),
        Command::Stats { data, json } => stats(&data, json),
        Command::List { cache, json } => list(&cache, json),
        Command::Why { cache, path } => why(&cache, &path),
        Command::Fsck(args) => check::fsck(&args),
        Command::Export { data } => {
            out!("{}", data.open()?.export().map_err(Failure::runtime)?);
            Ok(())
        }
        Command::Import { data, file } => check::import(&data, &file),
    }
}

fn gc(args: &CacheArgs, dry_run: bool, unfinished: bool, json: bool) -> Result<(), Failure> {
    let (data, cache) = args.open()?;
    if let Some(warning) = cache.settings().warning() {
        note!("narval: {warning}");
    }
    let grace = if unfinished { UNFINISHED_GRACE } else { COLLECT_GRACE };
    let options = CollectOptions { dry_run, grace, ..CollectOptions::default() };
    let collected = cache.collect(&options, &administrator()).map_err(Failure::runtime)?;
    if json {
        let forgotten = collected.forgotten.iter();
        let paths: Vec<_> =
            forgotten.map(|path| json!({"path": path.path, "used": path.used, "forSize": path.for_size})).collect();
        out!(
            "{}",
            json!({"v": 1, "paths": paths, "kept": collected.kept, "files": collected.files, "bytes": collected.bytes,
                "dryRun": dry_run})
        );
    } else {
        for path in &collected.forgotten {
            let why = if path.for_size { "the cache is too large" } else { "retention" };
            out!("{}  last used {} ({why})", path.path, ago(path.used));
        }
        let forgotten = paths(collected.forgotten.len());
        let (kept, bytes) = (collected.kept, human_bytes(collected.bytes));
        let files = counted(collected.files, "NAR");
        if dry_run {
            note!("would remove {forgotten} and keep {kept}; would delete {files} without a path ({bytes})");
        } else {
            note!("removed {forgotten}, kept {kept}; deleted {files} without a path ({bytes})");
        }
    }
    data.wait_until_noticed();
    Ok(())
}

fn delete(args: &CacheArgs, path: &str, referrers: bool) -> Result<(), Failure> {
    let (data, cache) = args.open()?;
    let part = hash_part(path, &cache.settings().store_dir)?;
    let deleted = cache.delete(&part, referrers, &administrator()).map_err(Failure::usage)?;
    data.wait_until_noticed();
    let (gone, files) = (paths(deleted.paths.len()), counted(deleted.files, "NAR"));
    note!("deleted {gone} and {files} ({})", human_bytes(deleted.bytes));
    Ok(())
}

fn stats(args: &DataArgs, json: bool) -> Result<(), Failure> {
    for cache in args.open()?.caches().map_err(Failure::runtime)? {
        let (usage, settings) = (cache.usage().map_err(Failure::runtime)?, cache.settings());
        let name = cache.name();
        if json {
            out!(
                "{}",
                json!({"cache": name.as_str(), "paths": usage.paths, "files": usage.files, "bytes": usage.bytes,
                    "smallBytes": usage.small_bytes,
                    "retentionDays": settings.retention_days, "sizeMax": settings.size_max, "quota": settings.quota,
                    "public": settings.public})
            );
            continue;
        }
        let retention = settings.retention_days.map_or_else(|| "forever".to_owned(), |days| format!("for {days} days"));
        let (nars, small) = (human_bytes(usage.bytes), human_bytes(usage.small_bytes));
        out!(
            "{name}: {}, {}, {nars}, {small} of logs and the like, kept {retention}",
            paths(usage.paths),
            counted(usage.files, "NAR")
        );
    }
    Ok(())
}

fn list(args: &CacheArgs, json: bool) -> Result<(), Failure> {
    for path in args.open()?.1.list().map_err(Failure::runtime)? {
        if json {
            out!("{}", json!({"path": path.path, "used": path.used, "fileSize": path.file_size}));
        } else {
            out!("{}  {}  used {}", path.path, human_bytes(path.file_size), ago(path.used));
        }
    }
    Ok(())
}

fn why(args: &CacheArgs, path: &str) -> Result<(), Failure> {
    let (_, cache) = args.open()?;
    let part = hash_part(path, &cache.settings().store_dir)?;
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
