//! What a process remembers of names below `nar/`, so that an upload to a shared database takes few transactions.

mod recorded;
mod together;

use quick_cache::sync::Cache as Remembered;

pub(super) use self::recorded::RecordedNames;
pub(super) use self::together::{Addition, Together};
use super::records::{CacheId, NarRecord};

/// The most names of NARs of which is remembered what they mean.
const REMEMBERED_MAX: usize = 16 * 1024;

/// See the module's description.
pub(crate) struct Memory {
    /// What names of NARs mean, under which stamp.
    pub(super) files: Remembered<(CacheId, String), (u64, NarRecord)>,
    /// Names that are being recorded.
    pub(super) together: Together,
    /// Names that this process has recorded.
    pub(super) recorded: RecordedNames,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            files: Remembered::new(REMEMBERED_MAX),
            together: Together::default(),
            recorded: RecordedNames::default(),
        }
    }
}
