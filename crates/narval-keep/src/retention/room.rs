//! Frees space when the disk or a quota is full.
//!
//! NARs without a path are from abandoned pushes, or their paths were hidden by a collection. They are kept for a day
//! while there is space. When there is none, those unused for [`UNFINISHED_GRACE`] are deleted: before a large upload,
//! after one that failed for lack of space, and then every minute as long as the shortage is recent.

use std::sync::atomic::Ordering;

use super::grace::UNFINISHED_GRACE;
use crate::cache::Cache;
use crate::data::Data;
use crate::rejection::{Rejection, RejectionKind};
use crate::storage::Room;

/// How long a shortage counts as recent, in seconds: long enough for files that were in use then.
const RECENT: u64 = 2 * UNFINISHED_GRACE;

impl Data {
    /// Whether a disk or a quota was full recently: optional files should not be stored then.
    pub fn is_short_of_room(&self) -> bool {
        let (now, noticed) = (self.shared().index.now(), self.shared().shortage.noticed.load(Ordering::Relaxed));
        now.saturating_sub(noticed) < RECENT
    }

    /// Removes NARs of all caches that no path refers to and that were not used for a while. Not to be called with the
    /// storage lock.
    pub(crate) fn make_room(&self) {
        let now = self.shared().index.now();
        if !self.shared().shortage.begin(now) {
            return;
        }
        // Presence checks count as uses.
        self.shared().record();
        let caches = self.caches().map_err(|error| tracing::error!("cannot free space: {error}"));
        for cache in caches.unwrap_or_default() {
            match cache.sweep(UNFINISHED_GRACE, now) {
                Ok((0, _)) => {}
                Ok((files, bytes)) => tracing::warn!(
                    "cache '{}': out of space: deleted {files} NARs without a path ({bytes} bytes)",
                    cache.name()
                ),
                Err(rejection) => tracing::error!("cache '{}': cannot free space: {rejection}", cache.name()),
            }
        }
    }

    /// Frees space if a shortage is recent; call it periodically.
    pub(crate) fn make_room_again(&self) {
        if self.is_short_of_room() {
            self.make_room();
        }
    }
}

impl Cache {
    /// Refuses an upload of this many bytes for which the disk has no room.
    pub(crate) fn check_room(&self, bytes: u64) -> Result<(), Rejection> {
        let has_room = self.storage().room().is_none_or(|room| room.has_for_upload(bytes));
        if has_room { Ok(()) } else { Err(Rejection::no_space()) }
    }

    /// Refuses a commit if nothing could be deleted afterwards.
    pub(crate) fn check_room_for_commit(&self) -> Result<(), Rejection> {
        let has_room = self.storage().room().is_none_or(Room::has_for_commit);
        if has_room { Ok(()) } else { Err(Rejection::no_space()) }
    }

    /// Frees so much space on the local disk of a server over a bucket, by removing what is in its disk cache.
    pub fn make_disk_room(&self, bytes: u64) {
        self.storage().make_disk_room(bytes);
    }

    /// Frees space after something failed for lack of it.
    pub(crate) fn notice_shortage(&self, rejection: &Rejection) {
        // Objects of a bucket take no space on this disk.
        let is_elsewhere = self.storage().publishes_later() && *rejection == Rejection::no_space();
        if rejection.kind == RejectionKind::NoSpace && !is_elsewhere {
            let data = self.data();
            data.shared().shortage.noticed.store(self.now(), Ordering::Relaxed);
            data.make_room();
        }
    }
}
