//! Names of NARs on their way: recorded with those of other uploads, and marked as stored without a transaction of their own, where that is
//! remembered ([`Memory`]).

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use crate::index::memory::{Addition, Memory};
use crate::index::sql::{nars, pending, work};
use crate::index::tx::{LARGE, NOTE_LATER, Reading, Refused};
use crate::index::{CacheId, Fence, Index, IndexError, NarRecord, Placing, Replaced};
use crate::rule::holds;
use narval_client::clock;

/// How long an upload waits for a collection to have removed what it sends again.
const CONDEMNED_MAX: Duration = Duration::from_secs(5);

/// How often it looks.
const CONDEMNED_EVERY: Duration = Duration::from_millis(100);

/// Names of NARs that are recorded in one transaction.
const OBJECTS_STEP: usize = 1024;

impl Memory {
    /// What a name means, if that is remembered and nothing has changed since.
    fn now(&self, stamp: u64, cache: CacheId, name: &str) -> Option<NarRecord> {
        self.files.get(&(cache, name.to_owned())).filter(|(of, _)| *of == stamp).map(|(_, nar)| nar)
    }
}

impl dyn Index + '_ {
    /// The stored NAR that a name below `nar/` refers to in a cache. If it is doomed, it no longer is. What was found once is remembered while
    /// nothing changes, and while the database is away.
    pub(crate) fn file(&self, cache: CacheId, name: &str) -> Result<Option<NarRecord>, IndexError> {
        match self.files_named(cache, &[name]) {
            Ok(found) => Ok(found.into_iter().next().flatten()),
            Err(error) if error.is_away() => {
                let remembered = self.memory().and_then(|memory| memory.files.get(&(cache, name.to_owned())));
                remembered.map(|(_, nar)| Some(nar)).ok_or(error)
            }
            Err(error) => Err(error),
        }
    }

    /// As [`file`](Self::file), for each of these names.
    pub(crate) fn files_named(&self, cache: CacheId, names: &[&str]) -> Result<Vec<Option<NarRecord>>, IndexError> {
        let (memory, stamp) = (self.memory(), self.stamp());
        let now = |name: &&str| memory.and_then(|memory| memory.now(stamp, cache, name));
        let mut found: Vec<Option<NarRecord>> = names.iter().map(now).collect();
        let asked = names.iter().zip(&found).filter(|(_, nar)| nar.is_none());
        let asked: Vec<&str> = asked.map(|(name, _)| *name).collect();
        let all = self.look_up(cache, &asked)?;
        for (name, nar) in names.iter().zip(&mut found).filter(|(_, nar)| nar.is_none()) {
            *nar = all.get(*name).cloned();
        }
        if let Some(memory) = memory {
            for name in asked {
                let key = (cache, name.to_owned());
                match all.get(name) {
                    Some(nar) => memory.files.insert(key, (stamp, nar.clone())),
                    None => drop(memory.files.remove(&key)),
                }
            }
        }
        Ok(found)
    }

    /// Adds a name for a stored NAR, and a pending entry, whose number is returned. It is durable with the next commit. Waits while the
    /// bytes of one with this name are removed.
    pub(crate) fn add_file(&self, cache: CacheId, name: &str, nar: &NarRecord, now: u64) -> Result<i64, IndexError> {
        let removing = || IndexError::Removing { index: self.name() };
        self.add(cache, name, nar, (now, Replaced::Removed))?.ok_or_else(removing)
    }

    /// As [`add_file`](Self::add_file), in a bucket. If another file of the NAR is recorded and in use, nothing is added, and the result is
    /// `None`. If it is not in use, this one takes its place: its names stay, without paths, until a collection has removed the objects
    /// that they may have.
    pub(crate) fn add_object(
        &self,
        cache: CacheId,
        name: &str,
        nar: &NarRecord,
        now: u64,
    ) -> Result<Option<i64>, IndexError> {
        let replaced = if holds!(Replaced) { Replaced::Kept } else { Replaced::Removed };
        self.add(cache, name, nar, (now, replaced))
    }

    /// Adds a name for a NAR: with those of other threads, if nothing is in the way.
    fn add(
        &self,
        cache: CacheId,
        name: &str,
        nar: &NarRecord,
        how: (u64, Replaced),
    ) -> Result<Option<i64>, IndexError> {
        if let Some(memory) = self.memory() {
            // Until its file is stored again, it is not.
            memory.recorded.remove(cache, name);
            let addition = Addition { cache, name: name.to_owned(), nar: nar.clone(), now: how.0 };
            let record = |all: &[Addition]| {
                // They are of one cache.
                let Some(cache) = all.first().map(|one| one.cache) else { return Ok(true) };
                let now = all.iter().map(|one| one.now).max().unwrap_or_default();
                let files: Vec<_> = all.iter().map(|one| (one.name.clone(), one.nar.clone())).collect();
                match self.try_write(NOTE_LATER, move |tx| nars::add_files(tx, cache, &files, (now, true))) {
                    Ok(Some(names)) => {
                        memory.recorded.remember(cache, names);
                        Ok(true)
                    }
                    // Nobody waits once more for the same rows.
                    Err(error) if error.is_away() => Err(error),
                    // Whatever is in the way of one of them, each finds out by itself.
                    Ok(None) | Err(_) => Ok(false),
                }
            };
            // Its number may not be remembered, if there are too many: then it is added once more.
            if memory.together.add(addition, record)?
                && let Some(number) = memory.recorded.number(cache, name)
            {
                return Ok(Some(number));
            }
        }
        let until = clock::instant() + CONDEMNED_MAX;
        loop {
            let (file, nar) = (name.to_owned(), nar.clone());
            match self.write(NOTE_LATER, move |tx| nars::add_file(tx, cache, (&file, &nar), how)) {
                Err(IndexError::Removing { .. }) if clock::instant() < until => clock::sleep(CONDEMNED_EVERY),
                added => return added,
            }
        }
    }

    /// As [`add_object`](Self::add_object), for several names and NARs, all different, in few transactions. Returns the numbers of their
    /// pending entries; `None` for those of which something is in the way: they have to be added one by one.
    pub(crate) fn add_objects(
        &self,
        cache: CacheId,
        objects: &[(String, NarRecord)],
        now: u64,
    ) -> Result<Vec<Option<i64>>, IndexError> {
        let mut all = Vec::with_capacity(objects.len());
        for some in objects.chunks(OBJECTS_STEP) {
            self.are_not_stored(cache, some);
            let files = some.to_vec();
            let added = self.try_write(NOTE_LATER, move |tx| nars::add_files(tx, cache, &files, (now, true)))?;
            let added = added.unwrap_or_default();
            if let Some(memory) = self.memory() {
                memory.recorded.remember(cache, added.clone());
            }
            let numbers: HashMap<String, i64> = added.into_iter().collect();
            all.extend(some.iter().map(|(name, _)| numbers.get(name).copied()));
        }
        Ok(all)
    }

    /// Until their files are stored again, they are not.
    fn are_not_stored(&self, cache: CacheId, objects: &[(String, NarRecord)]) {
        if let Some(memory) = self.memory() {
            objects.iter().for_each(|(name, _)| memory.recorded.remove(cache, name));
        }
    }

    /// As [`add_objects`](Self::add_objects), for objects that were stored when `epoch` was the number of the last collection, and that
    /// nobody was at work. They count as placed. Returns whether they were added: not if a collection has begun since, durably.
    pub(crate) fn add_stored(
        &self,
        cache: CacheId,
        objects: &[(String, NarRecord)],
        epoch: Fence,
        now: u64,
    ) -> Result<bool, IndexError> {
        self.are_not_stored(cache, objects);
        let files = objects.to_vec();
        let added = self.try_write(LARGE, move |tx| {
            let added = nars::add_files(tx, cache, &files, (now, false))?;
            // Now that the rows are there: a collection that begins after this finds them, or waits for them.
            if work::state(tx)?.0 != epoch && holds!(Epoch) {
                return Err(Refused::Changed.into());
            }
            Ok(added)
        })?;
        Ok(added.is_some())
    }

    /// As [`settle_file`](Self::settle_file). Here, it has taken effect when this returns; for other processes, with the next commit or
    /// [`settle_stored_files`](Self::settle_stored_files).
    pub(crate) fn settle_file_soon(&self, cache: CacheId, name: &str, number: i64) -> Result<bool, IndexError> {
        if self.memory().is_some_and(|memory| memory.recorded.number(cache, name) == Some(number)) {
            return Ok(self.settle_files_soon(cache, &[(name.to_owned(), number)])? == [true]);
        }
        self.settle_file(cache, name, number)
    }

    /// As [`settle_file_soon`](Self::settle_file_soon), for several names with their numbers.
    pub(crate) fn settle_files_soon(&self, cache: CacheId, files: &[(String, i64)]) -> Result<Vec<bool>, IndexError> {
        let Some(memory) = self.memory() else {
            return files.iter().map(|(name, number)| self.settle_file(cache, name, *number)).collect();
        };
        let numbers: Vec<i64> = files.iter().map(|(_, number)| *number).collect();
        let there: HashSet<i64> = self.read(Reading::Some, |tx| pending::there(tx, &numbers))?;
        let settle = |(name, number): &(String, i64)| {
            if !there.contains(number) {
                memory.recorded.remove(cache, name);
                return Ok(false);
            }
            // What is not remembered, because there is too much, is settled at once.
            Ok(memory.recorded.set_stored(cache, name, *number) || self.settle_file(cache, name, *number)?)
        };
        files.iter().map(settle).collect()
    }

    /// Carries out what [`settle_file_soon`](Self::settle_file_soon) has left.
    pub(crate) fn settle_stored_files(&self) -> Result<(), IndexError> {
        let Some(memory) = self.memory() else { return Ok(()) };
        for cache in memory.recorded.caches_with_stored() {
            let names = memory.recorded.stored_of(cache);
            let settled = names.clone();
            self.write(NOTE_LATER, move |tx| pending::settle_files(tx, cache, &settled))?;
            memory.recorded.forget_stored(cache, names);
        }
        Ok(())
    }

    /// Whether there is a pending entry of a name, other than one whose file this process has stored.
    pub(crate) fn is_unplaced(&self, cache: CacheId, name: &str) -> Result<bool, IndexError> {
        let stored = self.memory().and_then(|memory| memory.recorded.stored_number(cache, name));
        self.read(Reading::Some, |tx| {
            let oldest = pending::oldest(tx, cache, &[name])?;
            Ok(!oldest.is_empty() && pending::there(tx, stored.as_slice())?.is_empty())
        })
    }

    /// As [`is_unplaced`](Self::is_unplaced), for the names of a commit: what this process remembers may be out of date, and
    /// [`commit`](Self::commit) finds that out.
    pub(crate) fn placings(&self, cache: CacheId, names: &[&str]) -> Result<Vec<Placing>, IndexError> {
        let stored = |name: &&str| self.memory().and_then(|memory| memory.recorded.stored_number(cache, name));
        let stored: Vec<Option<i64>> = names.iter().map(stored).collect();
        let asked = names.iter().zip(&stored).filter(|(_, stored)| stored.is_none());
        let asked: Vec<&str> = asked.map(|(name, _)| *name).collect();
        let oldest = match asked.is_empty() {
            true => HashMap::new(),
            false => self.read(Reading::Some, |tx| pending::oldest(tx, cache, &asked))?,
        };
        let pending = |name: &str| oldest.get(name).copied().map_or(Placing::Done, Placing::Pending);
        let all = names.iter().zip(stored);
        Ok(all.map(|(name, stored)| stored.map_or_else(|| pending(name), Placing::Stored)).collect())
    }
}
