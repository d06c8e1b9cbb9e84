//! Names of NARs on their way: recorded with those of other uploads, and marked as stored without a transaction of their own.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio_postgres::Client;

use super::Postgres;
use super::caches;
use super::failed::Failed;
use super::nars::{self, Entry};
use super::together::Addition;
use super::transaction::ADD_LATER;
use super::writers;
use crate::index::tx::{ADD, DEADLINE, DEADLINE_LARGE, How, NOTE_LATER};
use crate::index::{CacheId, Fence, Index, IndexError, NarRecord, Placing, Replaced};

/// How long an upload waits for a collection to have removed what it sends again.
const CONDEMNED_MAX: Duration = Duration::from_secs(5);

/// How often it looks.
const CONDEMNED_EVERY: Duration = Duration::from_millis(100);

/// Names of NARs that are recorded in one transaction.
const OBJECTS_STEP: usize = 1024;

impl Postgres {
    /// Adds a name for a NAR: with those of other threads, if nothing is in the way.
    pub(super) fn add(
        &self,
        cache: CacheId,
        name: &str,
        nar: &NarRecord,
        how: (u64, Replaced),
    ) -> Result<Option<i64>, IndexError> {
        // Until its file is stored again, it is not.
        self.recorded.remove(cache, name);
        let addition = Addition { cache, name: name.to_owned(), nar: nar.clone(), now: how.0 };
        let record = |all: &[Addition]| {
            // Whatever is in the way of one of them, each finds out by itself.
            let recorded =
                self.database.try_write(ADD_LATER, async |change| nars::add_files(change, all, Entry::Pending).await);
            match (recorded, all.first()) {
                (Ok(Some(names)), Some(first)) => {
                    self.recorded.remember(first.cache, names);
                    Ok(true)
                }
                // Nobody waits once more for the same lock.
                (Err(error), _) if error.is_away() => Err(error),
                _ => Ok(false),
            }
        };
        // Its number may not be remembered, if there are too many: then it is added once more.
        if self.together.add(addition, record)?
            && let Some(number) = self.recorded.number(cache, name)
        {
            return Ok(Some(number));
        }
        let until = Instant::now() + CONDEMNED_MAX;
        loop {
            let is_last = Instant::now() >= until;
            let added = self.database.write(ADD_LATER, async |change| {
                match nars::add_file(change, cache, name, nar, how).await {
                    Err(Failed::Condemned) if !is_last => Ok(None),
                    added => added.map(Some),
                }
            })?;
            if let Some(added) = added {
                return Ok(added);
            }
            std::thread::sleep(CONDEMNED_EVERY);
        }
    }

    /// As [`Index::add_objects`].
    pub(super) fn record_all(
        &self,
        cache: CacheId,
        objects: &[(String, NarRecord)],
        now: u64,
    ) -> Result<Vec<Option<i64>>, IndexError> {
        let mut all = Vec::with_capacity(objects.len());
        for some in objects.chunks(OBJECTS_STEP) {
            // Until their files are stored again, they are not.
            some.iter().for_each(|(name, _)| self.recorded.remove(cache, name));
            let addition =
                |(name, nar): &(String, NarRecord)| Addition { cache, name: name.clone(), nar: nar.clone(), now };
            let additions: Vec<Addition> = some.iter().map(addition).collect();
            let added = self
                .database
                .try_write(ADD_LATER, async |change| nars::add_files(change, &additions, Entry::Pending).await)?;
            let added = added.unwrap_or_default();
            self.recorded.remember(cache, added.clone());
            let numbers: HashMap<String, i64> = added.into_iter().collect();
            all.extend(some.iter().map(|(name, _)| numbers.get(name).copied()));
        }
        Ok(all)
    }

    /// As [`Index::add_stored`].
    pub(super) fn record_stored(
        &self,
        cache: CacheId,
        objects: &[(String, NarRecord)],
        epoch: Fence,
        now: u64,
    ) -> Result<Vec<bool>, IndexError> {
        objects.iter().for_each(|(name, _)| self.recorded.remove(cache, name));
        let addition =
            |(name, nar): &(String, NarRecord)| Addition { cache, name: name.clone(), nar: nar.clone(), now };
        let additions: Vec<Addition> = objects.iter().map(addition).collect();
        let how = How { deadline: DEADLINE_LARGE, ..ADD };
        let added =
            self.database.try_write(how, async |change| writers::add_stored(change, &additions, epoch).await)?;
        Ok(vec![added.is_some(); objects.len()])
    }

    /// As [`Index::settle_file_soon`].
    pub(super) fn note_stored(&self, cache: CacheId, name: &str, number: i64) -> Result<bool, IndexError> {
        if self.recorded.number(cache, name) == Some(number) {
            if !self.database.read(DEADLINE, async |client| caches::is_pending(client, number).await)? {
                self.recorded.remove(cache, name);
                return Ok(false);
            }
            if self.recorded.set_stored(cache, name, number) {
                return Ok(true);
            }
        }
        self.settle_file(cache, name, number)
    }

    /// As [`Index::settle_files_soon`].
    pub(super) fn note_all_stored(&self, cache: CacheId, files: &[(String, i64)]) -> Result<Vec<bool>, IndexError> {
        let numbers: Vec<i64> = files.iter().map(|(_, number)| *number).collect();
        let pending = self.database.read(DEADLINE, async |client| caches::are_pending(client, &numbers).await)?;
        let settle = |(name, number): &(String, i64)| {
            if !pending.contains(number) {
                self.recorded.remove(cache, name);
                return Ok(false);
            }
            // What is not remembered, because there is too much, is settled at once.
            Ok(self.recorded.set_stored(cache, name, *number) || self.settle_file(cache, name, *number)?)
        };
        files.iter().map(settle).collect()
    }

    /// As [`Index::settle_stored_files`].
    pub(super) fn settle_stored(&self) -> Result<(), IndexError> {
        for cache in self.recorded.caches_with_stored() {
            let names = self.recorded.stored_of(cache);
            self.database.write(NOTE_LATER, async |change| caches::settle_files(change, cache, &names).await)?;
            self.recorded.forget_stored(cache, names);
        }
        Ok(())
    }

    /// As [`Index::is_unplaced`].
    pub(super) fn is_on_its_way(&self, cache: CacheId, name: &str) -> Result<bool, IndexError> {
        let stored = self.recorded.stored_number(cache, name).unwrap_or(-1);
        let find = async |client: &Client| caches::oldest_pending(client, cache, name, stored).await;
        let (oldest, is_stored) = self.database.read(DEADLINE, find)?;
        Ok(oldest.is_some() && !is_stored)
    }

    /// As [`Index::placings`].
    pub(super) fn placings_of(&self, cache: CacheId, names: &[&str]) -> Result<Vec<Placing>, IndexError> {
        let stored: Vec<Option<i64>> = names.iter().map(|name| self.recorded.stored_number(cache, name)).collect();
        let asked = names.iter().zip(&stored).filter(|(_, stored)| stored.is_none());
        let asked: Vec<&str> = asked.map(|(name, _)| *name).collect();
        let oldest = match asked.is_empty() {
            true => HashMap::new(),
            false => {
                self.database.read(DEADLINE, async |client| caches::oldest_pendings(client, cache, &asked).await)?
            }
        };
        let pending = |name: &str| oldest.get(name).copied().map_or(Placing::Done, Placing::Pending);
        Ok(names
            .iter()
            .zip(stored)
            .map(|(name, stored)| stored.map_or_else(|| pending(name), Placing::Stored))
            .collect())
    }
}
