//! The room on a disk, and what of it uploads leave to the index and the audit log: deleting paths needs some.

/// The most bytes that uploads leave free.
const RESERVE_MAX: u64 = 16 << 20;

/// On a small disk, uploads leave this part of it free.
const RESERVE_PART: u64 = 16;

/// The room on a disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    free: u64,
    reserve: u64,
}

impl Room {
    /// Of a disk with so many bytes, of which these are free.
    pub(crate) fn new(free: u64, all: u64) -> Self {
        Self { free, reserve: RESERVE_MAX.min(all / RESERVE_PART) }
    }

    /// Whether this many bytes may be uploaded.
    pub(crate) fn has_for_upload(self, bytes: u64) -> bool {
        self.free >= bytes.saturating_add(self.reserve)
    }

    /// Whether what is uploaded may be committed. This takes some of what uploads have left, and leaves enough for deleting paths.
    pub(crate) fn has_for_commit(self) -> bool {
        self.free >= self.reserve / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_leave_room_for_commits_and_both_for_deleting() {
        const GIB: u64 = 1 << 30;
        assert!(Room::new(GIB, GIB).has_for_upload(GIB - RESERVE_MAX));
        assert!(!Room::new(GIB, GIB).has_for_upload(GIB - RESERVE_MAX + 1));
        let full = Room::new(RESERVE_MAX - 1, GIB);
        assert!(!full.has_for_upload(0) && full.has_for_commit());
        assert!(!Room::new(RESERVE_MAX / 2 - 1, GIB).has_for_commit());
        assert!(Room::new(5 << 20, 6 << 20).has_for_upload(4 << 20), "a small disk");
        assert!(!Room::new(GIB, GIB).has_for_upload(u64::MAX));
    }
}
