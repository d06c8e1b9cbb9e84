//! Making room when the disk or a quota is full.
//!
//! NARs that no path has are what a push that was given up has left, or what a collection has hidden. They stay for a day while there is room. When
//! there is none, those that nobody has used for [`UNFINISHED_GRACE`] are removed: before a large upload, after one that failed for
//! want of room, and then every minute for as long as the shortage is recent.

use std::sync::atomic::Ordering;

use rustix::fs::statvfs;

use super::collect::UNFINISHED_GRACE;
use crate::written::data::Data;
use crate::written::{Cache, Refusal, RefusalKind};

/// Room that is left beside an upload, for the index and the audit log, in bytes.
const RESERVE_BYTES: u64 = 16 << 20;

impl Data {
    /// Whether a disk or a quota was full lately: what can wait to be kept should not be.
    pub fn is_short_of_room(&self) -> bool {
        self.shared().shortage.is_recent(crate::written::now())
    }

    /// Removes NARs of all caches that no path refers to and that were not used for a while. Not to be called with the
    /// storage lock.
    pub(in crate::written) fn make_room(&self) {
        let now = crate::written::now();
        if !self.shared().shortage.begin(now) {
            return;
        }
        // Who was told that a NAR is here counts.
        self.shared().record();
        let caches = self.caches().map_err(|error| tracing::error!("cannot free space: {error}"));
        for cache in caches.unwrap_or_default() {
            match cache.sweep(UNFINISHED_GRACE, now) {
                Ok((0, _)) => {}
                Ok((files, bytes)) => tracing::warn!(
                    "cache '{}': out of space: deleted {files} NARs without a path ({bytes} bytes)",
                    cache.name()
                ),
                Err(refusal) => tracing::error!("cache '{}': cannot free space: {refusal}", cache.name()),
            }
        }
    }

    /// Makes room if a shortage is recent: to be called from time to time.
    pub(in crate::written) fn make_room_again(&self) {
        if self.is_short_of_room() {
            self.make_room();
        }
    }
}

impl Cache {
    /// Makes room before so many bytes come, if the disk has less. It is not refused then: only writing tells what there is.
    pub(in crate::written) fn make_room_for(&self, bytes: u64) {
        let free = statvfs(self.storage().path()).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        if free.is_ok_and(|free| free < bytes.saturating_add(RESERVE_BYTES)) {
            self.data().make_room();
        }
    }

    /// Makes room after something failed for want of it.
    pub(in crate::written) fn notice_shortage(&self, refusal: &Refusal) {
        if refusal.kind == RefusalKind::NoSpace {
            let data = self.data();
            data.shared().shortage.noticed.store(self.now(), Ordering::Relaxed);
            data.make_room();
        }
    }
}
