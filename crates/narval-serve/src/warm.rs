//! Compresses NARs, and makes their deltas, before they are requested.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use narval_files::Work;
use narval_nix::{PathInfo, StorePath};
use parking_lot::Mutex;

use crate::error::ServeError;
use crate::nar::deltas::{Delta, DeltaEnd};
use crate::nar::zstd::{CompressedNar, Outcome};
use crate::service::Service;

/// How long making one delta may take: any time that a delta of the largest NARs could take.
const DELTA_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// What became of one path.
#[derive(Debug)]
pub enum Warmed {
    /// It was compressed now.
    Made,
    /// It had been compressed before.
    Present,
    /// It could not be compressed, and why.
    Failed(String),
}

/// Compresses the NARs of `paths` on `jobs` threads. Calls `report` when a path is done. If `work` is stopped, the rest is left out.
///
/// Does nothing without a NAR cache.
pub fn warm(
    service: &Service,
    paths: &[PathInfo],
    jobs: usize,
    work: &Work,
    report: impl FnMut(&StorePath, Warmed) + Send,
) {
    work.begin("compressing", "paths", paths.len() as u64, paths.iter().map(|info| info.nar_size).sum());
    let (next, report) = (AtomicUsize::new(0), Mutex::new(report));
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, paths.len().max(1)) {
            scope.spawn(|| {
                while let Some(info) = paths.get(next.fetch_add(1, Ordering::Relaxed))
                    && !work.is_stopped()
                {
                    let warmed = warm_one(service, &info.path);
                    work.count(1);
                    work.count_bytes(info.nar_size);
                    (report.lock())(&info.path, warmed);
                }
            });
        }
    });
}

fn warm_one(service: &Service, path: &StorePath) -> Warmed {
    let Some(live) = &service.shared.origins.live else { return Warmed::Failed("there is no store".to_owned()) };
    let nars = &live.nars;
    let Some(cache) = &nars.compressed else { return Warmed::Failed("there is no NAR cache".to_owned()) };
    let hash_part = path.hash_part();
    let path_nar = match nars.planner.plan(hash_part) {
        Ok((path_nar, _)) => path_nar,
        Err(ServeError::NoPath) => return Warmed::Failed("it is not a valid path".to_owned()),
        Err(error) => return Warmed::Failed(error.to_string()),
    };
    match cache.get(&path_nar, &nars.planner.ahead, || {}) {
        Ok(CompressedNar::File(..)) => Warmed::Present,
        Ok(CompressedNar::InFlight(flight)) => match flight.finish_and_store() {
            Outcome::Finished => Warmed::Made,
            outcome => {
                let reason = outcome.trouble_with_nar();
                Warmed::Failed(reason.unwrap_or_else(|| "the NAR cache is not writable".to_owned()))
            }
        },
        Err(error) => Warmed::Failed(error.to_string()),
    }
}

/// What became of the delta between two paths.
#[derive(Debug)]
pub enum WarmedDelta {
    /// It was made now, and has this size in bytes.
    Made(u64),
    /// It had been made before.
    Present,
    /// It would not be smaller than the compressed NAR, or the NARs are too large.
    NotWorthIt,
    /// A NAR could not be read, and why.
    Failed(String),
}

/// Makes the delta from the first path to the second.
///
/// Does nothing without deltas.
pub fn warm_delta(service: &Service, base: &PathInfo, path: &PathInfo) -> WarmedDelta {
    let shared = &service.shared;
    let (Some(live), Some(deltas)) = (&shared.origins.live, &shared.deltas) else {
        return WarmedDelta::Failed("there is no store, or no NAR cache".to_owned());
    };
    let failure = Arc::new(OnceLock::new());
    let end = |info: &PathInfo| {
        let (DeltaEnd { hash, size, read }, failure, name) =
            (live.nars.delta_end(info), Arc::clone(&failure), info.path.to_string());
        let read = move || {
            read().inspect_err(|reason| {
                failure.get_or_init(|| format!("{name}: {reason}"));
            })
        };
        DeltaEnd { hash, size, read: Box::new(read) }
    };
    match deltas.get((end(base), end(path)), live.nars.compressed_size(&path.nar_hash), DELTA_WITHIN) {
        Delta::Kept(..) => WarmedDelta::Present,
        Delta::Made(stored, _) => WarmedDelta::Made(stored.file_size),
        Delta::None => failure.get().map_or(WarmedDelta::NotWorthIt, |reason| WarmedDelta::Failed(reason.clone())),
    }
}
