//! Removes a tree of any depth below a directory handle, without following symlinks.

use std::ffi::{CStr, CString, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

use narval_files::{TemporaryDirectory, is_temporary_name, take_leftover};

/// Size of the buffer for directory entries.
const DIRECTORY_BUFFER_LEN: usize = 16 * 1024;

/// The maximum number of open directories; deeper ones are moved up, see [`Removal::move_up`].
const DEPTH_MAX: usize = 200;

/// The prefix of temporary directories for subtrees that were too deep.
const DEEP: &str = ".tmp-deep-";

/// A tree of which something could not be removed; the rest of it was.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotRemoved {
    /// The first file that could not be removed, below the directory.
    pub(crate) path: PathBuf,
    /// Why.
    pub(crate) errno: Errno,
    /// Bytes freed on disk.
    pub(crate) freed: u64,
}

/// Removes a file, symlink or directory with its contents. Returns the bytes freed on disk; files with other links do
/// not count. Succeeds if it does not exist.
pub(crate) fn remove_tree(directory: BorrowedFd<'_>, name: &CStr) -> Result<u64, NotRemoved> {
    let mut removal = Removal { top: directory, deep: None, freed: 0, at: PathBuf::new(), failed: None };
    removal.remove(directory, name, 0);
    if let Err(errno) = gone(removal.remove_deep()) {
        removal.failed(errno);
    }
    match removal.failed {
        None => Ok(removal.freed),
        Some((path, errno)) => Err(NotRemoved { path, errno, freed: removal.freed }),
    }
}

/// Removes the leftovers of killed processes that were removing deep trees in this directory. Returns the bytes freed.
pub(crate) fn remove_deep_leftovers(directory: BorrowedFd<'_>) -> Result<u64, Errno> {
    remove_leftover_directories(directory, DEEP)
}

/// Removes the temporary directories of processes that have ended, with their contents. Returns the bytes freed.
pub(crate) fn remove_leftover_directories(directory: BorrowedFd<'_>, prefix: &str) -> Result<u64, Errno> {
    let mut freed = 0;
    for (name, _) in list(directory)? {
        if is_temporary_name(OsStr::from_bytes(name.to_bytes()), prefix)
            && let Some(_lock) = take_leftover(directory, name.as_c_str()).map_err(|error| errno(&error))?
        {
            freed += remove_tree(directory, &name).map_err(|left| left.errno)?;
        }
    }
    Ok(freed)
}

struct Removal<'a> {
    top: BorrowedFd<'a>,
    /// A directory beside the tree for subtrees that were too deep, with numbers as names.
    deep: Option<(TemporaryDirectory<'a>, u64)>,
    freed: u64,
    /// What is being removed, below `top`.
    at: PathBuf,
    /// The first file that could not be removed.
    failed: Option<(PathBuf, Errno)>,
}

impl Removal<'_> {
    /// Another process may be removing the same tree: files that are already gone count as removed. What cannot be
    /// removed is recorded, and the rest is removed nevertheless.
    fn remove(&mut self, at: BorrowedFd<'_>, name: &CStr, depth: usize) {
        self.at.push(OsStr::from_bytes(name.to_bytes()));
        if let Err(errno) = gone(self.remove_one(at, name, depth)) {
            self.failed(errno);
        }
        self.at.pop();
    }

    fn failed(&mut self, errno: Errno) {
        let at = &self.at;
        self.failed.get_or_insert_with(|| (at.clone(), errno));
    }

    fn remove_one(&mut self, at: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<(), Errno> {
        let stat = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            rustix::fs::unlinkat(at, name, AtFlags::empty())?;
            if stat.st_nlink == 1 {
                self.freed += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
            }
            return Ok(());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = match rustix::fs::openat(at, name, flags, Mode::empty()) {
            // Unreadable to its owner: it can only be changed by name, and a symlink put here meanwhile is not
            // followed.
            Err(Errno::ACCESS) => {
                rustix::fs::chmodat(at, name, Mode::RWXU, AtFlags::SYMLINK_NOFOLLOW)?;
                rustix::fs::openat(at, name, flags, Mode::empty())?
            }
            opened => opened?,
        };
        // Store directories are read-only, which only root can ignore.
        if stat.st_mode & 0o700 != 0o700 {
            rustix::fs::fchmod(&handle, Mode::RWXU)?;
        }
        for (name, kind) in list_once(handle.as_fd())? {
            if depth >= DEPTH_MAX && kind == FileType::Directory {
                gone(self.move_up(&handle, &name))?;
            } else {
                self.remove(handle.as_fd(), &name, depth + 1);
            }
        }
        drop(handle);
        rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR)?;
        self.freed += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        Ok(())
    }

    /// Moves a directory that is too deep beside the tree, to be removed there.
    fn move_up(&mut self, from: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        let (deep, moved) = match &mut self.deep {
            Some(deep) => deep,
            none => none.insert((TemporaryDirectory::create(self.top, DEEP).map_err(|error| errno(&error))?, 0)),
        };
        *moved += 1;
        rustix::fs::chmodat(from, name, Mode::RWXU, AtFlags::empty())?;
        rustix::fs::renameat(from, name, deep.handle(), moved.to_string())
    }

    /// Removes the directories that were moved up. Those that are too deep again are moved up again.
    fn remove_deep(&mut self) -> Result<(), Errno> {
        let Some((deep, _)) = &self.deep else { return Ok(()) };
        let handle = deep.handle().try_clone_to_owned().map_err(|error| errno(&error))?;
        loop {
            let names = list(handle.as_fd())?;
            if names.is_empty() || self.failed.is_some() {
                return Ok(());
            }
            for (name, _) in names {
                self.remove(handle.as_fd(), &name, 0);
            }
        }
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn gone(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// The names in a directory, with their types if the file system provides them. A handle may be listed repeatedly and
/// by several threads: each listing has its own position.
pub(crate) fn list(directory: BorrowedFd<'_>) -> Result<Vec<(CString, FileType)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    list_once(rustix::fs::openat(directory, c".", flags, Mode::empty())?.as_fd())
}

/// Like [`list`], for a handle that was never listed.
fn list_once(directory: BorrowedFd<'_>) -> Result<Vec<(CString, FileType)>, Errno> {
    let mut buffer: Vec<u8> = Vec::with_capacity(DIRECTORY_BUFFER_LEN);
    let spare: &mut [MaybeUninit<u8>] = buffer.spare_capacity_mut();
    let mut entries = RawDir::new(directory, spare);
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push((entry.file_name().to_owned(), entry.file_type()));
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn deep_and_read_only_trees_are_removed_without_following_symlinks() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::write(&outside, "kept").unwrap();
        let handle = std::fs::File::open(dir.path()).unwrap();
        let tree = dir.path().join("tree");
        let mut at = tree.clone();
        // Deeper than the usual limit of open files.
        for _ in 0..6 * DEPTH_MAX {
            at.push("d");
        }
        std::fs::create_dir_all(&at).unwrap();
        std::fs::write(tree.join("file"), "contents").unwrap();
        symlink(&outside, tree.join("link")).unwrap();
        symlink(dir.path(), tree.join("link-to-directory")).unwrap();
        std::fs::set_permissions(tree.join("d"), PermissionsExt::from_mode(0o555)).unwrap();
        std::fs::set_permissions(&tree, PermissionsExt::from_mode(0o555)).unwrap();
        assert!(remove_tree(handle.as_fd(), c"tree").unwrap() > 0);
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "kept");
        for _ in 0..2 {
            let left: Vec<_> = list(handle.as_fd()).unwrap().into_iter().map(|(name, _)| name).collect();
            assert_eq!(left, [c"outside".to_owned()]);
        }
        assert_eq!(remove_tree(handle.as_fd(), c"tree"), Ok(0));
    }

    /// Two processes that remove leftovers at the same time find the same tree.
    #[test]
    fn several_processes_can_remove_one_tree() {
        let dir = tempfile::tempdir().unwrap();
        let handle = std::fs::File::open(dir.path()).unwrap();
        for _ in 0..12 {
            let mut deep = dir.path().join("tree");
            (0..DEPTH_MAX + 3).for_each(|_| deep.push("d"));
            std::fs::create_dir_all(deep).unwrap();
            for number in 0..20 {
                std::fs::create_dir_all(dir.path().join(format!("tree/{number}/below"))).unwrap();
            }
            std::thread::scope(|scope| {
                let removals = [(); 3].map(|()| scope.spawn(|| remove_tree(handle.as_fd(), c"tree")));
                removals.into_iter().for_each(|removal| assert!(removal.join().unwrap().is_ok()));
            });
            assert!(list(handle.as_fd()).unwrap().is_empty());
        }
    }

    /// Subtrees that are too deep are moved into a locked directory: another process leaves it alone, but removes what
    /// a killed process left.
    #[test]
    fn deep_subtrees_are_locked_while_their_remover_lives() {
        let dir = tempfile::tempdir().unwrap();
        let handle = std::fs::File::open(dir.path()).unwrap();
        let mut removal = Removal { top: handle.as_fd(), deep: None, freed: 0, at: PathBuf::new(), failed: None };
        std::fs::create_dir_all(dir.path().join("tree/deep/deeper")).unwrap();
        let tree: OwnedFd = std::fs::File::open(dir.path().join("tree")).unwrap().into();
        removal.move_up(&tree, c"deep").unwrap();
        remove_deep_leftovers(handle.as_fd()).unwrap();
        assert_eq!(list(handle.as_fd()).unwrap().len(), 2);
        // As if it was killed: the lock is released without emptying the directory.
        drop(removal);
        assert_eq!(list(handle.as_fd()).unwrap().len(), 2);
        // A directory with another name stays.
        std::fs::create_dir(dir.path().join(".tmp-deep-123-4")).unwrap();
        remove_deep_leftovers(handle.as_fd()).unwrap();
        assert_eq!(list(handle.as_fd()).unwrap().len(), 2);
    }
}
