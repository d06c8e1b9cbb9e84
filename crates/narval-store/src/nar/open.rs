//! Opens the files of a planned NAR: beneath the root, never through a symlink.

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::NarIoError;
use super::layout::{Kind, NarLayout};
use super::plan::{identity, open_root};

/// If a FIFO has replaced a file, opening it must not block; a terminal must not become our controlling terminal.
const FILE_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// The open root of a NAR.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) path: PathBuf,
    /// `None` for a NAR of one file or symlink.
    directory: Option<OwnedFd>,
}

impl Root {
    /// Opens the root that a layout was planned from, and checks that it is still the same.
    pub(super) fn open(layout: &NarLayout, path: &Path) -> Result<Self, NarIoError> {
        let changed = |change| NarIoError::Changed { path: path.to_owned(), change };
        let is_directory = layout.record(0).is_some_and(|root| root.kind == Kind::Directory);
        let directory = if is_directory { Some(open_root(path)?) } else { None };
        let stat = match &directory {
            Some(directory) => rustix::fs::fstat(directory),
            None => rustix::fs::lstat(path),
        };
        let stat = stat.map_err(|error| NarIoError::io("read", path, error))?;
        if identity(&stat) != layout.root {
            return Err(changed("it was replaced"));
        }
        Ok(Self { path: path.to_owned(), directory })
    }

    /// Opens a regular file by its NUL-terminated path below the root.
    pub(super) fn open_file(&self, below: &[u8]) -> Result<File, Errno> {
        let file = match &self.directory {
            None => rustix::fs::open(&self.path, FILE_FLAGS, Mode::empty())?,
            Some(root) => {
                let below = CStr::from_bytes_with_nul(below).map_err(|_| Errno::INVAL)?;
                open_beneath(root.as_fd(), below)?
            }
        };
        Ok(file.into())
    }
}

/// Opens a file of a folder for reading by its path below the folder, and never through a symlink. A FIFO or a terminal
/// does not block; the caller must check that it is a regular file. Uses `openat2(2)`; if an old container runtime
/// forbids that, opens one directory after the other.
///
/// # Errors
/// `EXDEV` for a path outside the folder, `ELOOP` for a symlink, and the errors of `open`.
pub fn open_beneath(root: BorrowedFd<'_>, below: &CStr) -> Result<OwnedFd, Errno> {
    open_resolved(root, below, FILE_FLAGS, BENEATH)
}

/// Opens a file of a folder for reading by its path below the folder. Symlinks are followed as long as they stay below
/// the folder, and not at all if the kernel has no `openat2` or a container forbids it. A FIFO or a terminal does not
/// block; the caller must check that it is a regular file.
///
/// # Errors
/// `EXDEV` for a path or a symlink outside the folder, and the errors of `open`.
pub fn open_in_folder(folder: BorrowedFd<'_>, below: &CStr) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
    open_resolved(folder, below, FILE_FLAGS.difference(OFlags::NOFOLLOW), resolve)
}

fn open_resolved(root: BorrowedFd<'_>, below: &CStr, flags: OFlags, resolve: ResolveFlags) -> Result<OwnedFd, Errno> {
    static FORBIDDEN: AtomicBool = AtomicBool::new(false);
    if !FORBIDDEN.load(Ordering::Relaxed) {
        match rustix::fs::openat2(root, below, flags, Mode::empty(), resolve) {
            Err(Errno::NOSYS | Errno::PERM) => FORBIDDEN.store(true, Ordering::Relaxed),
            opened => return opened,
        }
    }
    let dots = |part: &[u8]| matches!(part, b"." | b"..");
    if below.to_bytes().starts_with(b"/") || below.to_bytes().split(|byte| *byte == b'/').any(dots) {
        return Err(Errno::XDEV);
    }
    open_by_steps(root, below)
}

fn open_by_steps(root: BorrowedFd<'_>, below: &CStr) -> Result<OwnedFd, Errno> {
    let (directories, name) = match below.to_bytes().iter().rposition(|byte| *byte == b'/') {
        Some(at) => below.to_bytes().split_at(at),
        None => (&[][..], below.to_bytes()),
    };
    let step = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut at: Option<OwnedFd> = None;
    for directory in directories.split(|byte| *byte == b'/').filter(|directory| !directory.is_empty()) {
        let from = at.as_ref().map_or(root, AsFd::as_fd);
        at = Some(rustix::fs::openat(from, directory, step, Mode::empty())?);
    }
    let name = name.strip_prefix(b"/").unwrap_or(name);
    rustix::fs::openat(at.as_ref().map_or(root, AsFd::as_fd), name, FILE_FLAGS, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    #[test]
    fn both_ways_open_files_and_nothing_through_a_symlink() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/file"), "contents").unwrap();
        std::fs::write(dir.path().join("top"), "top").unwrap();
        symlink("b", dir.path().join("a/link")).unwrap();
        symlink("file", dir.path().join("a/b/to-file")).unwrap();
        symlink("/etc", dir.path().join("etc")).unwrap();
        let root = open_root(dir.path()).unwrap();
        for open in [open_beneath, open_by_steps] {
            for (path, contents) in [(c"a/b/file", "contents"), (c"top", "top")] {
                let mut text = String::new();
                File::from(open(root.as_fd(), path).unwrap()).read_to_string(&mut text).unwrap();
                assert_eq!(text, contents);
            }
            for path in [c"a/link/file", c"a/b/to-file", c"etc/hostname", c"a/none"] {
                assert!(open(root.as_fd(), path).is_err(), "{path:?}");
            }
        }
        assert!(open_beneath(root.as_fd(), c"../x").is_err());
    }
}
