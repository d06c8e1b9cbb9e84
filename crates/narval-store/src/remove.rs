//! Removing a tree below a directory handle, as deep as it may be, following nothing.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

/// Bytes of directory entries read at once.
const DIRECTORY_BUFFER_LEN: usize = 16 * 1024;

/// Directories held open at once; deeper ones are moved up first, see [`flatten`].
const DEPTH_MAX: usize = 200;

/// Removes a file, symlink or directory with all that is in it. Returns the bytes that its files took on disk, those
/// with other names not counted. What isn't there is removed already.
pub(crate) fn remove_tree(directory: BorrowedFd<'_>, name: &CStr) -> Result<u64, Errno> {
    let mut freed = 0;
    remove(directory, name, directory, 0, &mut freed)?;
    Ok(freed)
}

fn remove(at: BorrowedFd<'_>, name: &CStr, top: BorrowedFd<'_>, depth: usize, freed: &mut u64) -> Result<(), Errno> {
    let stat = match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error),
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        if stat.st_nlink == 1 {
            *freed += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
        }
        return gone(rustix::fs::unlinkat(at, name, AtFlags::empty()));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = match rustix::fs::openat(at, name, flags, Mode::empty()) {
        // Unreadable to its owner: there is no other way than by name, and a symlink put here meanwhile is not followed.
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(at, name, Mode::RWXU, AtFlags::SYMLINK_NOFOLLOW)?;
            rustix::fs::openat(at, name, flags, Mode::empty())?
        }
        opened => opened?,
    };
    // Store directories are read-only; to root that is no matter.
    if stat.st_mode & 0o700 != 0o700 {
        rustix::fs::fchmod(&handle, Mode::RWXU)?;
    }
    for (name, kind) in list_once(handle.as_fd())? {
        if depth >= DEPTH_MAX && kind == FileType::Directory {
            flatten(&handle, &name, top, freed)?;
        } else {
            remove(handle.as_fd(), &name, top, depth + 1, freed)?;
        }
    }
    drop(handle);
    *freed += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
    gone(rustix::fs::unlinkat(at, name, AtFlags::REMOVEDIR))
}

/// A directory that is too deep is moved up beside the tree and removed from there.
fn flatten(from: &OwnedFd, name: &CStr, top: BorrowedFd<'_>, freed: &mut u64) -> Result<(), Errno> {
    let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let moved = CString::new(format!(".tmp-deep-{}-{}", std::process::id(), stat.st_ino)).map_err(|_| Errno::INVAL)?;
    rustix::fs::chmodat(from, name, Mode::RWXU, AtFlags::empty())?;
    rustix::fs::renameat(from, name, top, &moved)?;
    remove(top, &moved, top, 0, freed)
}

fn gone(removed: Result<(), Errno>) -> Result<(), Errno> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

/// The names in a directory, with their kinds as far as the file system says. The handle may be listed again, and by
/// several threads: where a listing has got to is kept in a handle of its own.
pub(crate) fn list(directory: BorrowedFd<'_>) -> Result<Vec<(CString, FileType)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    list_once(rustix::fs::openat(directory, c".", flags, Mode::empty())?.as_fd())
}

/// As [`list`] of a handle that was never listed.
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
    fn deep_read_only_and_never_through_a_symlink() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        std::fs::write(&outside, "kept").unwrap();
        let handle = std::fs::File::open(dir.path()).unwrap();
        let tree = dir.path().join("tree");
        let mut at = tree.clone();
        for _ in 0..3 * DEPTH_MAX {
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
}
