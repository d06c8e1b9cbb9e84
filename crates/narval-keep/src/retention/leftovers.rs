//! Files without a row: a server was killed, or could not ask the index, before it recorded what it had stored.
//!
//! Such a server leaves the row that says that it may store something ([`writing`](crate::shared::writing)). When that has said nothing for long
//! enough, a collection lists the files below `nar/`, and removes those without a row that are days old: nobody can record them any more.

use std::time::{Duration, SystemTime};

use super::lease::{Collection, keep_while};
use crate::cache::Cache;
use crate::rejection::Rejection;
use crate::rule::holds;
use crate::shared::writing::RECORDED_WITHIN;
use crate::storage::StoredFile;

/// The age from which a file without a row is nobody's, by the clock of the store. A store may date an upload in parts by its beginning.
const NOBODYS_AFTER: Duration = Duration::from_secs(RECORDED_WITHIN + 24 * 60 * 60);

/// When a server has said nothing for so long, all that it has stored is that old.
const GONE_AFTER: Duration = Duration::from_secs(2 * NOBODYS_AFTER.as_secs());

/// Names that are looked up in one step.
const STEP: usize = 256;

/// The most files of one cache that are looked at in one collection. The next one goes on.
const LOOKED_AT_MAX: usize = 1 << 20;

impl Cache {
    /// Removes what dead servers have stored and not recorded.
    pub(super) fn remove_leftovers(&self, collection: &Collection<'_>) -> Result<(), Rejection> {
        let mut dead = self.index().writers(self.id())?;
        dead.retain(|(_, silent)| *silent >= GONE_AFTER);
        if dead.is_empty() {
            return Ok(());
        }
        let (old, mut found) = (self.time_ago(NOBODYS_AFTER), Vec::new());
        let mut visit = |file: StoredFile| {
            if found.len() < LOOKED_AT_MAX
                && (file.modified.is_some_and(|modified| modified < old) || !holds!(Old))
                && let Some(name) = nar_of(&file.name)
            {
                found.push(name.to_owned());
            }
        };
        let failed = |error: std::io::Error| Rejection::of_file("list", self.files().place().display(), &error);
        if let Err(rejection) = keep_while(Some(collection), || self.files().each_nar(&mut visit).map_err(failed)) {
            // Without the permission to list, everything else is collected all the same. The next collection tries again.
            tracing::error!("cache '{}': NARs of servers that were killed stay: {rejection}", self.name());
            return Ok(());
        }
        let is_all = found.len() < LOOKED_AT_MAX;
        let removed = keep_while(Some(collection), || self.remove_strays(&found))?;
        if removed > 0 {
            tracing::info!("cache '{}': removed {removed} NARs of servers that were killed", self.name());
        }
        if is_all || removed == 0 {
            for (number, _) in dead {
                self.index().end_writer(number)?;
            }
        }
        Ok(())
    }

    /// Removes those of these files that have no row. Returns their number.
    pub(crate) fn remove_strays(&self, names: &[String]) -> Result<usize, Rejection> {
        let mut removed = 0;
        for step in names.chunks(STEP) {
            let strays = self.without_row(step)?;
            removed += strays.len();
            self.remove_bytes(strays.into_iter())?;
        }
        Ok(removed)
    }

    fn without_row<'a>(&self, names: &'a [String]) -> Result<Vec<&'a str>, Rejection> {
        let names = names.iter().map(String::as_str);
        let known = self.index().have_rows(self.id(), &names.clone().collect::<Vec<_>>())?;
        Ok(names.filter(|name| !known.contains(*name)).collect())
    }

    /// Removes all files without a row. Nobody else has the data open.
    pub(crate) fn remove_all_strays(&self) -> Result<(), Rejection> {
        let mut found = Vec::new();
        let mut visit = |file: StoredFile| found.extend(nar_of(&file.name).map(str::to_owned));
        let failed = |error: std::io::Error| Rejection::of_file("list", self.files().place().display(), &error);
        self.files().each_nar(&mut visit).map_err(failed)?;
        self.remove_strays(&found).map(drop)
    }

    /// Of files that were listed before, those that have no row, and that no server is about to record.
    pub(crate) fn strays_of_nobody(
        &self,
        mut strays: Vec<(String, Option<SystemTime>)>,
    ) -> Result<Vec<String>, Rejection> {
        let own = self.state().writing.idle();
        if self.index().writers(self.id())?.iter().any(|(number, _)| Some(*number) != own) {
            let old = self.time_ago(NOBODYS_AFTER);
            strays.retain(|(_, modified)| modified.is_some_and(|time| time < old));
        }
        let (names, mut found) = (strays.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), Vec::new());
        for step in names.chunks(STEP) {
            found.extend(self.without_row(step)?.into_iter().map(str::to_owned));
        }
        Ok(found)
    }

    /// The time so long ago, by the clock of the index: the object store's is the same within a minute, whatever that of this machine says.
    fn time_ago(&self, ago: Duration) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.now()).saturating_sub(ago)
    }
}

/// The name of the NAR that a file is of, or its listing.
pub(crate) fn nar_of(file: &str) -> Option<&str> {
    let name = file.strip_prefix("nar/")?;
    Some(name.strip_suffix(".ls").unwrap_or(name))
}
