//! Into a store through its daemon: paths go to it in one stream, each after what it refers to. The daemon hashes and
//! writes while the next bytes are decoded here; what it must not see (a wrong size, a wrong FileHash) aborts the
//! stream before the NAR is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::sync::Arc;

use narval_cache::{Cache, Caches, Found};
use narval_nix::StorePath;
use narval_store::{Daemon, DaemonError, StoreError};

use crate::fetch::{Cores, Surroundings, VerifiedNar};
use crate::resolve::in_order;
use crate::trace::Trace;
use crate::{Error, Progress, Wanted, now};

/// The way of an install through a daemon.
pub(crate) struct ToDaemon<'a> {
    pub(crate) daemon: &'a Daemon,
    pub(crate) caches: &'a Caches,
    pub(crate) progress: &'a Progress,
    pub(crate) trace: &'a Trace,
}

impl ToDaemon<'_> {
    /// Adds all of them, which the caller keeps from garbage collections. What other processes add meanwhile is left out; a
    /// path whose cache fails is taken from the next.
    pub(crate) fn add(&self, found: Vec<Found>) -> Result<(), Error> {
        let mut left = in_order(found, |one| (one.info.path.clone(), one.info.references.clone()));
        let mut failed: BTreeMap<StorePath, Vec<Arc<Cache>>> = BTreeMap::new();
        while !left.is_empty() {
            let names: Vec<StorePath> = left.iter().map(|found| found.info.path.clone()).collect();
            let valid: BTreeSet<_> = self.daemon.valid_paths(&names).map_err(StoreError::from)?.into_iter().collect();
            left.retain(|found| !valid.contains(&found.info.path));
            let Err(failed_stream) = self.stream(&left) else { return Ok(()) };
            match *failed_stream {
                Failed { path: Some(path), error }
                    if error.is_the_caches_fault() && !self.progress.is_interrupted() =>
                {
                    let Some(at) = left.iter_mut().find(|found| found.info.path == path) else { return Err(error) };
                    let failed = failed.entry(path.clone()).or_default();
                    failed.push(Arc::clone(&at.cache));
                    if failed.len() >= self.caches.list().len() {
                        return Err(error);
                    }
                    tracing::debug!(%error, "trying the next cache");
                    let Ok(other) = self.caches.find_except(&Wanted::Path(path.clone()), failed) else {
                        return Err(error);
                    };
                    // Another build of it may refer to other paths, of which nothing is known here.
                    if other.info.references != at.info.references {
                        return Err(error);
                    }
                    *at = other;
                }
                Failed { error, .. } => return Err(error),
            }
        }
        Ok(())
    }

    /// One stream of all of them.
    fn stream(&self, found: &[Found]) -> Result<(), Box<Failed>> {
        if found.is_empty() {
            return Ok(());
        }
        // This thread waits for the network and the daemon by itself, and decodes alone.
        let cores = Cores::new(1);
        cores.take(0, 0);
        let around = Surroundings { cores: &cores, progress: self.progress, trace: self.trace, size: 0, number: 0 };
        let nars = found.iter().map(|found| {
            let nar = VerifiedNar::open(found, self.caches.store_dir(), &around, None);
            let nar = nar.map_err(|error| carried(found, error))?;
            Ok((found.info.path_info(now()), Carrying { found, nar }))
        });
        // Signatures were checked against the keys that count here; a daemon that does not trust us checks them again.
        let added = self.daemon.add_multiple_to_store(found.len() as u64, nars, false);
        added.map_err(|error| match error {
            DaemonError::Source(error) => match error.downcast::<Failed>() {
                Ok(failed) => Box::new(failed),
                Err(error) => Failed::of_daemon(DaemonError::Source(error)),
            },
            other => Failed::of_daemon(other),
        })
    }
}

/// Why a stream broke off. On its way through [`io::Error`] as far as it comes from here.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
struct Failed {
    /// The path that it is about, if it is about one.
    path: Option<StorePath>,
    error: Error,
}

impl Failed {
    fn of_daemon(error: DaemonError) -> Box<Self> {
        Box::new(Self { path: None, error: StoreError::from(error).into() })
    }
}

fn carried(found: &Found, error: Error) -> io::Error {
    io::Error::other(Failed { path: Some(found.info.path.clone()), error })
}

/// Carries an error of a NAR through the daemon's stream.
struct Carrying<'a> {
    found: &'a Found,
    nar: VerifiedNar<'a>,
}

impl Read for Carrying<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.nar.next(buffer).map_err(|error| carried(self.found, error))
    }
}
