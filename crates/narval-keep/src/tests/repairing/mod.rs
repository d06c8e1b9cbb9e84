//! fsck, a rebuilt or restored index, older tables.

pub(super) mod backups;
pub(super) mod exporting;
pub(super) mod fsck;
pub(super) mod migrating;
mod pruning;
pub(super) mod rebuilding;
pub(super) mod recompressing;
pub(super) mod restoring;
