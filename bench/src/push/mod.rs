//! Pushing to a writable cache: the cost for a server, by replaying a recorded push, and the cost for
//! a client, given as a command. Beside them are the floors (hashing and decoding for the server, making and compressing NARs
//! for the client), nginx with its DAV module, and any other server that is named.

pub mod bare;
pub mod client_rows;
pub mod floor;
pub mod put;
pub mod record;
pub mod replay;
pub mod server_rows;
pub mod target;
pub mod trace;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::install::Client;
use crate::{Context, Result, failure};
use target::Target;

/// `narval-bench push-server`.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// Top-level store path of the closure to push (tools/make-closure makes one)
    #[arg(long, value_name = "PATH")]
    pub closure: String,
    /// A server to start, with {port}, {data} for an empty folder, and {token} for a file into which the command may write a
    /// token before the server listens (repeatable; nginx is always measured)
    #[arg(long, value_name = "NAME=COMMAND")]
    pub start: Vec<Target>,
    /// Compression of the NARs (repeatable) [default: none, zstd, xz]
    #[arg(long, value_name = "NAME")]
    pub compression: Vec<String>,
    /// Connections that push one closure together (repeatable) [default: 1, 8, 64]
    #[arg(long, value_name = "N")]
    pub connections: Vec<usize>,
    /// Concurrent clients, for the rows of memory and of reads
    #[arg(long, default_value_t = 64)]
    pub clients: usize,
    /// How fast each of them sends
    #[arg(long, default_value_t = 256 * 1024, value_name = "BYTES")]
    pub bytes_per_second: u64,
    /// How long they send, and how long narinfos are requested
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// Round trip to the server in milliseconds, added by the delaying proxy
    #[arg(long, default_value_t = 0)]
    pub round_trip_ms: u64,
    /// Work folder of the harness; it contains the servers' data folders
    #[arg(long, default_value = "target/bench-work", value_name = "DIR")]
    pub work: PathBuf,
    /// How often each row is run on each server
    #[arg(long, default_value_t = 3)]
    pub repetitions: usize,
    /// Only rows with this text in their title (repeatable)
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// The servers' processor (repeatable) [default: all]
    #[arg(long, value_name = "N")]
    pub server_cpu: Vec<usize>,
    /// The client's processor (repeatable) [default: all]
    #[arg(long, value_name = "N")]
    pub client_cpu: Vec<usize>,
    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// `narval-bench push-client`.
#[derive(Debug, Args)]
pub struct ClientArgs {
    /// A client: a shell command line with {url} of an empty cache, {path} to push, {dest} for an empty folder per
    /// run and {cache} for an empty folder that both runs share (repeatable)
    #[arg(long = "client", value_name = "NAME=COMMAND", required = true)]
    pub clients: Vec<Client>,
    /// Top-level store path of the closure
    #[arg(long, value_name = "PATH")]
    pub closure: String,
    /// The server to push to, as for push-server [default: nginx]
    #[arg(long, value_name = "NAME=COMMAND")]
    pub start: Option<Target>,
    /// Round trip to the cache in milliseconds, added by the delaying proxy
    #[arg(long, default_value_t = 0)]
    pub round_trip_ms: u64,
    /// Work folder of the harness
    #[arg(long, default_value = "target/bench-work", value_name = "DIR")]
    pub work: PathBuf,
    /// How often each client runs
    #[arg(long, default_value_t = 3)]
    pub repetitions: usize,
    /// Write all figures to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The closure of a path of the system's store, references first.
fn closure(top: &str) -> Result<Vec<String>> {
    let output = Command::new("nix-store").args(["--query", "--requisites", top]).env_remove("NIX_REMOTE").output();
    let output = output.context(|| "cannot start nix-store".to_owned())?;
    if !output.status.success() {
        return Err(failure!("nix-store: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// The work folder, created if it is missing.
fn work_folder(work: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(work).context(|| format!("cannot make {}", work.display()))?;
    std::fs::canonicalize(work).context(|| format!("cannot use {}", work.display()))
}

/// The ratio of `part` to `whole`, for a table.
fn times(part: f64, whole: f64) -> String {
    if part.is_finite() && whole > 0.0 { format!("{:>6.2}×", part / whole) } else { format!("{:>7}", "") }
}
