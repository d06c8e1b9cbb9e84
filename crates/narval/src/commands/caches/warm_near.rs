//! `narval warm --through URL`: has a near cache fetch at night what will be needed: the newest revision of a release, packages of a channel, or paths.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use narval_cache::CacheFile;
use narval_client::{Client, Request, Url, clock};
use narval_install::follow::Window;
use narval_install::{Closure, Destination, Wanted, human_bytes};
use narval_nix::{NarInfo, StoreDir, StorePath};
use narval_push::watch::Stop;
use narval_store::StoreConfig;
use parking_lot::Mutex;
use sd_notify::NotifyState;

use crate::args::channels::{Lookup, NameArgs};
use crate::args::client::{ClientArgs, parse_cache};
use crate::server::notify_systemd;
use crate::ui::failure::Failure;
use crate::ui::output::paths;
use crate::ui::signals;
use crate::values::time::parse_time;

/// NARs that are fetched at once: others use the same line.
const THREADS: usize = 2;
/// The maximum size of a narinfo.
const NARINFO_LEN_MAX: u64 = 1 << 20;
/// The maximum number of paths that are remembered as fetched.
const FETCHED_MAX: usize = 1 << 20;
const BUFFER_LEN: usize = 64 * 1024;

/// What is fetched through a near cache, and when.
#[derive(Debug, clap::Args)]
pub(super) struct ThroughArgs {
    /// Fetch PATHs with their closures through this near cache, which keeps them. They may be releases (@web) and names of packages in --channel: what is
    /// new of them is fetched each time
    #[arg(long, value_name = "URL", conflicts_with_all = ["all", "deltas_from", "store"])]
    pub(super) through: Option<String>,
    /// Fetch only on these days, or at these times of UTC: 'Mon-Fri 02:00-05:00', 'Sat,Sun' or '22:00-04:00'. Repeatable
    #[arg(long, value_name = "WINDOW", requires = "through")]
    at: Vec<Window>,
    /// Time between two looks
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_time, requires = "through")]
    every: Duration,
    /// Look once, and exit
    #[arg(long, requires = "through")]
    once: bool,
    /// Channel in which names are looked up [default: nixos-unstable]
    #[arg(long, value_name = "CHANNEL", requires = "through")]
    channel: Option<String>,
}

/// The options of commands that look things up in caches, with their defaults.
#[derive(Debug, Parser)]
struct Usual {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    names: NameArgs,
}

/// What is fetched, and what was.
struct Warmer<'a> {
    near: Url,
    client: Arc<Client>,
    usual: Usual,
    what: &'a [String],
    /// A store without any path: what this machine has is fetched, too.
    destination: Destination,
    fetched: HashSet<StorePath>,
}

/// Runs `narval warm --through`.
///
/// # Errors
/// With --once, if something is not found or cannot be fetched.
pub(super) fn run(args: &ThroughArgs, through: &str, what: &[String]) -> Result<(), Failure> {
    let near = parse_cache(through)?;
    let mut words = vec!["warm", "--from", through];
    words.extend(args.channel.iter().flat_map(|channel| ["--channel", channel]));
    let usual = Usual::try_parse_from(words).map_err(|error| Failure::usage(error.to_string()))?;
    let nothing = tempfile::tempdir().map_err(|error| Failure::runtime(format!("temporary folder: {error}")))?;
    let destination = Destination::new(StoreConfig::for_root(nothing.path()).map_err(Failure::usage)?);
    let client = usual.client.caches.client()?;
    let mut warmer = Warmer { near, client, usual, what, destination, fetched: HashSet::new() };
    let stop = Stop::default();
    signals::stop_on_signal(&stop, "what was fetched is kept", || false)?;
    notify_systemd(&[NotifyState::Ready]);
    loop {
        let is_time = args.at.is_empty() || args.at.iter().any(|window| window.has(clock::now()));
        let done = if is_time { warmer.round(&stop) } else { Ok("waiting for the time to fetch".to_owned()) };
        match done {
            Ok(line) => {
                notify_systemd(&[NotifyState::Status(&line)]);
                tracing::info!("{line}");
            }
            Err(failure) if args.once => return Err(failure),
            Err(failure) => tracing::error!("{failure}"),
        }
        if !args.once {
            stop.pause(args.every);
        }
        if args.once || stop.is_stopped() {
            return Ok(());
        }
    }
}

impl Warmer<'_> {
    /// Fetches what is new.
    fn round(&mut self, stop: &Stop) -> Result<String, Failure> {
        let wanted = self.wanted()?;
        let options = self.usual.client.caches.options(None, false)?;
        let closure = Closure::find(&self.destination, &options, &self.client, &wanted)?;
        let new: Vec<&StorePath> = closure.nodes.keys().filter(|path| !self.fetched.contains(*path)).collect();
        let (queue, results) = (Mutex::new(new.into_iter()), Mutex::new((Vec::new(), 0, None)));
        let store_dir = self.destination.store_dir();
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while !stop.is_stopped()
                        && let Some(path) = { queue.lock().next() }
                    {
                        let fetched = fetch(&self.client, &self.near, path, store_dir);
                        let mut results = results.lock();
                        match fetched {
                            Ok(bytes) => {
                                results.0.push(path.clone());
                                results.1 += bytes;
                            }
                            Err(failure) => {
                                tracing::warn!("{path}: {failure}");
                                results.2 = Some(failure);
                            }
                        }
                    }
                });
            }
        });
        let (fetched, bytes, failed) = results.into_inner();
        let count = fetched.len();
        if self.fetched.len() + count > FETCHED_MAX {
            self.fetched.clear();
        }
        self.fetched.extend(fetched);
        failed.map_or_else(|| Ok(format!("{} fetched, {}", paths(count), human_bytes(bytes))), Err)
    }

    /// The paths of releases and names as of now.
    fn wanted(&self) -> Result<Vec<Wanted>, Failure> {
        let mut lookup = Lookup::new(&self.destination, &self.usual.client, &self.usual.names);
        Ok(lookup.meant(self.what)?.into_iter().map(|meant| meant.wanted).collect())
    }
}

/// Fetches a NAR, and drops its bytes: they are kept where they come from.
fn fetch(client: &Arc<Client>, near: &Url, path: &StorePath, store_dir: &StoreDir) -> Result<u64, Failure> {
    let absent = || Failure::Coded(3, "the near cache does not have it".to_owned());
    let url = near.child(&format!("{}.narinfo", path.hash_part())).map_err(Failure::runtime)?;
    let text =
        client.small_answer(&Request::get(&url), NARINFO_LEN_MAX).map_err(Failure::runtime)?.ok_or_else(absent)?;
    let info = NarInfo::parse(&text, store_dir).map_err(Failure::runtime)?;
    let url = near.child(&info.url).map_err(Failure::runtime)?;
    let mut file = CacheFile::open(client, &url).map_err(Failure::runtime)?.ok_or_else(absent)?;
    let (mut buffer, mut bytes) = (vec![0; BUFFER_LEN], 0);
    loop {
        match file.read_some(&mut buffer).map_err(Failure::runtime)? {
            0 => return Ok(bytes),
            read => bytes += read as u64,
        }
    }
}
