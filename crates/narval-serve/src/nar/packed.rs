//! NARs with many small files, packed into one file for the next request.
//!
//! Opening, reading and closing a file costs about 3 µs however small it is, and its bytes are copied twice. So once a NAR was sent, a
//! thread writes its small files and its framing into one unnamed file, which is sent with `sendfile(2)` from then on. Large files
//! (1 MiB and more) are still sent from the store and take no space here. Of a NAR of up to 1 MiB, everything is packed, and it is
//! answered like a file.
//!
//! The thread verifies the NAR hash. Packed files are found by that hash alone, so one is sent only as the NAR of a path that has this
//! hash in the store's database now. The files have no names: nothing is left behind, not even by a killed process.

use std::collections::{HashMap, VecDeque};

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use narval_nix::{NarHash, Sha256Hasher};
use narval_store::{NarLayout, NarReader, NarStream, PackedNar};
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::metrics::Metrics;
use crate::nar::damaged::DamagedPaths;
use crate::nar::plan::PathNar;

/// Disk space for all packed files, in bytes.
const BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Disk space for one of them.
const ONE_BYTES_MAX: u64 = BYTES_MAX / 4;
/// The most packed files; each is an open descriptor. Also, at most this fraction of the descriptors the process may have.
const KEPT_MAX: usize = 1024;
const KEPT_OF_DESCRIPTORS: u64 = 8;
/// After a write error, nothing is packed for this long.
const PAUSE: Duration = Duration::from_secs(30);
/// NARs up to this size are packed with their large files.
const WHOLE_BYTES_MAX: u64 = 1024 * 1024;
/// The fewest small files that packing pays off for.
const FILES_MIN: usize = 2;
/// The fewest small files that packing pays off for after the first request, and their largest average size: such a NAR takes several
/// times as long to send as one file of its size. Others are packed when they are requested again, which most never are.
const FILES_MANY: usize = 128;
const BYTES_PER_FILE_MAX: u64 = 32 * 1024;
/// The maximum number of NARs queued for packing, which also limits the memory for their plans. A NAR that does not fit
/// is queued the next time it is sent.
const QUEUE_LEN_MAX: usize = 256;
const QUEUE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The niceness of the packing thread. A higher one might never finish on a machine that is never idle.
const NICENESS: i32 = 5;
/// Bytes of the NAR that are read at a time.
const PIECE_BYTES: usize = 256 * 1024;

/// See the module's description.
#[derive(Debug)]
pub(crate) struct PackedNars {
    folder: PathBuf,
    bytes_max: u64,
    kept_max: usize,
    kept: RwLock<HashMap<NarHash, Arc<PackedFile>>>,
    /// Incremented by each use.
    clock: AtomicU64,
    work: Mutex<Work>,
    damaged: Arc<DamagedPaths>,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Default)]
struct Work {
    /// NARs to pack. While there is a thread, it works on the first one.
    wanted: VecDeque<Arc<PathNar>>,
    has_thread: bool,
    /// Set after a write error.
    paused_until: Option<Instant>,
}

/// A packed NAR.
#[derive(Debug)]
pub(crate) struct PackedFile {
    pub(crate) nar: Arc<PackedNar>,
    bytes: u64,
    /// The value of the clock at its last use.
    used_at: AtomicU64,
    /// How often it was sent; halved whenever another NAR wanted its space.
    uses: AtomicU32,
}

/// Why a NAR was not packed.
enum NotPacked {
    Folder(io::Error),
    Nar(io::Error),
    OtherHash,
}

impl PackedNars {
    /// Packs NARs into unnamed files on the file system of this folder, of `bytes_max` bytes and 512 MiB at most.
    pub(crate) fn new(folder: &Path, bytes_max: u64, damaged: Arc<DamagedPaths>, metrics: Arc<Metrics>) -> Self {
        let (kept, work) = (RwLock::default(), Mutex::default());
        let (folder, bytes_max) = (folder.to_owned(), bytes_max.min(BYTES_MAX));
        let kept_max = kept_max();
        Self { folder, bytes_max, kept_max, kept, clock: AtomicU64::new(0), work, damaged, metrics }
    }

    /// The packed NAR with this hash. Never waits: returns `None` while another thread is adding one.
    pub(crate) fn get(&self, nar_hash: &NarHash) -> Option<Arc<PackedFile>> {
        let kept = Arc::clone(self.kept.try_read()?.get(nar_hash)?);
        self.record_use(&kept);
        Some(kept)
    }

    /// Records that a packed NAR is sent.
    pub(crate) fn record_use(&self, kept: &PackedFile) {
        kept.used_at.store(self.clock.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        kept.uses.fetch_add(1, Ordering::Relaxed);
        self.metrics.flat_nar_hits.inc();
    }

    /// Called when a NAR was sent: queues it for packing if that pays off.
    pub(crate) fn was_sent(self: &Arc<Self>, path_nar: &Arc<PathNar>) {
        let times = path_nar.times_sent.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if !is_worth_it(&path_nar.layout, times) {
            return;
        }
        let is_kept = self.kept.read().contains_key(&path_nar.nar_hash);
        if is_kept || !self.has_room(packed_bytes(&path_nar.layout)) {
            return;
        }
        let mut work = self.work.lock();
        let memory: usize = work.wanted.iter().map(|wanted| wanted.layout.memory_bytes()).sum();
        if work.paused_until.is_some_and(|until| Instant::now() < until)
            || work.wanted.len() >= QUEUE_LEN_MAX
            || memory > QUEUE_BYTES_MAX
            || work.wanted.iter().any(|wanted| wanted.nar_hash == path_nar.nar_hash)
        {
            return;
        }
        work.wanted.push_back(Arc::clone(path_nar));
        if !work.has_thread {
            let this = Arc::clone(self);
            let thread = std::thread::Builder::new().name("packed-nars".to_owned()).spawn(move || this.work());
            work.has_thread = thread.is_ok();
            if let Err(error) = thread {
                work.wanted.clear();
                tracing::error!("a NAR of small files is not packed: no thread can be started: {error}");
            }
        }
    }

    /// Packs queued NARs until the queue is empty.
    fn work(&self) {
        // Threads that answer requests come first (niceness is per thread, sched(7)). A failure only costs them some time.
        let _ = rustix::process::setpriority_process(None, NICENESS);
        loop {
            let next = {
                let mut work = self.work.lock();
                let next = work.wanted.front().cloned();
                work.has_thread = next.is_some();
                next
            };
            let Some(path_nar) = next else { return };
            match self.make(&path_nar) {
                Ok(kept) => self.keep(path_nar.nar_hash, kept),
                Err(NotPacked::Folder(error)) => self.pause(&error),
                // The next request for it reports the error.
                Err(NotPacked::Nar(error)) => tracing::debug!("NAR of {} is not packed: {error}", path_nar.path),
                Err(NotPacked::OtherHash) => {
                    self.damaged.add(path_nar.path.hash_part(), &path_nar.nar_hash, &path_nar.real_path);
                    tracing::error!("NAR of {}: {}", path_nar.path, crate::nar::damaged::NOT_AS_REGISTERED);
                }
            }
            self.work.lock().wanted.pop_front();
        }
    }

    /// Logs a write error, and packs nothing for a while. If the disk is full or descriptors have run out, half of the packed files
    /// are dropped: they may be the cause.
    fn pause(&self, error: &io::Error) {
        {
            let mut work = self.work.lock();
            work.paused_until = Some(Instant::now() + PAUSE);
            // The thread works on the first one, and removes it.
            work.wanted.truncate(1);
        }
        tracing::warn!(
            "NARs of small files are not packed for {} s: cannot write to '{}': {error}",
            PAUSE.as_secs(),
            self.folder.display()
        );
        let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        if is_full || error.raw_os_error() == Some(Errno::MFILE.raw_os_error()) {
            let half = self.kept.read().len() / 2;
            self.drop_longest_unused(|kept, _| kept > half);
        }
    }

    fn make(&self, path_nar: &PathNar) -> Result<PackedFile, NotPacked> {
        let file = tempfile::tempfile_in(&self.folder).map_err(NotPacked::Folder)?;
        let layout = Arc::clone(&path_nar.layout);
        let (size, bytes) = (layout.size_bytes(), packed_bytes(&layout));
        let mut packed = PackedNar::new(&layout, file, size <= WHOLE_BYTES_MAX);
        let stream = NarStream::open(layout, &path_nar.real_path, 0..size, None);
        let mut nar = NarReader::of(stream.map_err(|error| NotPacked::Nar(error.into()))?);
        let mut hasher = Sha256Hasher::new();
        let mut piece = vec![0; PIECE_BYTES];
        let mut at = 0;
        loop {
            let got = nar.read(&mut piece).map_err(NotPacked::Nar)?;
            let made = piece.get(..got).unwrap_or_default();
            if made.is_empty() {
                break;
            }
            hasher.update(made);
            packed.put(at, made).map_err(NotPacked::Folder)?;
            at += got as u64;
        }
        if at != size || hasher.finish() != path_nar.nar_hash {
            return Err(NotPacked::OtherHash);
        }
        Ok(PackedFile::new(packed, bytes))
    }

    /// Whether there is room for this many bytes, or can be made by dropping the least recently used file. A file in
    /// use has its uses halved each time instead: when more NARs are requested in turn than there is room for, some of
    /// them stay packed.
    fn has_room(&self, bytes: u64) -> bool {
        if bytes > self.bytes_max {
            return false;
        }
        let kept = self.kept.read();
        let used: u64 = kept.values().map(|kept| kept.bytes).sum();
        if used + bytes <= self.bytes_max && kept.len() < self.kept_max {
            return true;
        }
        let Some(last) = kept.values().min_by_key(|kept| kept.used_at.load(Ordering::Relaxed)) else { return true };
        let uses = last.uses.load(Ordering::Relaxed);
        last.uses.store(uses / 2, Ordering::Relaxed);
        uses == 0
    }

    /// Adds a packed NAR, and drops the least recently used ones if there is no room. Answers in progress keep their files open.
    fn keep(&self, nar_hash: NarHash, new: PackedFile) {
        new.used_at.store(self.clock.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        let before = self.kept.write().insert(nar_hash, Arc::new(new));
        drop(before);
        self.drop_longest_unused(|kept, bytes| bytes > self.bytes_max || kept > self.kept_max);
    }

    /// Drops the least recently used files until `is_too_much`, given their number and bytes, is false.
    fn drop_longest_unused(&self, is_too_much: impl Fn(usize, u64) -> bool) {
        // Closed after the lock was released.
        let mut gone = Vec::new();
        let mut kept = self.kept.write();
        let mut bytes: u64 = kept.values().map(|kept| kept.bytes).sum();
        while is_too_much(kept.len(), bytes)
            && let Some(last) = kept.iter().min_by_key(|(_, kept)| kept.used_at.load(Ordering::Relaxed))
        {
            let last = *last.0;
            let last = kept.remove(&last);
            bytes -= last.as_ref().map_or(0, |last| last.bytes);
            gone.extend(last);
        }
        drop(kept);
    }
}

impl PackedFile {
    fn new(packed: PackedNar, bytes: u64) -> Self {
        Self { nar: Arc::new(packed), bytes, used_at: AtomicU64::new(0), uses: AtomicU32::new(0) }
    }
}

/// The most packed NARs for this process. Each holds a descriptor, and most descriptors are for clients.
pub(crate) fn kept_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors / KEPT_OF_DESCRIPTORS).unwrap_or(usize::MAX).min(KEPT_MAX)
}

/// Disk space that a NAR takes when it is packed.
fn packed_bytes(layout: &NarLayout) -> u64 {
    let size = layout.size_bytes();
    if size <= WHOLE_BYTES_MAX { size } else { layout.small_files().1 }
}

/// Whether packing a NAR that was sent this often pays off.
fn is_worth_it(layout: &NarLayout, times: u32) -> bool {
    let (files, bytes) = layout.small_files();
    let has_many = files >= FILES_MANY && bytes / files as u64 <= BYTES_PER_FILE_MAX;
    packed_bytes(layout) <= ONE_BYTES_MAX && files >= FILES_MIN && (has_many || times > 1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use narval_nix::{Sha256, StorePath};

    use super::*;

    const NAME: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la-tree";

    fn tree(root: &Path, files: usize) -> PathBuf {
        let path = root.join(NAME);
        std::fs::create_dir(&path).unwrap();
        (0..files).for_each(|number| std::fs::write(path.join(number.to_string()), vec![7; number]).unwrap());
        path
    }

    fn path_nar(path: &Path) -> Arc<PathNar> {
        let layout = Arc::new(NarLayout::scan(path).unwrap());
        let mut nar = Vec::new();
        NarReader::open(path).unwrap().read_to_end(&mut nar).unwrap();
        let (nar_hash, real_path) = (Sha256::of(&nar), path.to_owned());
        Arc::new(PathNar::new(StorePath::parse(NAME).unwrap(), real_path, nar_hash, layout))
    }

    fn flat(folder: &Path) -> Arc<PackedNars> {
        let metrics = Arc::new(Metrics::new(&narval_keep::CacheName::default()));
        let damaged = DamagedPaths::new(|_| {}, Arc::clone(&metrics));
        Arc::new(PackedNars::new(folder, BYTES_MAX, Arc::new(damaged), metrics))
    }

    fn idle(flat: &PackedNars) {
        let until = Instant::now() + Duration::from_secs(60);
        while flat.work.lock().has_thread {
            assert!(Instant::now() < until);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_sent_nar_is_packed_into_an_unnamed_file() {
        let dir = tempfile::tempdir().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path_nar = path_nar(&tree(dir.path(), 200));
        let flat = flat(folder.path());
        assert!(flat.get(&path_nar.nar_hash).is_none());
        flat.was_sent(&path_nar);
        idle(&flat);
        let mut nar = vec![0; usize::try_from(path_nar.layout.size_bytes()).unwrap()];
        let kept = flat.get(&path_nar.nar_hash).unwrap();
        kept.nar.whole().unwrap().read_exact_at(&mut nar, 0).unwrap();
        assert_eq!(Sha256::of(&nar), path_nar.nar_hash);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_nar_with_another_hash_is_not_packed() {
        let dir = tempfile::tempdir().unwrap();
        let path = tree(dir.path(), 200);
        let path_nar = path_nar(&path);
        std::fs::write(path.join("100"), vec![8; 100]).unwrap();
        let flat = flat(dir.path());
        flat.was_sent(&path_nar);
        idle(&flat);
        assert!(flat.get(&path_nar.nar_hash).is_none());
        assert_eq!(flat.metrics.corrupt_paths.get(), 1);
        // A missing file does not make the path damaged.
        std::fs::remove_file(path.join("100")).unwrap();
        flat.was_sent(&path_nar);
        idle(&flat);
        assert!(flat.get(&path_nar.nar_hash).is_none());
        assert_eq!(flat.metrics.corrupt_paths.get(), 1);
    }

    #[test]
    fn large_files_are_not_packed() {
        let dir = tempfile::tempdir().unwrap();
        let path = tree(dir.path(), 200);
        std::fs::write(path.join("large"), vec![1; 2 << 20]).unwrap();
        let path_nar = path_nar(&path);
        let flat = flat(dir.path());
        flat.was_sent(&path_nar);
        idle(&flat);
        let kept = flat.get(&path_nar.nar_hash).unwrap();
        assert!(kept.nar.whole().is_none());
        assert_eq!(kept.bytes, path_nar.layout.size_bytes() - (2 << 20));
    }

    #[test]
    fn few_files_are_packed_on_the_second_request() {
        let dir = tempfile::tempdir().unwrap();
        let flat = flat(dir.path());
        let path_nar = path_nar(&tree(dir.path(), FILES_MIN));
        for is_kept in [false, true] {
            flat.was_sent(&path_nar);
            idle(&flat);
            assert_eq!(flat.get(&path_nar.nar_hash).is_some(), is_kept);
        }
        std::fs::remove_dir_all(&path_nar.real_path).unwrap();
        let one = self::path_nar(&tree(dir.path(), FILES_MIN - 1));
        flat.was_sent(&one);
        flat.was_sent(&one);
        assert!(!flat.work.lock().has_thread);
    }

    #[test]
    fn a_missing_folder_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("none");
        let (flat, path_nar) = (flat(&folder), path_nar(&tree(dir.path(), 200)));
        let send = || {
            flat.was_sent(&path_nar);
            idle(&flat);
            flat.get(&path_nar.nar_hash).is_some()
        };
        assert!(!send());
        std::fs::create_dir(&folder).unwrap();
        assert!(!send() && flat.work.lock().paused_until.is_some_and(|until| until > Instant::now()));
        // As if the time had passed.
        flat.work.lock().paused_until = Some(Instant::now());
        assert!(send());
    }

    /// A full disk and a lack of descriptors may be caused by the packed files.
    #[test]
    fn packed_nars_are_evicted_if_the_system_has_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let layout = NarLayout::scan(file.path()).unwrap();
        for (error, left) in [
            (io::Error::from(io::ErrorKind::StorageFull), 4),
            (io::Error::from(io::ErrorKind::QuotaExceeded), 4),
            (io::Error::from_raw_os_error(Errno::MFILE.raw_os_error()), 4),
            (io::Error::from(io::ErrorKind::PermissionDenied), 8),
        ] {
            let flat = flat(dir.path());
            for number in 0..8_u8 {
                let packed = PackedNar::new(&layout, tempfile::tempfile().unwrap(), true);
                flat.keep(Sha256::of(&[number]), PackedFile::new(packed, 1));
            }
            flat.pause(&error);
            assert_eq!(flat.kept.read().len(), left, "{error}");
            assert!(flat.get(&Sha256::of(&[7])).is_some(), "what was used last stays");
        }
    }

    #[test]
    fn the_least_recently_used_is_evicted_first() {
        let (dir, file) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        let flat = flat(dir.path());
        let layout = NarLayout::scan(file.path()).unwrap();
        for number in 0..5_u8 {
            assert!(flat.has_room(BYTES_MAX / 4));
            let packed = PackedNar::new(&layout, tempfile::tempfile().unwrap(), true);
            flat.keep(Sha256::of(&[number]), PackedFile::new(packed, BYTES_MAX / 4));
        }
        let kept = [0, 1, 2, 3, 4].map(|number: u8| flat.kept.read().contains_key(&Sha256::of(&[number])));
        assert_eq!(kept, [false, true, true, true, true]);
        // A file in use stays for a while, and is dropped after the others.
        flat.get(&Sha256::of(&[1])).unwrap();
        for number in [2, 3, 4, 1_u8] {
            flat.get(&Sha256::of(&[number])).unwrap();
        }
        assert_eq!([(); 3].map(|()| flat.has_room(BYTES_MAX / 4)), [false, true, true]);
        assert!(!flat.has_room(BYTES_MAX + 1));
    }
}
