//! Watches a database's files with inotify, so that they need not be examined: 0.1 µs instead of 1.7.
//!
//! inotify queues an event *before* the system call that caused it returns to its caller, and an epoll instance over it
//! reports without a lock whether there is one. These are watched:
//!
//! - writes to and truncations of the database, its `-wal` and its `-shm`;
//! - files that appear in, vanish from or are renamed in their directory;
//! - renames and removals of every directory above it, and this process's mounts, so that the path always refers to the
//!   same files.
//!
//! A write to mapped memory, with which SQLite publishes a commit (`-shm`), causes no event. `watch` explains why the
//! events before it suffice.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::fs::inotify::{self, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

/// The number of epoll instances. A thread whose instance is in use by another one is told that there may have been
/// events.
const LANES: usize = 16;

/// The size of the buffer for events.
const EVENTS_LEN: usize = 4096;

/// Local file systems, on which every change passes through this kernel (`statfs(2)`): ext4, XFS, Btrfs, tmpfs, F2FS,
/// ZFS, bcachefs, overlayfs. On others (NFS, FUSE, virtiofs) a server may change files without an event.
const LOCAL_FILE_SYSTEMS: [u64; 8] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0xf2f5_2010, 0x2fc1_2fc1, 0xca45_1a4e, 0x794c_7630];

/// The maximum number of directories above the database. Deeper databases are not watched.
const DIRECTORIES_MAX: usize = 64;

const INOTIFY: u64 = 0;
const MOUNTS: u64 = 1;

/// Watches the files of one database.
#[derive(Debug)]
pub(super) struct Events {
    files: [PathBuf; 3],
    inotify: OwnedFd,
    lanes: Box<[Mutex<Lane>]>,
    mounts_changed: AtomicBool,
}

/// An epoll instance that one thread uses at a time. If two threads wait on the same instance at the same moment, both
/// may be told that there is no event when there is one (the kernel checks two lists without a lock).
#[derive(Debug)]
struct Lane {
    epoll: OwnedFd,
    /// `/proc/self/mountinfo`, which reports a new mount once per open file (proc(5)).
    #[expect(dead_code, reason = "registered with the epoll instance as long as it is open")]
    mounts: File,
}

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Happened {
    /// Only writes to the watched files, if anything.
    Written,
    /// Files beside the database were created or removed: they must be watched again.
    Files,
    /// The path may refer to other files: start over.
    Path,
}

impl Events {
    /// Starts to watch a database, its `-wal` and its `-shm`. Returns `None` if that is impossible or would miss
    /// changes.
    pub(super) fn watch(database: &Path, log: &Path, shared: &Path) -> Option<Self> {
        let directory = database.parent().filter(|directory| directory.is_absolute())?;
        // Opened before anything is watched, so that no mount is missed.
        let mounts: Vec<File> = (0..LANES).map(|_| File::open("/proc/self/mountinfo").ok()).collect::<Option<_>>()?;
        let inotify = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC).ok()?;
        let above: Vec<&Path> = directory.ancestors().take(DIRECTORIES_MAX + 1).collect();
        if above.len() > DIRECTORIES_MAX {
            return None;
        }
        // From the root downwards: a concurrent rename then happens in a directory that is already watched. No component
        // may be a symlink, which could be redirected.
        let place = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
        for path in above.iter().rev() {
            let entries = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO;
            let flags = if *path == directory { place | entries } else { place };
            inotify::add_watch(&inotify, *path, flags).ok()?;
        }
        let kind = rustix::fs::statfs(directory).ok()?.f_type;
        if !u64::try_from(kind).is_ok_and(|kind| LOCAL_FILE_SYSTEMS.contains(&kind)) {
            return None;
        }
        let lanes = mounts.into_iter().map(|mounts| Lane::new(&inotify, mounts).ok().map(Mutex::new));
        let lanes = lanes.collect::<Option<_>>()?;
        let files = [database, log, shared].map(Path::to_owned);
        let this = Self { files, inotify, lanes, mounts_changed: AtomicBool::new(false) };
        this.watch_files().then_some(this)
    }

    /// Watches the current files with the three names. Returns `false` unless all exist.
    pub(super) fn watch_files(&self) -> bool {
        let flags = WatchFlags::MODIFY | WatchFlags::DONT_FOLLOW;
        self.files.iter().all(|file| inotify::add_watch(&self.inotify, file, flags).is_ok())
    }

    /// Whether nothing has happened since the last [`Events::take`]. Returns `false` if in doubt.
    ///
    /// Inlined, like its callers, because each return after a system call is mispredicted (20 to 30 ns).
    #[inline(always)]
    pub(super) fn none(&self) -> bool {
        thread_local! {
            static NUMBER: usize = {
                static NEXT: AtomicUsize = AtomicUsize::new(0);
                NEXT.fetch_add(1, Ordering::Relaxed)
            };
        }
        let number = NUMBER.with(|number| *number);
        let Some(Some(lane)) = self.lanes.get(number % LANES).map(Mutex::try_lock) else { return false };
        let mut events = [MaybeUninit::<Event>::uninit(); 2];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&lane.epoll, &mut events, Some(&now)) {
            Ok(([], _)) => true,
            Ok((happened, _)) => {
                if happened.iter().any(|event| event.data.u64() == MOUNTS) {
                    // It is reported once, and this thread may not be the one that acts on it.
                    self.mounts_changed.store(true, Ordering::Release);
                }
                false
            }
            Err(_) => false,
        }
    }

    /// Takes all pending events and summarises them.
    pub(super) fn take(&self) -> Happened {
        let mut sum = Happened::Written;
        if self.mounts_changed.load(Ordering::Acquire) {
            return Happened::Path;
        }
        let mut buffer = [MaybeUninit::uninit(); EVENTS_LEN];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => sum = sum.max(of(event.events())),
                Err(Errno::AGAIN) => return sum,
                Err(Errno::INTR) => {}
                Err(_) => return Happened::Path,
            }
        }
    }
}

/// Classifies an event. A watch that ended by itself (`IN_IGNORED`) belongs to a file that was removed.
fn of(event: ReadFlags) -> Happened {
    let files = ReadFlags::CREATE | ReadFlags::DELETE | ReadFlags::MOVED_TO | ReadFlags::IGNORED | ReadFlags::ISDIR;
    if event == ReadFlags::MODIFY {
        Happened::Written
    } else if files.contains(event) {
        Happened::Files
    } else {
        Happened::Path
    }
}

impl Lane {
    fn new(inotify: &OwnedFd, mounts: File) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, inotify.as_fd(), EventData::new_u64(INOTIFY), EventFlags::IN)?;
        epoll::add(&epoll, mounts.as_fd(), EventData::new_u64(MOUNTS), EventFlags::PRI)?;
        Ok(Self { epoll, mounts })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, symlink};

    use super::*;

    struct Files {
        dir: tempfile::TempDir,
    }

    impl Files {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("a/b")).unwrap();
            let this = Self { dir };
            for name in ["db", "db-wal", "db-shm"] {
                fs::write(this.path(name), "x").unwrap();
            }
            this
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join("a/b").join(name)
        }

        fn watch(&self) -> Option<Events> {
            Events::watch(&self.path("db"), &self.path("db-wal"), &self.path("db-shm"))
        }
    }

    #[test]
    fn every_change_is_reported_once_the_call_has_returned() {
        type Deed = fn(&Files);
        let deeds: [(Deed, Happened); 9] = [
            (
                |files| {
                    fs::OpenOptions::new()
                        .write(true)
                        .open(files.path("db-wal"))
                        .unwrap()
                        .write_all_at(b"y", 0)
                        .unwrap()
                },
                Happened::Written,
            ),
            (
                |files| fs::OpenOptions::new().write(true).open(files.path("db-shm")).unwrap().set_len(0).unwrap(),
                Happened::Written,
            ),
            (|files| fs::write(files.path("db"), "other").unwrap(), Happened::Written),
            (|files| fs::remove_file(files.path("db-shm")).unwrap(), Happened::Files),
            (|files| fs::write(files.path("db-journal"), "").unwrap(), Happened::Files),
            (|files| fs::rename(files.path("db"), files.path("aside")).unwrap(), Happened::Path),
            (|files| fs::rename(files.dir.path().join("a"), files.dir.path().join("c")).unwrap(), Happened::Path),
            (|files| fs::rename(files.dir.path().join("a/b"), files.dir.path().join("a/c")).unwrap(), Happened::Path),
            (|files| fs::remove_dir_all(files.dir.path()).unwrap(), Happened::Path),
        ];
        for (number, (deed, expected)) in deeds.into_iter().enumerate() {
            let files = Files::new();
            let events = files.watch().unwrap();
            assert!(events.none() && events.none(), "{number}");
            deed(&files);
            assert!(!events.none() && !events.none(), "{number}");
            // Told to every thread, whoever was told before.
            std::thread::scope(|scope| scope.spawn(|| assert!(!events.none())).join().unwrap());
            assert_eq!(events.take(), expected, "{number}");
            assert!(events.none(), "{number}");
        }
    }

    #[test]
    fn a_file_that_was_replaced_is_watched_anew() {
        let files = Files::new();
        let events = files.watch().unwrap();
        fs::write(files.path("new"), "new").unwrap();
        fs::rename(files.path("new"), files.path("db")).unwrap();
        assert!(!events.none());
        events.take();
        assert!(events.watch_files());
        // What ended with the old file's watch.
        events.take();
        assert!(events.none());
        fs::write(files.path("db"), "newer").unwrap();
        assert!(!events.none());
        fs::remove_file(files.path("db-wal")).unwrap();
        assert!(!events.watch_files());
    }

    #[test]
    fn a_path_through_a_symlink_is_not_watched() {
        let files = Files::new();
        symlink("a", files.dir.path().join("link")).unwrap();
        let through = |name: &str| files.dir.path().join("link/b").join(name);
        assert!(Events::watch(&through("db"), &through("db-wal"), &through("db-shm")).is_none());
        fs::remove_file(files.path("db-shm")).unwrap();
        assert!(files.watch().is_none(), "nothing to publish commits with");
    }
}
