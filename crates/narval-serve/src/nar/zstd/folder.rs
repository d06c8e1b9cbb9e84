//! The folder of compressed NARs, shared by any number of processes.
//!
//! ```text
//! <folder>/zstd-<level>-<encoder>/<first two characters>/<NAR hash>.<file hash>.<file size>.nar.zst
//! <folder>/delta-<encoder>[-<cache>]/<first two characters>/<NAR hash>.<base's NAR hash>.<file hash>.<file size>.dcz
//! <folder>/filling/<random>                 being written; its writer holds a lock on it (flock)
//! ```
//! A file is written under `filling/`, synced, and renamed: it is complete or absent, and its name holds all that a narinfo needs.
//! What a killed process left under `filling/` is not locked, and is removed by the next process that starts.
//! The folder's name holds all that the bytes depend on beside the NAR: the level, the version of the zstd library and the format of
//! the frames. Together with the NAR hash it is an entity tag. Files of a higher level than the configured one are used as well.
//! A file's modification time is the time of its last use. When the folder exceeds its size, the least recently used files are removed.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use narval_codec::encode::FRAMES_FORMAT;
use narval_files::{TemporaryFile, remove_leftovers};
use narval_nix::{NarHash, Sha256};
use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};

/// Prefix of the folders with finished files.
const PREFIX: &str = "zstd-";
/// Prefixes of all folders with files that count.
const PREFIXES: [&str; 2] = [PREFIX, "delta-"];
/// The end of a compressed NAR's name.
const EXTENSION: &str = ".nar.zst";
/// The modification time of a file is updated at most this often.
const USE_RESOLUTION: Duration = Duration::from_secs(600);
/// Eviction frees this fraction of the maximum beyond what is needed, so that not every new file needs a scan: an eighth.
const EVICT_TO: (u64, u64) = (7, 8);
/// After a write error, nothing is written for this long.
const PAUSE: Duration = Duration::from_secs(30);
/// After writing this fraction of the maximum (a sixteenth), a process scans the folder for what others have written.
const LOOK_AFTER: u64 = 16;
/// Mode of a file, before the umask.
const FILE_MODE: u32 = 0o666;
/// The most files in one scan.
const FILES_MAX: usize = 1 << 20;

/// A compressed NAR in the folder.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// The file.
    pub(crate) path: PathBuf,
    /// SHA-256 of the file.
    pub(crate) file_hash: Sha256,
    /// Its size in bytes.
    pub(crate) file_size: u64,
    /// How it was made: see [`encoding`].
    pub(crate) encoding: String,
}

/// The name of an encoder: the same NAR compressed by encoders of one name is the same byte for byte.
pub(crate) fn encoding(level: i32) -> String {
    format!("{PREFIX}{level}-{}-{FRAMES_FORMAT}", zstd::zstd_safe::version_number())
}

/// The level in such a name.
fn level_of(encoding: &str) -> Option<i32> {
    encoding.strip_prefix(PREFIX)?.split_once('-')?.0.parse().ok()
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    level: i32,
    /// How this process compresses.
    encoding: String,
    filling: PathBuf,
    bytes_max: u64,
    /// Bytes in the folder, as far as this process knows.
    bytes: AtomicU64,
    /// Bytes that this process wrote since its last scan.
    written: AtomicU64,
    /// Set after a write error.
    paused_until: Mutex<Option<Instant>>,
}

impl Folder {
    /// Opens or creates the folder, and removes what killed processes left.
    ///
    /// # Errors
    /// It cannot be created or written to.
    pub(crate) fn open(root: &Path, level: i32, bytes_max: u64) -> io::Result<Self> {
        let encoding = encoding(level);
        let filling = root.join("filling");
        fs::create_dir_all(root.join(&encoding))?;
        fs::create_dir_all(&filling)?;
        let this = Self {
            root: root.to_owned(),
            level,
            encoding,
            filling,
            bytes_max,
            bytes: AtomicU64::new(0),
            written: AtomicU64::new(0),
            paused_until: Mutex::new(None),
        };
        // Every file there is temporary: earlier versions named them differently.
        remove_leftovers(&this.filling, |_| true)?;
        // If the folder is not writable, this fails now and not at the first request.
        drop(this.begin()?);
        this.make_room(bytes_max)?;
        Ok(this)
    }

    /// Bytes in the folder, as far as this process knows, and how many there may be.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::Relaxed), self.bytes_max)
    }

    /// The folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The compressed NAR with this hash: the one of the highest level, but none of a lower level than this folder's.
    pub(crate) fn find(&self, nar_hash: &NarHash) -> Option<Stored> {
        let nar_hash = nar_hash.to_nix32();
        let names = fs::read_dir(&self.root).ok()?.take(FILES_MAX).filter_map(Result::ok);
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let mut encodings: Vec<(i32, bool, String)> =
            names.filter_map(|name| Some((level_of(&name)?, name == self.encoding, name))).collect();
        encodings.retain(|(level, ..)| *level >= self.level);
        encodings.sort();
        encodings.into_iter().rev().find_map(|(_, _, encoding)| self.find_named(&encoding, &nar_hash, EXTENSION))
    }

    /// The file of an encoder whose name begins and ends like this, with hash and size between.
    pub(crate) fn find_named(&self, encoding: &str, start: &str, end: &str) -> Option<Stored> {
        let entries = fs::read_dir(self.root.join(encoding).join(start.get(..2)?)).ok()?;
        let found = entries.take(FILES_MAX).filter_map(Result::ok).find_map(|entry| {
            let name = entry.file_name();
            let rest = name.to_str()?.strip_prefix(start)?.strip_prefix('.')?;
            let (file_hash, size) = rest.strip_suffix(end)?.split_once('.')?;
            let (file_hash, size) = (Sha256::from_nix32(file_hash.as_bytes()).ok()?, size.parse().ok()?);
            let metadata = entry.metadata().ok().filter(is_trusted)?;
            // A crash of the machine may have truncated the file.
            (metadata.len() == size).then(|| (entry.path(), file_hash, size))
        });
        found.map(|(path, file_hash, file_size)| Stored { path, file_hash, file_size, encoding: encoding.to_owned() })
    }

    /// Removes a file whose contents do not match its name.
    pub(crate) fn discard(&self, stored: &Stored) {
        let removed = fs::remove_file(&stored.path);
        let what = match removed {
            Ok(()) => "it is removed, and will be created again on request".to_owned(),
            // Another thread or process removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => format!("and it cannot be removed: {error}"),
        };
        tracing::error!("'{}' in the NAR cache is damaged; {what}", stored.path.display());
    }

    /// Opens a compressed NAR to be sent, and records the use. Returns `None` if it was removed meanwhile.
    pub(crate) fn open_file(&self, stored: &Stored) -> Option<File> {
        let file = File::open(&stored.path).ok()?;
        let used = file.metadata().and_then(|metadata| metadata.modified()).ok()?;
        let now = SystemTime::now();
        if now.duration_since(used).is_ok_and(|age| age > USE_RESOLUTION) {
            // A failure only affects the order of eviction.
            let _ = rustix::fs::utimensat(CWD, &stored.path, &now_times(), rustix::fs::AtFlags::empty());
        }
        Some(file)
    }

    /// Opens a compressed NAR to be sent if the kernel can do so without I/O (`RESOLVE_CACHED`, Linux 5.12). Returns `None` if the use
    /// must be recorded.
    pub(crate) fn open_cached(&self, stored: &Stored) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = openat2(CWD, &stored.path, flags, Mode::empty(), ResolveFlags::CACHED).ok()?;
        let used = rustix::fs::fstat(&file).ok()?.st_mtime;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let age = now.saturating_sub(Duration::from_secs(u64::try_from(used).ok()?));
        (age <= USE_RESOLUTION).then(|| file.into())
    }

    /// Creates a temporary file.
    pub(crate) fn begin(&self) -> io::Result<TemporaryFile> {
        let create = || TemporaryFile::create(&self.filling, "", FILE_MODE);
        create().or_else(|error| match error.kind() {
            // The folder was emptied.
            io::ErrorKind::NotFound => {
                fs::create_dir_all(&self.filling)?;
                create()
            }
            _ => Err(error),
        })
    }

    /// Syncs a file and renames it to its final name.
    pub(crate) fn finish(&self, filling: TemporaryFile, nar_hash: &NarHash, file_hash: &Sha256) -> io::Result<Stored> {
        self.keep(filling, &self.encoding, (&nar_hash.to_nix32(), EXTENSION), file_hash)
    }

    /// Syncs a file and renames it to its final name, which begins and ends like this.
    pub(crate) fn keep(
        &self,
        filling: TemporaryFile,
        encoding: &str,
        (start, end): (&str, &str),
        file_hash: &Sha256,
    ) -> io::Result<Stored> {
        let file_size = filling.file().metadata()?.len();
        filling.file().sync_data()?;
        let folder = self.root.join(encoding).join(start.get(..2).unwrap_or_default());
        fs::create_dir_all(&folder)?;
        let path = folder.join(format!("{start}.{}.{file_size}{end}", file_hash.to_nix32()));
        filling.persist(&path)?;
        let bytes = self.bytes.fetch_add(file_size, Ordering::Relaxed) + file_size;
        let written = self.written.fetch_add(file_size, Ordering::Relaxed) + file_size;
        if bytes > self.bytes_max || written > self.bytes_max / LOOK_AFTER {
            self.make_room(self.bytes_max)?;
        }
        Ok(Stored { path, file_hash: *file_hash, file_size, encoding: encoding.to_owned() })
    }

    /// Whether a write error has just happened.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused_until.lock().is_some_and(|until| Instant::now() < until)
    }

    /// Logs a write error, and writes nothing for a while. If the disk is full, the least recently used files are removed.
    pub(crate) fn pause(&self, error: &io::Error) {
        {
            let mut paused_until = self.paused_until.lock();
            // Other threads that were writing get the same error.
            if paused_until.is_some_and(|until| Instant::now() < until) {
                return;
            }
            *paused_until = Some(Instant::now() + PAUSE);
        }
        tracing::error!(
            "cannot write to the NAR cache '{}': {error}; NARs are not compressed for {} s",
            self.root.display(),
            PAUSE.as_secs()
        );
        if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            // An eighth of what is there is removed.
            let there = self.make_room(u64::MAX).unwrap_or(0);
            if let Err(error) = self.make_room(there.saturating_sub(1)) {
                tracing::debug!("nothing was removed from the NAR cache: {error}");
            }
        }
    }

    /// Scans the folder, and removes the least recently used files if they exceed the maximum. Other processes may do so at the same
    /// time; then more is removed than necessary. Returns the bytes that are left.
    fn make_room(&self, bytes_max: u64) -> io::Result<u64> {
        let mut files = Vec::new();
        for level in fs::read_dir(&self.root)?.filter_map(Result::ok) {
            let name = level.file_name();
            if !PREFIXES.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                continue;
            }
            for folder in fs::read_dir(level.path())?.filter_map(Result::ok) {
                let Ok(entries) = fs::read_dir(folder.path()) else { continue };
                for entry in entries.filter_map(Result::ok).take(FILES_MAX - files.len()) {
                    if let Ok(metadata) = entry.metadata() {
                        files.push((metadata.modified()?, metadata.len(), entry.path()));
                    }
                }
            }
        }
        let mut bytes: u64 = files.iter().map(|(_, size, _)| size).sum();
        if bytes > bytes_max {
            files.sort();
            let (numerator, denominator) = EVICT_TO;
            let target = bytes_max / denominator * numerator;
            for (_, size, path) in files {
                if bytes <= target {
                    break;
                }
                if fs::remove_file(&path).is_ok() {
                    bytes -= size;
                }
            }
        }
        self.bytes.store(bytes, Ordering::Relaxed);
        self.written.store(0, Ordering::Relaxed);
        Ok(bytes)
    }
}

/// Whether nobody but this user and root can have chosen the contents of a file: its name says what they are.
fn is_trusted(metadata: &fs::Metadata) -> bool {
    metadata.is_file() && [0, rustix::process::geteuid().as_raw()].contains(&metadata.uid())
}

fn now_times() -> rustix::fs::Timestamps {
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    rustix::fs::Timestamps { last_access: now, last_modification: now }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::FileExt;

    use super::*;

    const LEVEL: i32 = 1;

    fn put(folder: &Folder, name: u8, bytes: &[u8]) -> Stored {
        let filling = folder.begin().unwrap();
        filling.file().write_all(bytes).unwrap();
        folder.finish(filling, &Sha256::of(&[name]), &Sha256::of(bytes)).unwrap()
    }

    fn age(stored: &Stored, seconds: u64) {
        let then = SystemTime::now() - Duration::from_secs(seconds);
        File::open(&stored.path).unwrap().set_modified(then).unwrap();
    }

    #[test]
    fn finished_files_are_found_by_any_process() {
        let root = tempfile::tempdir().unwrap();
        let one = Folder::open(root.path(), LEVEL, 1 << 20).unwrap();
        let two = Folder::open(root.path(), LEVEL, 1 << 20).unwrap();
        assert!(two.find(&Sha256::of(b"a")).is_none());
        put(&one, b'a', b"compressed");
        let found = two.find(&Sha256::of(b"a")).unwrap();
        assert_eq!((found.file_hash, found.file_size), (Sha256::of(b"compressed"), 10));
        assert!(two.open_file(&found).is_some());
        // A higher level is as good; a lower one is not what was configured.
        let nine = Folder::open(root.path(), 9, 1 << 20).unwrap();
        assert!(nine.find(&Sha256::of(b"a")).is_none());
        put(&nine, b'a', b"smaller");
        assert_eq!(one.find(&Sha256::of(b"a")).unwrap().file_hash, Sha256::of(b"smaller"));
        assert_eq!(one.find(&Sha256::of(b"a")).unwrap().encoding, encoding(9));
    }

    #[test]
    fn files_of_other_users_are_ignored() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("note: skipped: only root can give files away");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path(), LEVEL, 1 << 20).unwrap();
        let stored = put(&folder, b'a', b"planted");
        assert!(folder.find(&Sha256::of(b"a")).is_some());
        std::os::unix::fs::chown(&stored.path, Some(12345), None).unwrap();
        assert!(folder.find(&Sha256::of(b"a")).is_none());
    }

    #[test]
    fn unfinished_files_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path(), LEVEL, 1 << 20).unwrap();
        let filling = folder.begin().unwrap();
        let left_over = root.path().join("filling/1-1");
        fs::write(&left_over, "from a killed process").unwrap();
        let _other = Folder::open(root.path(), LEVEL, 1 << 20).unwrap();
        assert!(!left_over.exists());
        assert!(filling.path().exists(), "a living writer's file stays");
        drop(filling);
        assert_eq!(fs::read_dir(root.path().join("filling")).unwrap().count(), 0);
    }

    /// Two processes of one number, as in two containers with this folder: each of them is process 1, and writes its first file.
    #[test]
    fn processes_with_the_same_pid_keep_their_files_apart() {
        for swapped in [false, true] {
            let root = tempfile::tempdir().unwrap();
            let folders = [(); 2].map(|()| Folder::open(root.path(), LEVEL, 1 << 20).unwrap());
            let begun = folders.each_ref().map(|folder| folder.begin().unwrap());
            for (filling, bytes) in begun.iter().zip([b"one's", b"two's"]) {
                filling.file().write_all_at(bytes, 0).unwrap();
            }
            let mut finished: Vec<_> = folders.iter().zip(begun).zip([b"one's", b"two's"]).collect();
            if swapped {
                finished.reverse();
            }
            for ((folder, filling), bytes) in finished {
                let stored = folder.finish(filling, &Sha256::of(bytes), &Sha256::of(bytes)).unwrap();
                assert_eq!(fs::read(&stored.path).unwrap(), bytes);
            }
        }
    }

    #[test]
    fn a_file_cut_short_is_not_found() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path(), LEVEL, 1 << 20).unwrap();
        let stored = put(&folder, b'a', b"compressed");
        fs::write(&stored.path, "comp").unwrap();
        assert!(folder.find(&Sha256::of(b"a")).is_none());
    }

    #[test]
    fn several_processes_keep_to_its_size_together() {
        let root = tempfile::tempdir().unwrap();
        let folders = [(); 3].map(|()| Folder::open(root.path(), LEVEL, 32_000).unwrap());
        for name in 0..=60 {
            folders.iter().zip([0, 70, 140]).for_each(|(folder, from)| drop(put(folder, from + name, &[name; 1000])));
            let there = folders[0].make_room(u64::MAX).unwrap();
            assert!(there <= 32_000 + 3 * 32_000 / LOOK_AFTER, "{there}");
        }
    }

    #[test]
    fn a_full_disk_evicts_the_least_recently_used_and_pauses() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path(), LEVEL, 1 << 20).unwrap();
        let stored: Vec<_> = (0..4).map(|name| put(&folder, name, &[name; 1000])).collect();
        stored.iter().zip(0..).for_each(|(stored, index)| age(stored, 10_000 - index));
        assert!(!folder.is_paused());
        folder.pause(&io::ErrorKind::PermissionDenied.into());
        assert!(folder.is_paused() && stored.iter().all(|stored| stored.path.exists()));
        *folder.paused_until.lock() = None;
        for _ in 0..2 {
            // Further errors during the pause remove nothing more.
            folder.pause(&io::ErrorKind::StorageFull.into());
        }
        let there: Vec<_> = stored.iter().map(|stored| stored.path.exists()).collect();
        assert_eq!(there, [false, true, true, true]);
    }

    #[test]
    fn emptying_the_folder_does_no_harm() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path(), LEVEL, 1 << 20).unwrap();
        put(&folder, b'a', b"compressed");
        fs::remove_dir_all(root.path()).unwrap();
        assert!(folder.find(&Sha256::of(b"a")).is_none());
        put(&folder, b'a', b"compressed");
        assert!(folder.find(&Sha256::of(b"a")).is_some());
    }

    #[test]
    fn the_least_recently_used_is_evicted_first() {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::open(root.path(), LEVEL, 4000).unwrap();
        let stored: Vec<_> = (0..4).map(|name| put(&folder, name, &[name; 1000])).collect();
        for (index, stored) in stored.iter().enumerate() {
            age(stored, 10_000 - index as u64);
        }
        // Using the oldest file makes it the newest, which a worker must record.
        assert!(folder.open_cached(&stored[0]).is_none());
        folder.open_file(&stored[0]).unwrap();
        put(&folder, 9, &[9; 1000]);
        let there: Vec<_> = stored.iter().map(|stored| stored.path.exists()).collect();
        assert_eq!(there, [true, false, false, true]);
        assert!(folder.find(&Sha256::of(&[9])).is_some());
    }
}
