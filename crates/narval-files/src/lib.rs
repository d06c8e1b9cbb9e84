//! Files on disk that several threads and processes share.
//!
//! - [`TemporaryFile`]: a file without a name that others rely on yet. Its owner has it locked, so what a killed process leaves behind is known and
//!   removed ([`remove_leftovers`]).
//! - [`DiskCache`]: a folder within a budget. The least recently used file is removed first.
//! - [`GrowingFile`]: a file that is read while it grows, with one writer and many readers.
//! - [`Fetches`]: which files are being filled: each by one thread, however many ask for it.
//! - [`Background`]: threads that are started on demand, and the jobs that wait for one.
//! - [`FileAt`]: reads a file whose position others use.
//! - [`Permits`]: how many may do something at a time, with a share for each client.
//! - [`Work`]: how far long work is, and whether it shall stop.

#![forbid(unsafe_code)]

mod background;
mod disk_cache;
mod fetches;
mod file_at;
mod growing_file;
mod permits;
mod temporary;
mod work;

pub use background::{Background, Job};
pub use disk_cache::DiskCache;
pub use fetches::{Fetcher, Fetches, FetchesLocked};
pub use file_at::FileAt;
pub use growing_file::{ABANDONED_AFTER, FillEnd, GrowingFile, Progress, Start, Waits};
pub use permits::{Permit, Permits, WorksFor, served_client, work_for};
pub use temporary::{
    TemporaryDirectory, TemporaryFile, has_name, is_temporary_name, random, remove_leftovers, take_leftover,
    temporary_name,
};
pub use work::{Done, Reading, Step, Work, renewed, uptime};
