//! The queue of a post-build hook: a folder with one file for each build.
//!
//! A hook must be quick, may run many times at once, and may be killed at any moment. A file that is written under a temporary
//! name, synced and renamed needs no lock and no schema. A hook that is killed before the rename leaves no entry.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use narval_files::{TemporaryFile, is_temporary_name, remove_leftovers, temporary_name};
use narval_nix::StorePath;

use rustix::fs::{Mode, OFlags, fstat, mkdirat, openat};
use rustix::io::Errno;

use narval_transfer::Error;

/// How folders are opened.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Its name below the state folder.
const FOLDER: &str = "queue";

/// The prefix of the names of files that are being written.
const INCOMING: &str = ".incoming-";

/// The largest file of the queue that is read, in bytes: an environment variable holds 128 KiB.
const FILE_LEN_MAX: u64 = 1 << 20;

/// The most files that are read from the queue at a time.
const FILES_MAX: usize = 1024;

/// Paths that wait to be pushed, in the files of one folder. Cheap to create; the folder is opened on first use.
#[derive(Debug, Clone)]
pub struct Queue {
    state: PathBuf,
    folder: PathBuf,
}

/// One file of the queue.
#[derive(Debug)]
pub(super) struct Queued {
    file: PathBuf,
    pub(super) paths: Vec<StorePath>,
}

impl Queue {
    /// The queue below a state folder.
    pub fn new(state: &Path) -> Self {
        Self { state: state.to_owned(), folder: state.join(FOLDER) }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Creates the folder, which only its owner can read: the one of the state folder, who is the watcher.
    pub(super) fn make(&self) -> Result<(), Error> {
        self.try_make().map_err(|error| Error::file("make the folder", &self.folder, error))
    }

    fn try_make(&self) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.state)?;
        let state = self.open_state()?;
        match mkdirat(&state, FOLDER, Mode::RWXU) {
            Err(Errno::EXIST) => return Ok(()),
            made => made?,
        }
        if rustix::process::geteuid().is_root() {
            let (folder, owner) =
                (openat(&state, FOLDER, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?, fstat(&state)?);
            fchown(&folder, Some(owner.st_uid), Some(owner.st_gid))?;
        }
        Ok(())
    }

    fn open_state(&self) -> io::Result<OwnedFd> {
        Ok(rustix::fs::open(&self.state, DIRECTORY, Mode::empty())?)
    }

    /// Opens the folder for a hook, which may be root: whoever owns the state folder must not choose where root writes.
    fn open(&self) -> io::Result<OwnedFd> {
        let state = self.open_state()?;
        let folder = openat(&state, FOLDER, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        let (owner, watcher) = (fstat(&folder)?.st_uid, fstat(&state)?.st_uid);
        if owner != watcher {
            let message = format!("it belongs to user {owner}, and the folder that it is in to {watcher}, the watcher");
            return Err(io::Error::new(ErrorKind::PermissionDenied, message));
        }
        Ok(folder)
    }

    /// Adds paths. They are on the disk when this returns.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn add(&self, paths: &[StorePath]) -> Result<(), Error> {
        if paths.is_empty() {
            return Ok(());
        }
        let text: String = paths.iter().map(|path| format!("{path}\n")).collect();
        let failed = |error| Error::file("write to the queue", &self.folder, error);
        let folder = match self.open() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.make()?;
                self.open()
            }
            folder => folder,
        };
        let folder = File::from(folder.map_err(failed)?);
        // Everything below is relative to the folder that was checked, whatever its name refers to by then.
        let path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
        let file = TemporaryFile::create(&path, INCOMING, 0o640).map_err(failed)?;
        give_to_owner(file.file(), &folder).map_err(failed)?;
        file.file().write_all(text.as_bytes()).and_then(|()| file.file().sync_data()).map_err(failed)?;
        // Names sort by time; their random part makes them unique.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        file.persist(&path.join(temporary_name(format_args!("{now:024}-")))).map_err(failed)?;
        folder.sync_all().map_err(failed)
    }

    /// The oldest files. Invalid ones are removed.
    pub(super) fn oldest(&self) -> Result<Vec<Queued>, Error> {
        let failed = |error| Error::file("read the queue", &self.folder, error);
        let mut names = Vec::new();
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            if !is_temporary_name(&name, INCOMING) {
                names.push(name);
            }
        }
        names.sort_unstable();
        let mut queued = Vec::new();
        for name in names.into_iter().take(FILES_MAX) {
            let file = self.folder.join(name);
            match read(&file) {
                Ok(paths) => queued.push(Queued { file, paths }),
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    tracing::warn!("'{}' is not a valid queue file and will be removed: {error}", file.display());
                    self.remove(&file)?;
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(Error::file("read", &file, error)),
            }
        }
        Ok(queued)
    }

    /// Removes files whose paths were recorded elsewhere.
    pub(super) fn forget(&self, queued: &[Queued]) -> Result<(), Error> {
        queued.iter().try_for_each(|queued| self.remove(&queued.file))
    }

    /// Removes temporary files of hooks that were killed while they wrote.
    pub(super) fn remove_leftovers(&self) -> Result<(), Error> {
        let removed = remove_leftovers(&self.folder, |name| is_temporary_name(name, INCOMING));
        removed.map_err(|error| Error::file("clean up", &self.folder, error))
    }

    fn remove(&self, file: &Path) -> Result<(), Error> {
        match fs::remove_file(file) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::file("remove", file, error)),
            _ => Ok(()),
        }
    }
}

/// The daemon runs a hook as root, and the watcher may be another user. The folder's owner is the watcher.
fn give_to_owner(file: &File, folder: &File) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let owner = fstat(folder)?;
    fchown(file, Some(owner.st_uid), Some(owner.st_gid))
}

fn read(file: &Path) -> io::Result<Vec<StorePath>> {
    let mut text = String::new();
    File::open(file)?.take(FILE_LEN_MAX + 1).read_to_string(&mut text)?;
    let invalid = |reason: String| io::Error::new(ErrorKind::InvalidData, reason);
    if text.len() as u64 > FILE_LEN_MAX {
        return Err(invalid("it is too large".to_owned()));
    }
    text.lines().map(|line| line.parse::<StorePath>().map_err(|error| invalid(error.to_string()))).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn path(number: u32) -> StorePath {
        format!("{}-{number}", "0".repeat(32)).parse().unwrap()
    }

    fn all(queue: &Queue) -> Vec<StorePath> {
        queue.oldest().unwrap().into_iter().flat_map(|queued| queued.paths).collect()
    }

    #[test]
    fn first_in_first_out() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::new(&dir.path().join("state"));
        assert!(all(&queue).is_empty());
        queue.add(&[path(3), path(1)]).unwrap();
        queue.add(&[]).unwrap();
        queue.add(&[path(2)]).unwrap();
        assert_eq!(all(&queue), [path(3), path(1), path(2)]);
        let first = queue.oldest().unwrap();
        queue.forget(&first[..1]).unwrap();
        assert_eq!(all(&queue), [path(2)]);
    }

    #[test]
    fn foreign_files_do_not_stop_the_queue() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::new(dir.path());
        queue.make().unwrap();
        fs::write(queue.folder().join("0"), "../../etc/passwd\n").unwrap();
        fs::write(queue.folder().join("1"), [0xff]).unwrap();
        fs::write(queue.folder().join(temporary_name(INCOMING)), "half").unwrap();
        queue.add(&[path(1)]).unwrap();
        assert_eq!(all(&queue), [path(1)]);
        queue.remove_leftovers().unwrap();
        assert_eq!(fs::read_dir(queue.folder()).unwrap().count(), 1);
    }

    #[test]
    fn entries_that_root_queues_belong_to_the_owner_of_the_folder() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("note: skipped: only root can give files away");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::new(dir.path());
        queue.make().unwrap();
        for folder in [dir.path(), queue.folder()] {
            std::os::unix::fs::chown(folder, Some(12345), Some(12346)).unwrap();
        }
        queue.add(&[path(1)]).unwrap();
        let file = fs::metadata(&queue.oldest().unwrap()[0].file).unwrap();
        assert_eq!((file.uid(), file.gid(), file.mode() & 0o007), (12345, 12346, 0));
    }

    /// The watcher's user must not choose where root writes.
    #[test]
    fn a_hook_writes_to_no_folder_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let (state, elsewhere) = (dir.path().join("state"), dir.path().join("elsewhere"));
        fs::create_dir(&state).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, state.join(FOLDER)).unwrap();
        let queue = Queue::new(&state);
        queue.add(&[path(1)]).unwrap_err();
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
        fs::remove_file(queue.folder()).unwrap();
        queue.add(&[path(1)]).unwrap();
        assert_eq!(all(&queue), [path(1)]);
        if !rustix::process::geteuid().is_root() {
            eprintln!("note: not tested: only root can give folders away");
            return;
        }
        // A folder of root that is moved there.
        std::os::unix::fs::chown(&state, Some(12345), Some(12346)).unwrap();
        let refused = queue.add(&[path(2)]).unwrap_err().to_string();
        assert!(refused.contains("it belongs to user 0"), "{refused}");
        // A hook that is first makes one for the watcher.
        fs::remove_dir_all(queue.folder()).unwrap();
        queue.add(&[path(3)]).unwrap();
        assert_eq!(fs::metadata(queue.folder()).unwrap().uid(), 12345);
        assert_eq!(all(&queue), [path(3)]);
    }

    #[test]
    fn hooks_at_once_lose_nothing() {
        const HOOKS: u32 = 8;
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::new(dir.path());
        std::thread::scope(|scope| {
            for hook in 0..HOOKS {
                let queue = &queue;
                scope.spawn(move || (0..20).for_each(|build| queue.add(&[path(hook * 100 + build)]).unwrap()));
            }
        });
        let mut found = all(&queue);
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), 160);
    }
}
