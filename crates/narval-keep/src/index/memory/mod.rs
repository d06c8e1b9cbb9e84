//! What a process remembers of names below `nar/`, so that an upload to a shared database takes few transactions.

mod recorded;

use quick_cache::sync::Cache as Remembered;

pub(super) use self::recorded::RecordedNames;
use super::records::{CacheId, NarRecord};

/// The most names of NARs of which is remembered what they mean.
const REMEMBERED_MAX: usize = 16 * 1024;

/// See the module's description.
pub(crate) struct Memory {
    /// What names of NARs mean, under which stamp.
    pub(super) files: Remembered<(CacheId, String), (u64, NarRecord)>,
    /// Names that this process has recorded.
    pub(super) recorded: RecordedNames,
}

impl Default for Memory {
    fn default() -> Self {
        Self { files: Remembered::new(REMEMBERED_MAX), recorded: RecordedNames::default() }
    }
}
