//! What a process remembers of NARs, so that uploads to a shared database take few transactions, and requests none.

mod together;

use quick_cache::sync::Cache as Remembered;

pub(super) use self::together::{Addition, Together};
use crate::records::paths::{CacheId, NamedNar};

/// The most names of NARs of which is remembered what they mean.
const REMEMBERED_MAX: usize = 16 * 1024;

/// See the module's description.
pub(crate) struct Memory {
    /// What names of NARs mean, under which stamp.
    pub(super) files: Remembered<(CacheId, String), (u64, NamedNar)>,
    /// Those that are being recorded.
    pub(super) together: Together,
}

impl Default for Memory {
    fn default() -> Self {
        Self { files: Remembered::new(REMEMBERED_MAX), together: Together::default() }
    }
}
