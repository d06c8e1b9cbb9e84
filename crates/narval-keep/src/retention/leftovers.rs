//! Objects without a name, which a server has stored and not recorded before it was killed ([`unrecorded`](crate::receive::unrecorded)).
//!
//! A server that may have stored some has a row, and says every hour that it is alive. The rows of those that say nothing are found by the next
//! collection: it lists the NARs, and removes those without a name that were stored at that time. Their names are condemned first, so a
//! commit that brings a receipt for one waits, or finds that it is gone.

use std::time::{Duration, SystemTime};

use super::lease::{Collection, keep_while};
use crate::index::WRITER_FRESH_FOR;
use crate::receive::unrecorded::{RECORD_AFTER, RENEW_EVERY};
use crate::rule::holds;
use crate::storage::StoredFile;
use crate::{Cache, NarFileName, Refusal, RefusalKind};

/// A server that has said nothing for this long is dead.
const GONE_AFTER: Duration = Duration::from_secs(3 * RENEW_EVERY.as_secs());

/// By how much the clocks of the object store, the database and this machine may differ, and how long it may take to store an object.
const MARGIN: Duration = RENEW_EVERY;

/// How long after its last sign of life a server may have stored something.
const STORED_UNTIL: Duration = Duration::from_secs(WRITER_FRESH_FOR + MARGIN.as_secs());
const _: () = assert!(STORED_UNTIL.as_secs() < GONE_AFTER.as_secs(), "what others have just stored stays");

/// The age from which an object without a name is of nobody that is alive.
const STRAY_AFTER: Duration = Duration::from_secs(6 * RECORD_AFTER.as_secs());

/// Names that are condemned in one step.
const STEP: usize = 256;

/// The most objects of one cache that are looked at in one collection. The next one goes on.
const LOOKED_AT_MAX: usize = 1 << 20;

impl Cache {
    /// Removes what dead servers have stored and not recorded.
    pub(super) fn remove_leftovers(&self, collection: &Collection<'_>) -> Result<(), Refusal> {
        if !self.takes_many_nars() {
            return Ok(());
        }
        let mut dead = self.index().writers(self.id())?;
        dead.retain(|writer| writer.seen >= GONE_AFTER);
        let ago = |ago: Duration| self.time_ago(ago);
        let times: Vec<_> = dead
            .iter()
            .map(|writer| ago(writer.begun + MARGIN)..ago(writer.seen.saturating_sub(STORED_UNTIL)))
            .collect();
        if times.is_empty() {
            return Ok(());
        }
        let mut found = Vec::new();
        let is_wanted = |file: &StoredFile| {
            file.modified.is_none_or(|modified| times.iter().any(|times| times.contains(&modified)))
        };
        let mut visit = |file: StoredFile| {
            let name = file.name.strip_prefix("nar/").map(NarFileName::parse);
            if let Some(Ok(name)) = name
                && found.len() < LOOKED_AT_MAX
                && is_wanted(&file)
            {
                found.push(name);
            }
        };
        let failed = |error: std::io::Error| Refusal::of_file("list", self.files().place().display(), &error);
        if let Err(refusal) = keep_while(Some(collection), || self.files().each_nar(&mut visit).map_err(failed)) {
            // Without the permission to list, everything else is collected all the same. The next collection tries again.
            tracing::error!("cache '{}': NARs of servers that were killed stay: {refusal}", self.name());
            return Ok(());
        }
        let (is_all, mut removed) = (found.len() < LOOKED_AT_MAX, 0);
        for step in found.chunks(STEP) {
            removed += self.remove_strays(collection, step)?;
        }
        if removed > 0 {
            tracing::info!("cache '{}': removed {removed} NARs of servers that were killed", self.name());
        }
        if is_all || removed == 0 {
            for writer in dead {
                self.index().end_writer(writer.number)?;
            }
        }
        Ok(())
    }

    /// Removes those of these objects that have no name. Returns their number.
    fn remove_strays(&self, collection: &Collection<'_>, names: &[NarFileName]) -> Result<usize, Refusal> {
        let texts: Vec<String> = names.iter().map(ToString::to_string).collect();
        let known = self.index().have_rows(self.id(), &texts.iter().map(String::as_str).collect::<Vec<_>>())?;
        let strays: Vec<NarFileName> =
            names.iter().zip(known).filter(|(_, is_known)| !is_known).map(|(name, _)| *name).collect();
        if strays.is_empty() {
            return Ok(0);
        }
        if !holds!(Stray) {
            let names: Vec<(String, u64)> = strays.iter().map(|stray| (stray.to_string(), 0)).collect();
            self.remove_bytes(collection, &names)?;
            return Ok(strays.len());
        }
        let now = self.now();
        let condemned = collection.step(|fence| self.index().condemn_strays(fence, self.id(), &strays, now))?;
        let condemned: Vec<(String, u64)> = condemned.into_iter().map(|name| (name, 0)).collect();
        self.remove_bytes(collection, &condemned)?;
        collection.step(|fence| self.index().forget(fence, self.id(), &condemned))?;
        Ok(condemned.len())
    }

    /// Of objects without a name, those that no server is about to record.
    pub(crate) fn strays_of_nobody(
        &self,
        strays: &[(NarFileName, Option<SystemTime>)],
    ) -> Result<Vec<NarFileName>, Refusal> {
        if strays.is_empty() {
            return Ok(Vec::new());
        }
        let is_anybody_writing = !self.index().writers(self.id())?.is_empty();
        let old = self.time_ago(STRAY_AFTER);
        let is_of_nobody =
            |modified: Option<SystemTime>| !is_anybody_writing || modified.is_some_and(|time| time < old);
        Ok(strays.iter().filter(|(_, modified)| is_of_nobody(*modified)).map(|(name, _)| *name).collect())
    }

    /// The time so long ago, by the clock of the index: the object store's is the same within a minute, whatever that of this machine says.
    fn time_ago(&self, ago: Duration) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(self.now()).saturating_sub(ago)
    }

    /// Removes objects without a name, if no collection is at work.
    pub(crate) fn remove_strays_of_fsck(&self, strays: &[NarFileName]) -> Result<(), Refusal> {
        let busy = || Refusal::new(RefusalKind::Busy, "another process is collecting; try again in a few minutes");
        let collection = Collection::begin(self)?.ok_or_else(busy)?;
        strays.chunks(STEP).try_for_each(|step| self.remove_strays(&collection, step).map(drop))
    }
}
