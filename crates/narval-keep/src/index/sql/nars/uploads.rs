//! What names of NARs mean, as far as that is remembered, and NARs that are recorded: with those of other uploads ([`Memory`]).

use crate::index::memory::{Addition, Memory};
use crate::index::sql::nars;
use crate::index::tx::NOTE_ALONE;
use crate::index::{Index, IndexError};
use crate::records::paths::{CacheId, NamedNar};

impl Memory {
    /// What a name means, if that is remembered and nothing has changed since.
    fn now(&self, stamp: u64, cache: CacheId, name: &str) -> Option<NamedNar> {
        self.files.get(&(cache, name.to_owned())).filter(|(of, _)| *of == stamp).map(|(_, nar)| nar)
    }
}

impl dyn Index + '_ {
    /// The stored NAR that a name below `nar/` refers to in a cache, with its own name. What was found once is remembered while nothing changes, and
    /// while the database is away.
    pub(crate) fn file(&self, cache: CacheId, name: &str) -> Result<Option<NamedNar>, IndexError> {
        match self.files_named(cache, &[name]) {
            Ok(found) => Ok(found.into_iter().next().flatten()),
            Err(error) if error.is_unavailable() => {
                let remembered = self.memory().and_then(|memory| memory.files.get(&(cache, name.to_owned())));
                remembered.map(|(_, nar)| Some(nar)).ok_or(error)
            }
            Err(error) => Err(error),
        }
    }

    /// As [`file`](Self::file), but what is remembered does not count.
    pub(crate) fn file_now(&self, cache: CacheId, name: &str) -> Result<Option<NamedNar>, IndexError> {
        Ok(self.look_up(cache, &[name])?.remove(name).map(|found| found.nar))
    }

    /// As [`file`](Self::file), for each of these names.
    pub(crate) fn files_named(&self, cache: CacheId, names: &[&str]) -> Result<Vec<Option<NamedNar>>, IndexError> {
        let (memory, stamp) = (self.memory(), self.stamp());
        let now = |name: &&str| memory.and_then(|memory| memory.now(stamp, cache, name));
        let mut found: Vec<Option<NamedNar>> = names.iter().map(now).collect();
        let queried = names.iter().zip(&found).filter(|(_, nar)| nar.is_none());
        // PostgreSQL has no text with NUL.
        let queried: Vec<&str> = queried.map(|(name, _)| *name).filter(|name| !name.contains('\0')).collect();
        let all = self.look_up(cache, &queried)?;
        for (name, nar) in names.iter().zip(&mut found).filter(|(_, nar)| nar.is_none()) {
            *nar = all.get(*name).map(|found| found.nar.clone());
        }
        if let Some(memory) = memory {
            for name in queried {
                let key = (cache, name.to_owned());
                match all.get(name) {
                    // That somebody relies on another one has to be recorded each time.
                    Some(found) if found.is_in_use => memory.files.insert(key, (stamp, found.nar.clone())),
                    _ => drop(memory.files.remove(&key)),
                }
            }
        }
        Ok(found)
    }

    /// Records a NAR whose bytes are stored, unless `until` has passed: with those of other threads. It is durable with the next commit.
    pub(crate) fn record(&self, cache: CacheId, nar: NamedNar, (now, until): (u64, u64)) -> Result<(), IndexError> {
        let Some(memory) = self.memory() else { return self.record_all(cache, vec![nar], (now, until)) };
        let record = |all: &[Addition]| {
            // They are of one cache.
            let Some(cache) = all.first().map(|one| one.cache) else { return Ok(()) };
            let now = all.iter().map(|one| one.now).max().unwrap_or_default();
            let until = all.iter().map(|one| one.until).min().unwrap_or_default();
            self.record_all(cache, all.iter().map(|one| one.nar.clone()).collect(), (now, until))
        };
        memory.together.add(Addition { cache, nar, now, until }, record)
    }

    /// As [`record`](Self::record), for several NARs, by one statement.
    pub(crate) fn record_all(
        &self,
        cache: CacheId,
        nars: Vec<NamedNar>,
        (now, until): (u64, u64),
    ) -> Result<(), IndexError> {
        let names: Vec<String> = nars.iter().map(|(name, _)| name.clone()).collect();
        let added = self.write(NOTE_ALONE, move |tx| nars::add(tx, cache, &nars, (now, until)))?;
        if added < names.len() as u64 {
            // It is too late, or an attempt without an answer has succeeded.
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            if self.have_rows(cache, &names)?.len() < names.len() {
                return Err(IndexError::Late { index: self.name() });
            }
        }
        Ok(())
    }
}
