//! What a backup holds: NARs of the cache, and a bucket that it is written to.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use narval_client::clock;
use narval_files::renewed;
use narval_nix::Sha256;

use crate::error::DataError;
use crate::index::Index;
use crate::location::StorageLocation;
use crate::name::CacheName;
use crate::records::leases::{Held, collection_lease};
use crate::rejection::Rejection;
use crate::upkeep::MigrateError;

/// How much longer than its lease it is waited for one that may have been killed.
const KILLED_MORE: Duration = Duration::from_secs(5);

/// How often it is looked for its end.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Keeps collections from removing NARs, and other backups of this data from the same bucket. A folder has a lock for that.
pub(super) struct Hold<'a> {
    index: &'a dyn Index,
    held: Held,
    /// Until when nobody else takes it.
    until: Mutex<Instant>,
}

impl<'a> Hold<'a> {
    /// Waits for the end of a backup into the same bucket that was killed.
    pub(super) fn begin(index: &'a dyn Index, to: &StorageLocation) -> Result<Self, DataError> {
        let of = match to {
            StorageLocation::Folder(_) => None,
            StorageLocation::Bucket { url, .. } => Some(Sha256::of(url.to_string().as_bytes()).to_nix32()),
        };
        let begun = clock::instant();
        loop {
            let asked_at = clock::instant();
            if let Some(held) = index.hold_nars(of.as_deref())? {
                return Ok(Self { index, held, until: Mutex::new(asked_at + collection_lease()) });
            }
            if clock::since(begun) > collection_lease() + KILLED_MORE {
                let reason = "another backup is being made in it: wait until that has ended".to_owned();
                return Err(DataError::IndexMismatch { folder: to.to_string().into(), reason });
            }
            clock::sleep(LOOK_EVERY);
        }
    }

    /// Fails if somebody else may have taken it.
    pub(super) fn renew(&self) -> Result<(), MigrateError> {
        let asked_at = clock::instant();
        if !self.index.keep_hold(&self.held)? {
            let message = "the backup was suspended for too long, and what it needs may be gone: run it again";
            let (cache, rejection) = (CacheName::default(), Rejection::conflict(message));
            return Err(MigrateError::Rejected { cache, rejection });
        }
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = asked_at + collection_lease();
        Ok(())
    }

    /// Until when nobody else takes it.
    pub(super) fn until(&self) -> Instant {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps it while something is done.
    pub(super) fn keep_while<T>(&self, work: impl FnOnce() -> Result<T, MigrateError>) -> Result<T, MigrateError> {
        let renew = || {
            if let Err(error) = self.renew() {
                tracing::debug!("{error}");
            }
        };
        renewed(collection_lease() / 4, renew, work)
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        // Otherwise it ends by itself.
        self.index.end_hold(&self.held).ok();
    }
}
