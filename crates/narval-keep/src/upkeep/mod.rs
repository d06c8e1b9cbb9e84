//! What operators run beside a server, or instead of one: checks, rebuilding the index, backups, copies to other places, recompression.

pub(crate) mod backup;
pub(crate) mod export;
pub(crate) mod fsck;
pub(crate) mod migrate;
pub(crate) mod rebuild;
pub(crate) mod recompress;
pub(crate) mod sign;

pub use backup::{BackedUp, BackupOptions, BackupSummary, Removed, Restored};
pub use export::Imported;
pub use fsck::{FsckOptions, FsckReport};
pub use migrate::{MigrateError, Migrated};
pub use recompress::{RECOMPRESSED_GRACE, Recompressed};
pub use sign::SignReport;
