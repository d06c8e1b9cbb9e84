//! The folder of stored files, and its budget: the least recently used file is removed first.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::temporary::{TemporaryFile, is_temporary_name, remove_leftovers};
use parking_lot::Mutex;
use rustix::fs::FlockOperation;

/// The prefix of files that are being written.
const INCOMING: &str = "incoming-";
/// The folders.
const FOLDERS: [&str; 3] = ["narinfo", "nar", "small"];
/// Disk usage of a file is rounded up to this.
const BLOCK: u64 = 4096;
/// Bytes that stay free on a disk that has less room than the budget.
const DISK_RESERVE: u64 = 1 << 20;
/// The resolution of the time of the last use on disk, in milliseconds: writing every use would cost too much.
const USE_WRITTEN_AFTER_MS: u64 = 3_600_000;
/// The number of files that are created before they are needed.
const SPARE_MAX: usize = 4;

/// The folder. Names are relative to it: `nar/….nar.xz`.
#[derive(Debug)]
pub struct DiskCache {
    folder: PathBuf,
    bytes_max: AtomicU64,
    state: Mutex<State>,
    /// Empty files for the next NARs: creating one may wait for the disk, and clients would wait with it.
    spare: Mutex<Vec<TemporaryFile>>,
    /// Locked as long as it is open.
    lock_file: File,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<Arc<str>, Entry>,
    /// By last use; a number makes keys unique.
    by_use: BTreeMap<(u64, u64), Arc<str>>,
    uses: u64,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    size: u64,
    used: (u64, u64),
    /// The last use on disk, in milliseconds.
    written_ms: u64,
}

impl DiskCache {
    /// Opens or creates the folder, and scans its contents.
    pub fn open(folder: &Path, bytes_max: u64) -> io::Result<Self> {
        for name in FOLDERS {
            fs::create_dir_all(folder.join(name))?;
        }
        let lock = File::options().create(true).truncate(false).write(true).open(folder.join("lock"))?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => io::Error::other("another process uses it"),
            error => error.into(),
        })?;
        remove_leftovers(folder, |name| is_temporary_name(name, INCOMING))?;
        let mut state = State::default();
        for name in FOLDERS {
            for entry in fs::read_dir(folder.join(name))? {
                let entry = entry?;
                let meta = entry.metadata()?;
                if let Some(file) = entry.file_name().to_str().filter(|_| meta.is_file()) {
                    let used = meta.modified().map_or(0, ms);
                    state.add(format!("{name}/{file}").into(), meta.len(), used);
                }
            }
        }
        let kept = Self {
            folder: folder.to_owned(),
            bytes_max: AtomicU64::new(bytes_max),
            state: Mutex::new(state),
            spare: Mutex::default(),
            lock_file: lock,
        };
        kept.make_room(&mut kept.state.lock());
        kept.create_spare();
        Ok(kept)
    }

    /// Changes the budget; the excess is removed immediately.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        let mut state = self.state.lock();
        self.bytes_max.store(bytes_max, Ordering::Release);
        self.make_room(&mut state);
    }

    /// The budget.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max.load(Ordering::Acquire)
    }

    /// The size of all files in bytes.
    pub fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Whether the file exists. Does not count as a use.
    pub fn has(&self, name: &str) -> bool {
        self.state.lock().files.contains_key(name)
    }

    /// The names of all files that begin like this.
    pub fn names(&self, start: &str) -> Vec<Arc<str>> {
        self.state.lock().files.keys().filter(|name| name.starts_with(start)).cloned().collect()
    }

    /// A file, with its length. Counts as a use.
    pub fn get(&self, name: &str) -> Option<(File, u64)> {
        let size = self.state.lock().touch(name)?;
        let opened = File::open(self.folder.join(name));
        let Ok(file) = opened else {
            // It was removed by another process.
            self.state.lock().remove(name);
            return None;
        };
        if let Some(time) = self.state.lock().use_to_write(name) {
            // It only affects how long the file stays.
            let _ = file.set_modified(time);
        }
        Some((file, size))
    }

    /// Like [`get`](Self::get), of this length, if that is known. A file of another length is removed: it was truncated.
    pub fn get_whole(&self, name: &str, len: Option<u64>) -> Option<(File, u64)> {
        let found = self.get(name)?;
        if len.is_some_and(|len| len != found.1) {
            self.forget(name);
            return None;
        }
        Some(found)
    }

    /// A small file.
    pub fn read(&self, name: &str) -> Option<Vec<u8>> {
        let (mut file, size) = self.get(name)?;
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default());
        io::Read::read_to_end(&mut file, &mut bytes).ok()?;
        Some(bytes)
    }

    /// A new file for writing, without its final name.
    pub fn create(&self) -> io::Result<TemporaryFile> {
        TemporaryFile::create(&self.folder, INCOMING, 0o644)
    }

    /// Like [`create`](Self::create), but takes a spare file, if there is one.
    pub fn take(&self) -> io::Result<TemporaryFile> {
        let spare = self.spare.lock().pop();
        spare.map_or_else(|| self.create(), Ok)
    }

    /// Replaces the spare files that were taken.
    pub fn create_spare(&self) {
        while self.spare.lock().len() < SPARE_MAX {
            match self.create() {
                Ok(file) => {
                    let mut spare = self.spare.lock();
                    // Another thread may have been faster.
                    if spare.len() < SPARE_MAX {
                        spare.push(file);
                    }
                }
                Err(error) => return tracing::debug!("upstreams: no spare files: {error}"),
            }
        }
    }

    /// Syncs a file, renames it, and makes room.
    pub fn keep(&self, name: &str, file: TemporaryFile) -> io::Result<()> {
        file.file().sync_data()?;
        self.name(name, file)
    }

    /// Renames a file without syncing it, and makes room: it may be empty after a crash, which its readers must detect.
    pub fn keep_unsynced(&self, name: &str, file: TemporaryFile) -> io::Result<()> {
        self.name(name, file)
    }

    fn name(&self, name: &str, file: TemporaryFile) -> io::Result<()> {
        let size = file.file().metadata()?.len();
        // Under the lock: if the budget were lowered after this check, everything else would be removed for a file that
        // does not fit.
        let mut state = self.state.lock();
        if size.next_multiple_of(BLOCK) > self.bytes_max() {
            return Ok(());
        }
        file.persist(&self.folder.join(name))?;
        state.remove(name);
        state.add(name.into(), size, ms(SystemTime::now()));
        self.make_room(&mut state);
        Ok(())
    }

    /// Like [`keep_unsynced`](Self::keep_unsynced), for bytes in memory.
    pub fn keep_bytes(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let file = self.create()?;
        io::Write::write_all(&mut file.file(), bytes)?;
        self.name(name, file)
    }

    /// Removes a file, if it is there.
    pub fn forget(&self, name: &str) {
        if self.state.lock().remove(name) {
            // A file that cannot be removed is found at the next start.
            let _ = fs::remove_file(self.folder.join(name));
        }
    }

    fn make_room(&self, state: &mut State) {
        while state.bytes > self.bytes_max() && self.remove_oldest(state) {}
    }

    /// Removes files until so many bytes fit on the disk, which may have less room than the budget.
    pub fn make_disk_room(&self, bytes: u64) {
        let wanted = bytes.saturating_add(DISK_RESERVE);
        let has_room = || match rustix::fs::fstatvfs(&self.lock_file) {
            Ok(disk) => disk.f_bavail.saturating_mul(disk.f_frsize) >= wanted,
            // Then the write that follows says what is wrong.
            Err(_) => true,
        };
        let mut state = self.state.lock();
        while !has_room() && self.remove_oldest(&mut state) {}
    }

    /// Removes the least recently used file. Returns `false` if there is none.
    fn remove_oldest(&self, state: &mut State) -> bool {
        let Some((_, name)) = state.by_use.first_key_value() else { return false };
        let name = Arc::clone(name);
        state.remove(&name);
        tracing::debug!("disk cache: {name} is removed to free space");
        if let Err(error) = fs::remove_file(self.folder.join(&*name)) {
            tracing::warn!("disk cache: cannot remove '{}': {error}", self.folder.join(&*name).display());
        }
        true
    }
}

impl State {
    fn add(&mut self, name: Arc<str>, size: u64, used_ms: u64) {
        self.uses += 1;
        let used = (used_ms, self.uses);
        self.by_use.insert(used, Arc::clone(&name));
        self.files.insert(name, Entry { size, used, written_ms: used_ms });
        self.bytes += size.next_multiple_of(BLOCK);
    }

    fn remove(&mut self, name: &str) -> bool {
        let Some(entry) = self.files.remove(name) else { return false };
        self.by_use.remove(&entry.used);
        self.bytes -= entry.size.next_multiple_of(BLOCK);
        true
    }

    fn touch(&mut self, name: &str) -> Option<u64> {
        let entry = self.files.get_mut(name)?;
        self.uses += 1;
        let used = (ms(SystemTime::now()), self.uses);
        if let Some(name) = self.by_use.remove(&entry.used) {
            self.by_use.insert(used, name);
        }
        entry.used = used;
        Some(entry.size)
    }

    /// The time of the last use, if the one on disk is outdated.
    fn use_to_write(&mut self, name: &str) -> Option<SystemTime> {
        let entry = self.files.get_mut(name)?;
        let (now, _) = entry.used;
        if now.saturating_sub(entry.written_ms) < USE_WRITTEN_AFTER_MS {
            return None;
        }
        entry.written_ms = now;
        Some(UNIX_EPOCH + Duration::from_millis(now))
    }
}

fn ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(kept: &DiskCache) -> u64 {
        kept.bytes() / BLOCK
    }

    #[test]
    fn the_least_recently_used_is_evicted_first() {
        let folder = tempfile::tempdir().unwrap();
        let kept = DiskCache::open(folder.path(), 3 * BLOCK).unwrap();
        for name in ["nar/a", "nar/b", "narinfo/c"] {
            kept.keep_bytes(name, name.as_bytes()).unwrap();
        }
        assert_eq!((blocks(&kept), kept.read("nar/a").unwrap().as_slice()), (3, &b"nar/a"[..]));
        kept.keep_bytes("nar/d", &[0; 100]).unwrap();
        assert!(kept.has("nar/a") && !kept.has("nar/b") && kept.has("narinfo/c") && kept.has("nar/d"));
        assert!(!folder.path().join("nar/b").exists());
        // A file larger than the whole budget is not stored, and nothing is removed for it.
        kept.keep_bytes("nar/e", &vec![0; 4 * BLOCK as usize]).unwrap();
        assert!(!kept.has("nar/e") && blocks(&kept) == 3);
        // The same name again counts once.
        kept.keep_bytes("nar/d", &[0; 5000]).unwrap();
        assert_eq!(blocks(&kept), 3);
        assert!(!kept.has("narinfo/c"));
        assert!(kept.get_whole("nar/d", None).is_some() && kept.get_whole("nar/d", Some(5000)).is_some());
        assert!(kept.get_whole("nar/d", Some(5001)).is_none() && !kept.has("nar/d"));
    }

    /// ext4 can have a new file wait for the commit of another that is being synced.
    #[test]
    fn files_for_nars_are_created_ahead() {
        let folder = tempfile::tempdir().unwrap();
        let names = || {
            let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
            names.filter(|name| is_temporary_name(name, INCOMING)).collect::<std::collections::BTreeSet<_>>()
        };
        let kept = DiskCache::open(folder.path(), 100 * BLOCK).unwrap();
        let before = names();
        assert_eq!(before.len(), SPARE_MAX);
        let taken: Vec<_> = (0..SPARE_MAX).map(|_| kept.take().unwrap()).collect();
        assert_eq!(names(), before, "no file was created");
        let another = kept.take().unwrap();
        assert_eq!(names().len(), SPARE_MAX + 1);
        kept.create_spare();
        assert_eq!(names().len(), 2 * SPARE_MAX + 1);
        kept.keep("nar/a", another).unwrap();
        drop((taken, kept));
        assert!(names().is_empty());
    }

    #[test]
    fn existing_files_are_found_on_open() {
        let folder = tempfile::tempdir().unwrap();
        let kept = DiskCache::open(folder.path(), 100 * BLOCK).unwrap();
        kept.keep_bytes("nar/a", b"a").unwrap();
        assert_eq!(DiskCache::open(folder.path(), 1).unwrap_err().to_string(), "another process uses it");
        let left = kept.create().unwrap();
        fs::copy(left.path(), folder.path().join("incoming-0123456789abcdef")).unwrap();
        drop((kept, left));
        let kept = DiskCache::open(folder.path(), 100 * BLOCK).unwrap();
        assert_eq!(kept.read("nar/a").unwrap(), b"a");
        assert!(!folder.path().join("incoming-0123456789abcdef").exists());
        fs::remove_file(folder.path().join("nar/a")).unwrap();
        assert!(kept.get("nar/a").is_none() && kept.bytes() == 0);
        kept.keep_bytes("nar/b", b"b").unwrap();
        drop(kept);
        // A smaller budget than before.
        assert!(!DiskCache::open(folder.path(), BLOCK - 1).unwrap().has("nar/b"));
    }
}
