//! Installs paths with their closures.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use narval_cache::{BinaryCaches, TrustedNarInfo};
use narval_client::Client;
use narval_nix::StorePath;
use narval_store::Daemon;
use parking_lot::Mutex;

use crate::delta::{DeltaUse, Deltas};
use crate::fetch::FromCaches;
use crate::options::Options;
use crate::resolve::{Walk, check_cycles, closure};
use crate::space::Space;
use crate::unpack::{DOWNLOADS_MAX, ToStore};
use narval_cache::Wanted;
use narval_transfer::Destination;
use narval_transfer::{Cores, Transfer, transfer};
use narval_transfer::{Error, Progress};

/// One path of a plan.
#[derive(Clone, Debug)]
pub struct InstallItem {
    /// The path.
    pub path: StorePath,
    /// Its NAR's size in bytes.
    pub nar_size: u64,
    /// The size of its download in bytes, if the cache provides it.
    pub file_size: Option<u64>,
    /// The cache.
    pub cache: String,
    /// The path of the store to which the cache is asked for the difference. Only plans have it.
    pub delta_base: Option<StorePath>,
}

/// The result of an install, or of a plan.
#[derive(Debug, Default)]
pub struct Report {
    /// The requested paths.
    pub roots: Vec<StorePath>,
    /// The paths that were missing.
    pub planned: Vec<InstallItem>,
    /// The number of requested paths that were already valid.
    pub already: usize,
    /// Bytes downloaded.
    pub downloaded: u64,
    /// Paths fetched as deltas.
    pub deltas: u64,
    /// Bytes that they saved, compared with the files of the caches.
    pub saved: u64,
    /// Bytes of NARs unpacked.
    pub unpacked: u64,
    /// Requests sent.
    pub requests: u64,
    /// Connections opened.
    pub connections: u64,
    /// How long it took.
    pub elapsed: Duration,
}

/// Installs paths with their closures. If all of them are already valid, no cache is queried.
///
/// # Errors
/// The first failure, with the number of others. Completed paths are kept, and not fetched again.
pub fn install(
    destination: &Destination,
    options: &Options,
    client: &Arc<Client>,
    wanted: &[Wanted],
    progress: &Progress,
) -> Result<Report, Error> {
    let start = Instant::now();
    let (mut report, missing) = split_wanted(wanted, |one| destination.find_and_keep(one))?;
    if missing.is_empty() {
        if options.durable {
            destination.make_last()?;
        }
        report.elapsed = start.elapsed();
        return Ok(report);
    }
    let caches = open_caches(destination, options, client)?;
    let cores = Cores::new(options.cores);
    let deltas = deltas_of(destination, options);
    let source = FromCaches::new(&caches, &cores, progress).with_deltas(&deltas);
    report.planned = match destination.daemon() {
        Some(daemon) => through_daemon(destination, (&source, daemon), (&missing, options), progress)?,
        None => {
            let store = destination.open()?;
            store.remove_leftovers()?;
            let sink = ToStore { store: &store, durable: options.durable };
            into_store(destination, (&source, &sink), (&missing, options), progress)?
        }
    };
    if options.durable {
        destination.make_last()?;
    }
    report.roots.extend(roots_of(&missing, &report.planned));
    fill_report(&mut report, client, progress, start);
    Ok(report)
}

/// NARs are fetched while the closure is walked, if there is so much space that it will certainly fit.
fn into_store(
    destination: &Destination,
    (source, sink): (&FromCaches<'_>, &ToStore<'_>),
    (missing, options): (&[Wanted], &Options),
    progress: &Progress,
) -> Result<Vec<InstallItem>, Error> {
    let space = Space::new(destination, Some(sink.store.free_bytes()?));
    let all = Mutex::new(Vec::new());
    let transfer = Transfer::new(source, sink, (source.cores, DOWNLOADS_MAX), progress);
    let exists = |path: &StorePath| is_valid_and_kept(destination, path);
    let walked = std::thread::scope(|scope| {
        let transfer = &transfer;
        let on_found = |found: TrustedNarInfo| {
            if progress.is_interrupted() {
                return Err(Error::Interrupted);
            }
            options.check_hash(&found)?;
            progress.found(found.info.nar_size, found.info.file_size);
            all.lock().push(found.clone());
            match (space.add(&found), space.is_ample()) {
                (true, true) => transfer.add(found.into(), scope),
                // The walk goes on, to know the whole need.
                (false, true) => transfer.abandon(),
                (_, false) => {}
            }
            Ok(())
        };
        let walk = Walk::new(source.caches, missing, &exists, &on_found);
        // The walk's threads have their own scope, which ends with the walk.
        let walked = std::thread::scope(|scope| walk.run(scope));
        progress.walk_done();
        let all = all.lock();
        let walked = walked.and_then(|()| check_cycles(&all)).and_then(|()| space.check());
        match &walked {
            Ok(()) if !space.is_ample() => {
                transfer.add_all(all.iter().cloned().map(Into::into).collect(), scope);
            }
            Ok(()) => transfer.close(),
            Err(_) => transfer.abandon(),
        }
        walked
    });
    transfer.finish(walked.err())?;
    Ok(all.into_inner().iter().map(plan_of).collect())
}

/// The same for a store with a daemon: the whole closure is known before the first path is sent to it.
fn through_daemon(
    destination: &Destination,
    (source, daemon): (&FromCaches<'_>, &Daemon),
    (missing, options): (&[Wanted], &Options),
    progress: &Progress,
) -> Result<Vec<InstallItem>, Error> {
    let found = closure(source.caches, missing, &|path| is_valid_and_kept(destination, path))?;
    found.iter().try_for_each(|one| options.check_hash(one))?;
    destination.keep(&found.iter().map(|one| one.info.path.clone()).collect::<Vec<_>>())?;
    let disk = rustix::fs::statvfs(&destination.config().real_store_dir);
    let space = Space::new(destination, disk.ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize)));
    for one in &found {
        space.add(one);
    }
    space.check()?;
    let planned = found.iter().map(plan_of).collect();
    // Signatures were checked against our trusted keys; a daemon that does not trust us checks them again.
    transfer(source, found.into_iter().map(Into::into).collect(), daemon, 1, progress)?;
    Ok(planned)
}

/// Protects a path; returns whether it is valid.
fn is_valid_and_kept(destination: &Destination, path: &StorePath) -> Result<bool, Error> {
    destination.keep(std::slice::from_ref(path))?;
    destination.is_valid(path)
}

/// Plans an install: queries the caches and changes nothing.
///
/// # Errors
/// Like [`install`], as far as narinfos are concerned.
pub fn plan(
    destination: &Destination,
    options: &Options,
    client: &Arc<Client>,
    wanted: &[Wanted],
) -> Result<Report, Error> {
    let start = Instant::now();
    let (mut report, missing) = split_wanted(wanted, |one| destination.find(one))?;
    if !missing.is_empty() {
        let caches = open_caches(destination, options, client)?;
        let exists = |path: &StorePath| destination.is_valid(path);
        let found = closure(&caches, &missing, &exists)?;
        let deltas = deltas_of(destination, options);
        let plan = |one: &TrustedNarInfo| InstallItem {
            delta_base: deltas.base_for(one).map(|base| base.path),
            ..plan_of(one)
        };
        report.planned = found.iter().map(plan).collect();
        report.roots.extend(roots_of(&missing, &report.planned));
    }
    fill_report(&mut report, client, &Progress::default(), start);
    Ok(report)
}

fn deltas_of<'a>(destination: &'a Destination, options: &'a Options) -> Deltas<'a> {
    // A store that does not exist yet has no bases, and is not read.
    let when = if destination.exists() { options.deltas } else { DeltaUse::Never };
    Deltas::new(destination.store(), when, &options.delta_bases)
}

fn split_wanted(
    wanted: &[Wanted],
    find: impl Fn(&Wanted) -> Result<Option<StorePath>, Error>,
) -> Result<(Report, Vec<Wanted>), Error> {
    let (mut report, mut missing) = (Report::default(), Vec::new());
    for one in wanted {
        match find(one)? {
            Some(path) => report.roots.push(path),
            None => missing.push(one.clone()),
        }
    }
    report.already = report.roots.len();
    Ok((report, missing))
}

fn open_caches(destination: &Destination, options: &Options, client: &Arc<Client>) -> Result<BinaryCaches, Error> {
    if options.caches.is_empty() {
        return Err(Error::Usage("no cache to install from: give one with --from URL".into()));
    }
    let keys = options.keys.clone();
    Ok(BinaryCaches::open(&options.caches, client, destination.store_dir(), keys, options.check_signatures)?)
}

fn plan_of(found: &TrustedNarInfo) -> InstallItem {
    let cache = found.cache.url().to_string();
    InstallItem {
        path: found.info.path.clone(),
        nar_size: found.info.nar_size,
        file_size: found.info.file_size,
        cache,
        delta_base: None,
    }
}

fn roots_of(missing: &[Wanted], planned: &[InstallItem]) -> Vec<StorePath> {
    let by_hash: HashMap<_, _> = planned.iter().map(|one| (one.path.hash_part(), &one.path)).collect();
    missing.iter().filter_map(|one| by_hash.get(&one.hash_part()).map(|path| (*path).clone())).collect()
}

fn fill_report(report: &mut Report, client: &Client, progress: &Progress, start: Instant) {
    let snapshot = progress.snapshot();
    (report.downloaded, report.unpacked) = (snapshot.file_bytes_done, snapshot.nar_bytes_done);
    (report.deltas, report.saved) = (snapshot.deltas_done, snapshot.file_bytes_saved);
    (report.requests, report.connections) = client.counts();
    report.elapsed = start.elapsed();
}
