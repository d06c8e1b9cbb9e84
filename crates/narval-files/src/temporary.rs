//! Temporary files and directories, each owned by the process that has it locked.
//!
//! A process id cannot identify the owner: in another PID namespace the same id is another process, and in a container
//! every process is number 1. So ownership is a lock (`flock(2)`), which the kernel releases when its process ends, and
//! names are random and never reused. Creating a file and locking it are two steps, and a cleaner may come between
//! them. So both sides follow the same rule: lock the file that a name refers to, then check that it still has that
//! name. A creator that does not get the lock, or has lost the name, creates another file; a cleaner that does not get
//! the lock leaves the file alone.

use std::ffi::{CString, OsStr};
use std::fmt::Display;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::path::Arg;

/// The maximum number of names tried for one temporary file: each attempt fails only because of a cleaner.
const ATTEMPTS_MAX: usize = 100;

/// The maximum number of names examined in one directory for leftovers.
const NAMES_MAX: usize = 1 << 22;

/// Characters of a temporary name after its prefix.
const RANDOM_LEN: usize = 16;

/// An unpredictable number: the standard library takes its keys from the kernel.
pub fn random() -> u64 {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    RandomState::new().hash_one(NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// A unique name, which is never generated twice.
pub fn temporary_name(prefix: impl Display) -> String {
    format!("{prefix}{:0width$x}", random(), width = RANDOM_LEN)
}

/// Whether [`temporary_name`] generates such names with this prefix.
pub fn is_temporary_name(name: &OsStr, prefix: &str) -> bool {
    let random = name.as_bytes().strip_prefix(prefix.as_bytes());
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    random.is_some_and(|random| random.len() == RANDOM_LEN && random.iter().all(is_digit))
}

/// A file that is being written. It is removed when dropped, unless [`TemporaryFile::persist`] has renamed it. If its
/// process is killed, [`remove_leftovers`] removes it.
#[derive(Debug)]
pub struct TemporaryFile {
    /// Locked as long as it is open.
    file: File,
    /// Empty once it has its name.
    path: PathBuf,
}

impl TemporaryFile {
    /// Creates a file in a directory, open for reading and writing, and locks it. `mode` is subject to the umask.
    ///
    /// # Errors
    /// If it cannot be created or locked.
    pub fn create(directory: &Path, prefix: &str, mode: u32) -> io::Result<Self> {
        for _ in 0..ATTEMPTS_MAX {
            let path = directory.join(temporary_name(prefix));
            let mut options = OpenOptions::new();
            let file = match options.read(true).write(true).create_new(true).mode(mode).open(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                file => file?,
            };
            if is_owned(lock(&file)?, CWD, &path, &file)? {
                return Ok(Self { file, path });
            }
        }
        Err(lost_too_often())
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames the file to its final name atomically, replacing an existing file.
    ///
    /// # Errors
    /// If it cannot be renamed; it is removed then.
    pub fn persist(mut self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)?;
        self.path = PathBuf::new();
        Ok(())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            // If it cannot be removed now, it becomes a leftover: the lock is released with this.
            fs::remove_file(&self.path).ok();
        }
    }
}

/// A directory for files that will be removed or renamed. When dropped, it is removed if it is empty, otherwise it
/// becomes a leftover.
#[derive(Debug)]
pub struct TemporaryDirectory<'a> {
    at: BorrowedFd<'a>,
    name: String,
    /// Locked as long as it is open.
    handle: OwnedFd,
}

impl<'a> TemporaryDirectory<'a> {
    /// Creates a directory that only its owner can access, and locks it.
    pub fn create(at: BorrowedFd<'a>, prefix: &str) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..ATTEMPTS_MAX {
            let name = temporary_name(prefix);
            match rustix::fs::mkdirat(at, &name, Mode::RWXU) {
                Err(Errno::EXIST) => continue,
                made => made?,
            }
            let handle = match rustix::fs::openat(at, &name, flags, Mode::empty()) {
                // A cleaner was faster.
                Err(Errno::NOENT) => continue,
                opened => opened?,
            };
            if is_owned(lock(&handle)?, at, &name, &handle)? {
                return Ok(Self { at, name, handle });
            }
        }
        Err(lost_too_often())
    }

    /// The directory.
    pub fn handle(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl Drop for TemporaryDirectory<'_> {
    fn drop(&mut self) {
        // If it cannot be removed now, it becomes a leftover: the lock is released with this.
        rustix::fs::unlinkat(self.at, &self.name, AtFlags::REMOVEDIR).ok();
    }
}

/// The result of an attempt to lock a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lock {
    Taken,
    /// Another process has it.
    Held,
    /// This file system has no locks, so nobody can take a file there for a leftover either.
    Unknown,
}

fn lock(handle: impl AsFd) -> io::Result<Lock> {
    loop {
        return match rustix::fs::flock(&handle, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock::Taken),
            Err(Errno::WOULDBLOCK) => Ok(Lock::Held),
            Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(Lock::Unknown),
            Err(Errno::INTR) => continue,
            Err(error) => Err(error.into()),
        };
    }
}

/// Whether its creator owns a file: nobody else has locked it, and it still has its name.
fn is_owned(lock: Lock, at: BorrowedFd<'_>, name: impl Arg, handle: impl AsFd) -> io::Result<bool> {
    Ok(lock != Lock::Held && has_name(at, name, handle)?)
}

/// Whether a name still refers to the file behind a handle.
///
/// # Errors
/// The file cannot be looked up.
pub fn has_name(at: BorrowedFd<'_>, name: impl Arg, handle: impl AsFd) -> io::Result<bool> {
    let named = match rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(false),
        named => named?,
    };
    let open = rustix::fs::fstat(handle)?;
    Ok((named.st_dev, named.st_ino) == (open.st_dev, open.st_ino))
}

fn lost_too_often() -> io::Error {
    io::Error::other("other processes remove temporary files while they are created")
}

/// Takes the lock of a temporary file or directory whose owner has ended. As long as the handle lives, nobody else has
/// the lock, and the name refers to this file. `None` if its owner lives, another process is removing it, or it belongs
/// to another user.
pub fn take_leftover(at: BorrowedFd<'_>, name: impl Arg + Copy) -> io::Result<Option<OwnedFd>> {
    // Must not block, whatever has this name. NFS requires a file to be open for writing to lock it.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |access| rustix::fs::openat(at, name, flags | access, Mode::empty());
    // A file that cannot be opened may not be a leftover.
    let Ok(handle) = open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY)) else { return Ok(None) };
    Ok((lock(&handle)? == Lock::Taken && has_name(at, name, &handle)?).then_some(handle))
}

/// Removes the temporary files in a directory whose owners have ended. `is_temporary` is called for each name.
///
/// # Errors
/// If the directory cannot be read, or a leftover cannot be removed. One that this user is not permitted to
/// remove is skipped.
pub fn remove_leftovers(directory: &Path, is_temporary: impl Fn(&OsStr) -> bool) -> io::Result<()> {
    let handle = File::open(directory)?;
    for entry in fs::read_dir(directory)?.take(NAMES_MAX) {
        let name = entry?.file_name();
        if !is_temporary(&name) {
            continue;
        }
        let name = CString::new(name.as_bytes())?;
        let Some(_locked) = take_leftover(handle.as_fd(), name.as_c_str())? else { continue };
        match rustix::fs::unlinkat(&handle, &name, AtFlags::empty()) {
            // Another process may have removed it, and a directory is not ours.
            Ok(()) | Err(Errno::NOENT | Errno::ISDIR) => {}
            Err(error @ (Errno::ACCESS | Errno::PERM)) => {
                tracing::debug!(
                    "cannot remove the leftover '{}': {error}",
                    directory.join(OsStr::from_bytes(name.as_bytes())).display()
                );
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::AtomicBool;

    use super::*;

    const PREFIX: &str = ".tmp-";

    fn is_temporary(name: &OsStr) -> bool {
        is_temporary_name(name, PREFIX)
    }

    fn names(directory: &Path) -> Vec<String> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn temporary_names_are_recognised() {
        let name = temporary_name(PREFIX);
        assert!(is_temporary(OsStr::new(&name)) && name != temporary_name(PREFIX));
        for other in ["", ".tmp-", ".tmp-1-0", ".tmp-notes", "0123456789abcdef", ".tmp-0123456789ABCDEF"] {
            assert!(!is_temporary(OsStr::new(other)), "{other}");
        }
    }

    /// Everything that can happen between creating a file and locking it: nothing, a cleaner has it, a cleaner has
    /// removed it.
    #[test]
    fn a_file_is_owned_by_its_writer_or_a_cleaner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(temporary_name(PREFIX));
        let owns = |file: &File| is_owned(lock(file).unwrap(), CWD, &path, file).unwrap();
        let file = File::create_new(&path).unwrap();
        let cleaner = take_leftover(CWD, &path).unwrap().unwrap();
        assert!(!owns(&file));
        fs::remove_file(&path).unwrap();
        drop(cleaner);
        assert!(!owns(&file), "it has no name any longer");
        // And the cleaner's side: the name now refers to another file than the one that was examined.
        let file = TemporaryFile::create(dir.path(), PREFIX, 0o600).unwrap();
        assert!(take_leftover(CWD, file.path()).unwrap().is_none());
        let (opened, path) = (File::open(file.path()).unwrap(), file.path().to_owned());
        file.persist(&dir.path().join("kept")).unwrap();
        fs::write(&path, "another one").unwrap();
        assert!(lock(&opened).unwrap() == Lock::Taken && !has_name(CWD, &path, &opened).unwrap());
    }

    /// Locks belong to an open file, not to a process, so threads exclude each other like processes.
    #[test]
    fn writers_and_cleaners_at_once() {
        const FILES: usize = 300;
        let dir = tempfile::tempdir().unwrap();
        let (dir, is_over) = (dir.path(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let write = |writer: usize| {
                for number in 0..FILES {
                    let name = format!("{writer}-{number}");
                    let file = TemporaryFile::create(dir, PREFIX, 0o600).unwrap();
                    file.file().write_all(name.as_bytes()).unwrap();
                    file.persist(&dir.join(&name)).unwrap();
                    drop(TemporaryFile::create(dir, PREFIX, 0o600).unwrap());
                    drop(TemporaryDirectory::create(File::open(dir).unwrap().as_fd(), ".deep-").unwrap());
                }
            };
            let clean = || {
                while !is_over.load(Ordering::Relaxed) {
                    remove_leftovers(dir, is_temporary).unwrap();
                }
            };
            let writers: Vec<_> = (0..3).map(|writer| scope.spawn(move || write(writer))).collect();
            (0..2).for_each(|_| drop(scope.spawn(clean)));
            let written: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            is_over.store(true, Ordering::Relaxed);
            assert!(written.iter().all(Result::is_ok));
        });
        let names = names(dir);
        assert_eq!(names.len(), 3 * FILES);
        assert!(names.iter().all(|name| fs::read_to_string(dir.join(name)).unwrap() == *name));
    }

    #[test]
    fn other_files_and_directories_stay() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("notes"), "").unwrap();
        let (folder, link) = (dir.path().join(temporary_name(PREFIX)), dir.path().join(temporary_name(PREFIX)));
        fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink("notes", &link).unwrap();
        fs::write(dir.path().join(temporary_name(PREFIX)), "left behind").unwrap();
        remove_leftovers(dir.path(), is_temporary).unwrap();
        assert_eq!(names(dir.path()).len(), 3);
        assert!(folder.exists() && link.is_symlink());
    }
}
