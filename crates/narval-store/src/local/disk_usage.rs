//! The bytes on disk that removing files would free, without removing them.

use std::collections::HashMap;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::remove::list;

/// The maximum depth of directories that is looked into: each is open meanwhile.
const DEPTH_MAX: usize = 200;

/// Counts as [`crate::remove::remove_tree`] does: a file with several links is freed with its last one.
#[derive(Debug, Default)]
pub(super) struct DiskUsage {
    bytes: u64,
    /// Files with other links, by device and inode: links that are left, and the size.
    linked: HashMap<(u64, u64), (u64, u64)>,
}

impl DiskUsage {
    /// Adds a file or tree. What cannot be read counts as nothing.
    pub(super) fn add(&mut self, at: BorrowedFd<'_>, name: &CStr) {
        if let Err(error) = self.add_below(at, name, 0) {
            tracing::debug!("the size of '{}' is unknown: {error}", name.to_string_lossy());
        }
    }

    /// Adds the files of a directory that would have no other link then.
    pub(super) fn add_unused(&mut self, directory: BorrowedFd<'_>) -> Result<(), Errno> {
        for (name, _) in list(directory)? {
            let Ok(stat) = rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let left = self.linked.get(&identity(&stat)).map_or(links(&stat), |(left, _)| *left);
            if left == 1 && FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                self.bytes += bytes(&stat);
            }
        }
        Ok(())
    }

    /// The bytes that would be freed.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn add_below(&mut self, at: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<(), Errno> {
        let stat = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            let (left, len) = self.linked.entry(identity(&stat)).or_insert((links(&stat), bytes(&stat)));
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.bytes += *len;
            }
            if links(&stat) == 1 {
                self.linked.remove(&identity(&stat));
            }
            return Ok(());
        }
        self.bytes += bytes(&stat);
        if depth < DEPTH_MAX {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = rustix::fs::openat(at, name, flags, Mode::empty())?;
            for (name, _) in list(directory.as_fd())? {
                self.add_below(directory.as_fd(), &name, depth + 1)?;
            }
        }
        Ok(())
    }
}

fn bytes(stat: &Stat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0) * 512
}

#[allow(clippy::unnecessary_cast, reason = "the fields' types differ between architectures")]
fn links(stat: &Stat) -> u64 {
    stat.st_nlink as u64
}

#[allow(clippy::unnecessary_cast, reason = "the fields' types differ between architectures")]
fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev as u64, stat.st_ino as u64)
}
