//! Compresses NARs before they are requested.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use narval_nix::StorePath;

use crate::Service;
use crate::error::ServeError;
use crate::nar::zstd::{Found, Outcome};

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

/// Compresses the NARs of `paths` on `jobs` threads. Calls `report` when a path is done.
///
/// Does nothing without a NAR cache.
pub fn warm(service: &Service, paths: &[StorePath], jobs: usize, report: impl FnMut(&StorePath, Warmed) + Send) {
    let (next, report) = (AtomicUsize::new(0), Mutex::new(report));
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, paths.len().max(1)) {
            scope.spawn(|| {
                while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let warmed = warm_one(service, path);
                    if let Ok(mut report) = report.lock() {
                        report(path, warmed);
                    }
                }
            });
        }
    });
}

fn warm_one(service: &Service, path: &StorePath) -> Warmed {
    let Some(live) = &service.shared.live else { return Warmed::Failed("there is no store".to_owned()) };
    let nars = &live.nars;
    let Some(cache) = &nars.compressed else { return Warmed::Failed("there is no NAR cache".to_owned()) };
    let hash_part = path.hash_part();
    let planned = match nars.planner.plan(hash_part) {
        Ok((planned, _)) => planned,
        Err(ServeError::NoPath) => return Warmed::Failed("it is not a valid path".to_owned()),
        Err(error) => return Warmed::Failed(error.to_string()),
    };
    match cache.get(&planned, &nars.planner.ahead, || {}) {
        Ok(Found::File(..)) => Warmed::Present,
        Ok(Found::InFlight(flight)) => match flight.finish_and_store() {
            Outcome::Finished => Warmed::Made,
            outcome => {
                let reason = outcome.trouble_with_nar();
                Warmed::Failed(reason.unwrap_or_else(|| "the NAR cache is not writable".to_owned()))
            }
        },
        Err(error) => Warmed::Failed(error.to_string()),
    }
}
