//! Removes old backups of a place, and what only they need.
//!
//! ```text
//! backups/<id>.json  →  removed/<id>.json  →  NARs and rows that no list in backups/ names are removed  →  removed/<id>.json is removed
//! ```
//! A backup goes when so many newer ones have been there for a day: a restore of one that was among these may still be reading it. Each step is durable before the next one begins, so
//! whatever is listed is whole, and what a killed one has not removed is found by the next: by the lists in `removed/`.

use std::collections::{HashMap, HashSet};
use std::io;
use std::num::NonZeroUsize;

use narval_client::clock;
use narval_files::Work;

use super::hold::Hold;
use super::place::{BACKUPS, REMOVED, ROWS, Shelf};
use super::rows::PathRow;
use super::{Manifest, Removed};
use crate::name::CacheName;
use crate::rejection::Rejection;
use crate::storage::{object_name, several};
use crate::upkeep::MigrateError;

/// How long a backup stays when enough newer ones are there, in seconds: a restore may be reading it.
const GRACE: u64 = 24 * 60 * 60;

/// Files that are removed at the same time.
const THREADS: usize = 8;

/// Files that are removed before it is looked whether this backup still has the place.
const STEP: usize = 1000;

pub(super) fn prune(
    shelf: &Shelf,
    hold: &Hold<'_>,
    keep: NonZeroUsize,
    now: u64,
    work: &Work,
) -> Result<Removed, MigrateError> {
    let fail = shelf.fail("remove old backups in");
    let mut kept: Vec<Manifest> = shelf.manifests(BACKUPS)?;
    let is_old = |newer: &Manifest| newer.created.saturating_add(GRACE) <= now;
    // They are in the order of time: whatever is older than one that goes does so, too.
    let old = kept.iter().skip(keep.get()).take_while(|newer| is_old(newer)).count();
    let (removed, more) = (kept.drain(..old).collect::<Vec<_>>(), shelf.manifests(REMOVED)?);
    for manifest in &removed {
        shelf.write_manifest(REMOVED, manifest)?;
    }
    shelf.storage.sync().map_err(&fail)?;
    hold.renew()?;
    for manifest in &removed {
        shelf.remove(&format!("{BACKUPS}/{}.json", manifest.id), hold.until()).map_err(&fail)?;
    }
    shelf.storage.sync().map_err(&fail)?;
    let mut done = Removed { backups: removed.len() as u64, ..Removed::default() };
    let gone: Vec<&Manifest> = removed.iter().chain(&more).collect();
    if gone.is_empty() {
        return Ok(done);
    }
    for cache in gone
        .iter()
        .chain(&kept.iter().collect::<Vec<_>>())
        .flat_map(|manifest| &manifest.caches)
        .map(|cache| &cache.name)
        .collect::<HashSet<_>>()
    {
        let Ok(name) = cache.parse::<CacheName>() else { continue };
        let (nars, bytes) = prune_nars((shelf, hold), &name, &kept, work)?;
        (done.nars, done.nar_bytes) = (done.nars + nars, done.nar_bytes + bytes);
    }
    let needed: HashSet<&String> = kept.iter().flat_map(rows_of).collect();
    hold.renew()?;
    for name in shelf.rows().map_err(&fail)?.iter().filter(|name| !needed.contains(name)) {
        shelf.remove(&format!("{ROWS}/{name}"), hold.until()).map_err(&fail)?;
    }
    shelf.storage.sync().map_err(&fail)?;
    for manifest in gone {
        shelf.remove(&format!("{REMOVED}/{}.json", manifest.id), hold.until()).map_err(&fail)?;
    }
    Ok(done)
}

/// The files of rows that a backup needs.
fn rows_of(manifest: &Manifest) -> impl Iterator<Item = &String> {
    let of_caches = manifest.caches.iter().flat_map(|cache| &cache.rows);
    std::iter::once(&manifest.settings).chain(&manifest.audit).chain(of_caches)
}

/// Removes the NARs of a cache that no backup needs. Returns how many, and their bytes.
fn prune_nars(
    (shelf, hold): (&Shelf, &Hold<'_>),
    cache: &CacheName,
    kept: &[Manifest],
    work: &Work,
) -> Result<(u64, u64), MigrateError> {
    let refused = |rejection| MigrateError::Rejected { cache: cache.clone(), rejection };
    let failed = |error: io::Error| refused(Rejection::of_file("remove from", shelf.storage.place().display(), &error));
    let files = shelf.storage.open_cache(cache).map_err(failed)?;
    let mut unneeded: HashMap<String, u64> = HashMap::new();
    let list = &mut |file: crate::storage::StoredFile| {
        if let Some(name) = file.name.strip_prefix("nar/") {
            unneeded.insert(name.to_owned(), file.len);
        }
    };
    files.each_nar(list).map_err(failed)?;
    let of_cache = kept.iter().flat_map(|manifest| &manifest.caches).filter(|saved| saved.name == cache.as_str());
    for rows in of_cache.flat_map(|saved| &saved.rows).collect::<HashSet<_>>() {
        work.check().map_err(failed)?;
        let needs = |row: PathRow| {
            let path = row.saved().ok_or_else(|| super::place::damaged(rows))?;
            unneeded.remove(&object_name(&path.nar));
            Ok(())
        };
        shelf.each_row(rows, needs).map_err(failed)?;
    }
    let unneeded: Vec<(String, u64)> = unneeded.into_iter().collect();
    work.begin("removing", "NARs", unneeded.len() as u64, 0);
    for step in unneeded.chunks(STEP) {
        work.check().map_err(failed)?;
        hold.renew()?;
        let remove = |(name, _): &(String, u64)| {
            let until = hold.until();
            let late = || Rejection::of_file("remove", name, &io::Error::from(io::ErrorKind::TimedOut));
            // One that was paused must not remove what another one has found there meanwhile.
            if clock::instant() >= until {
                return Err(late());
            }
            files.unlink_nar(name, until).map_err(|error| Rejection::of_file("remove", name, &error))
        };
        several(THREADS, step, remove).map_err(refused)?;
        work.count(step.len() as u64);
    }
    Ok((unneeded.len() as u64, unneeded.iter().map(|(_, len)| len).sum()))
}
