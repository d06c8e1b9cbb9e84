//! A data folder.
//!
//! ```text
//! caches/<name>/nar/<FileHash>.nar[.ext]      a NAR's file; its other names are hard links
//! caches/<name>/nar/<FileHash>.nar[.ext].ls   its listing
//! caches/<name>/<hash part>.ls                a hard link to the latter
//! incoming/                                   what is being written
//! ```
//!
//! No file belongs to two caches: what one of them uploads is not seen in another.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use narval_files::{TemporaryFile, is_temporary_name, remove_leftovers, temporary_name};
use narval_nix::HashPart;
use narval_store::open_beneath;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, statvfs};
use rustix::io::Errno;

use super::{
    Asker, Below, CACHE_FOLDERS, CacheStorage, Incoming, Keep, NarBytes, Redirect, Room, Storage, StorageLock,
    StoredFile, TEMPORARY, WrittenNarinfo, object_name,
};
use crate::index::{CacheId, Index, Lost, NarRecord, PathRecord, Placed};
use crate::{CacheName, NarFileName, NarTarget, Refusal};

/// How the names of listings end.
const LISTING: &str = ".ls";

/// The bytes that a check writes: more than a file system keeps in an inode.
const CHECKED_LEN: usize = 4096;

/// A data folder.
pub(crate) struct Folder {
    path: PathBuf,
}

impl Folder {
    /// Makes the folders that are missing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        for folder in ["caches", "incoming"] {
            fs::create_dir_all(path.join(folder))?;
        }
        Ok(Self { path: path.to_owned() })
    }

    fn lock(&self, operation: FlockOperation) -> io::Result<StorageLock> {
        lock(&self.path, operation)
    }
}

impl Storage for Folder {
    fn place(&self) -> &Path {
        &self.path
    }

    fn clear_up(&self) -> io::Result<()> {
        // Before caches had files of their own, they were hard links to those in here.
        match fs::remove_dir_all(self.path.join("blobs")) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        remove_leftovers(&self.path.join("incoming"), |name| is_temporary_name(name, TEMPORARY))
    }

    fn open_cache(&self, name: &CacheName) -> io::Result<Box<dyn CacheStorage>> {
        Ok(Box::new(CacheFolder::open(&self.path, &self.path.join("caches").join(name.as_str()))?))
    }

    fn caches(&self) -> io::Result<Vec<CacheName>> {
        let names = entries(&self.path.join("caches"))?.into_iter();
        Ok(names.filter_map(|path| CacheName::parse(path.file_name()?.to_str()?).ok()).collect())
    }

    fn lock_shared(&self) -> io::Result<StorageLock> {
        self.lock(FlockOperation::LockShared)
    }

    fn lock_exclusive(&self) -> io::Result<StorageLock> {
        self.lock(FlockOperation::LockExclusive)
    }

    fn incoming(&self) -> io::Result<TemporaryFile> {
        incoming(&self.path)
    }

    /// Writes to a temporary file, as an upload does first.
    fn check_writable(&self) -> io::Result<()> {
        let file = self.incoming()?;
        file.file().write_all(&[0; CHECKED_LEN])?;
        file.file().sync_data()
    }

    fn room(&self) -> Option<Room> {
        let disk = statvfs(&self.path).ok()?;
        Some(Room::new(disk.f_bavail.saturating_mul(disk.f_frsize), disk.f_blocks.saturating_mul(disk.f_frsize)))
    }

    fn publishes_later(&self) -> bool {
        false
    }

    fn end_unfinished(&self, _: u64) -> io::Result<usize> {
        Ok(0)
    }

    fn sync(&self) -> io::Result<()> {
        // One call for all files, instead of one per file.
        Ok(rustix::fs::syncfs(&File::open(&self.path)?)?)
    }
}

/// A cache's folder.
struct CacheFolder {
    /// The data folder.
    data: PathBuf,
    path: PathBuf,
    root: File,
    nar: File,
    /// The commits that have asked for the names below `nar/` to be durable, and how many of them have got it. Commits are counted and not
    /// names, because another process may have added the names that a commit needs.
    asked: AtomicU64,
    synced: Mutex<u64>,
}

impl CacheFolder {
    /// Makes the folders that are missing.
    fn open(data: &Path, path: &Path) -> io::Result<Self> {
        for folder in CACHE_FOLDERS {
            fs::create_dir_all(path.join(folder))?;
        }
        let (root, nar) = (File::open(path)?, File::open(path.join("nar"))?);
        let (asked, synced) = (AtomicU64::new(0), Mutex::new(0));
        Ok(Self { data: data.to_owned(), path: path.to_owned(), root, nar, asked, synced })
    }

    /// Bytes in a NAR's file; `None` if there is none.
    fn nar_len(&self, name: &str) -> io::Result<Option<u64>> {
        match rustix::fs::statat(&self.nar, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(u64::try_from(stat.st_size).unwrap_or(0))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The place of a name below `nar/`.
    fn nar_path(&self, name: &str) -> PathBuf {
        self.path.join("nar").join(name)
    }

    /// The place of its listing.
    fn nar_listing(&self, name: &str) -> PathBuf {
        self.nar_path(&format!("{name}{LISTING}"))
    }

    /// The stored file of this NAR, if it exists as recorded: one of its names.
    fn stored(&self, keep: &Keep<'_>) -> Result<Option<(String, NarRecord)>, Refusal> {
        let Some(kept) = keep.index.nar(keep.cache, &keep.nar.nar_hash, keep.nar.compression)? else { return Ok(None) };
        // Its own name may be gone, or have been that of another cache's file.
        let others = keep.index.files_of(keep.cache, &kept.nar_hash)?;
        let others = others.into_iter().filter(|(_, nar)| *nar == kept).map(|(name, _)| name);
        for name in std::iter::once(object_name(&kept)).chain(others) {
            let is_there = self.has_nar(&name, kept.file_size);
            if is_there.map_err(|error| Refusal::of_file("look at", &name, &error))? {
                return Ok(Some((name, kept)));
            }
        }
        Ok(None)
    }
}

impl CacheStorage for CacheFolder {
    fn place(&self) -> &Path {
        &self.path
    }

    fn open(&self, name: &str) -> io::Result<Option<(File, u64)>> {
        let name = CString::new(name)?;
        match open_beneath(self.root.as_fd(), &name) {
            Ok(file) => {
                let file = File::from(file);
                let metadata = file.metadata()?;
                Ok(metadata.is_file().then_some((file, metadata.len())))
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn len(&self, name: &str) -> io::Result<Option<u64>> {
        file_len(&self.path.join(name))
    }

    fn write(&self, name: &str, file: TemporaryFile) -> io::Result<()> {
        persist(file, &self.path.join(name))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.root, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn list(&self, below: Below<'_>) -> io::Result<Vec<StoredFile>> {
        let (mut files, mut open) = (Vec::new(), vec![self.path.clone()]);
        if let Below::Folder(name) = below {
            open = vec![self.path.join(name)];
        }
        while let Some(folder) = open.pop() {
            let paths = match entries(&folder) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                paths => paths?,
            };
            for path in paths {
                let metadata = match fs::symlink_metadata(&path) {
                    // Removed meanwhile.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    metadata => metadata?,
                };
                if metadata.is_dir() {
                    if below != Below::Root {
                        open.push(path);
                    }
                } else if let Some(name) = path.strip_prefix(&self.path).ok().and_then(Path::to_str) {
                    let modified = metadata.modified().ok();
                    files.push(StoredFile { name: name.to_owned(), len: metadata.len(), modified });
                }
            }
        }
        Ok(files)
    }

    fn served_name(&self, name: &str, _: &NarRecord) -> String {
        name.to_owned()
    }

    fn check_nar(&self, name: &str, nar: &NarRecord) -> io::Result<bool> {
        self.has_nar(name, nar.file_size)
    }

    fn is_placed(&self, _: &dyn Index, _: CacheId, name: &str, nar: &NarRecord) -> Result<bool, Refusal> {
        self.has_nar(name, nar.file_size).map_err(|error| Refusal::of_file("look at", name, &error))
    }

    /// Nothing is removed before the commit: it has the folder's lock.
    fn placed(
        &self,
        index: &dyn Index,
        cache: CacheId,
        nars: &[(String, NarRecord)],
    ) -> Result<Vec<Option<Placed>>, Refusal> {
        let placed = |(name, nar): &(String, NarRecord)| {
            let is_placed = self.is_placed(index, cache, name, nar)?;
            Ok(is_placed.then(|| Placed { name: name.clone(), entry: i64::MAX }))
        };
        nars.iter().map(placed).collect()
    }

    fn nar(&self, name: &str, nar: &NarRecord, _: Asker) -> io::Result<Option<NarBytes>> {
        Ok(self.open_nar(name, nar)?.map(NarBytes::File))
    }

    fn read(&self, name: &str) -> io::Result<Option<Box<dyn Read>>> {
        Ok(self.open(name)?.map(|(file, _)| Box::new(file) as Box<dyn Read>))
    }

    fn receive(&self, _: &NarTarget, _: u64) -> io::Result<Incoming> {
        incoming(&self.data).map(Incoming::File)
    }

    fn listing(&self) -> io::Result<Option<TemporaryFile>> {
        incoming(&self.data).map(Some)
    }

    fn has_nar(&self, name: &str, file_size: u64) -> io::Result<bool> {
        Ok(self.nar_len(name)? == Some(file_size))
    }

    fn elsewhere(&self, _: &NarRecord, _: Redirect) -> Option<String> {
        None
    }

    fn open_nar(&self, name: &str, nar: &NarRecord) -> io::Result<Option<File>> {
        let opened = self.open(&format!("nar/{name}"))?;
        Ok(opened.filter(|(_, len)| *len == nar.file_size).map(|(file, _)| file))
    }

    fn keep(&self, received: Incoming, keep: Keep<'_>) -> Result<(NarFileName, NarRecord), Refusal> {
        let failed = |error: io::Error| Refusal::of_file("store", keep.target, &error);
        // Only buckets have objects.
        let Incoming::File(file) = received else { return Err(failed(ErrorKind::InvalidInput.into())) };
        // Before taking the lock, because it takes time. Not needed if the cache already has the NAR.
        let mut is_durable = keep.is_unverified;
        if !is_durable && self.stored(&keep)?.is_none() {
            file.file().sync_all().map_err(failed)?;
            is_durable = true;
        }
        let _no_collection = lock(&self.data, FlockOperation::LockShared).map_err(failed)?;
        let _one_by_one = keep.one_by_one.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = self.stored(&keep)?;
        let parsed = match &keep.target {
            NarTarget::File(name) => *name,
            // The name of the stored file, if there is one already.
            NarTarget::Nar { .. } => {
                let nar = kept.as_ref().map_or(&keep.nar, |(_, kept)| kept);
                NarFileName::new(nar.file_hash, nar.compression)
            }
        };
        let name = parsed.to_string();
        let record = match kept {
            Some((stored, kept)) => {
                keep.index.add_file(keep.cache, &name, &kept, keep.now)?;
                self.add_alias(&stored, &name).map_err(failed)?;
                kept
            }
            None => {
                // Others may have used the quota meanwhile.
                (keep.check_quota)(keep.nar.file_size)?;
                // The row first: a row without a file is found at the next start.
                keep.index.add_file(keep.cache, &name, &keep.nar, keep.now)?;
                let place = || {
                    if let Some(listing) = keep.listing.filter(|_| keep.nar.listing_size.is_some()) {
                        self.keep_listing(&name, listing)?;
                    }
                    if !is_durable {
                        // Another upload's file existed a moment ago, and is lost now.
                        file.file().sync_all()?;
                    }
                    persist(file, &self.nar_path(&name))
                };
                if let Err(error) = place() {
                    // The first error is reported; if this fails, too, the next start finds the row.
                    keep.index.remove_file(keep.cache, &name, Lost::Certainly).ok();
                    return Err(failed(error));
                }
                keep.nar
            }
        };
        Ok((parsed, record))
    }

    fn add_alias(&self, name: &str, alias: &str) -> io::Result<()> {
        if name == alias {
            return Ok(());
        }
        link(&self.nar_path(name), &self.nar_path(alias))?;
        link_listing(&self.nar_listing(name), &self.nar_listing(alias))
    }

    fn keep_listing(&self, name: &str, listing: TemporaryFile) -> io::Result<()> {
        persist(listing, &self.nar_listing(name))
    }

    fn unlink_nar(&self, name: &str, _: Instant) -> io::Result<()> {
        self.remove(&format!("nar/{name}"))?;
        self.remove(&format!("nar/{name}{LISTING}"))
    }

    /// Commits at the same time share one call.
    fn sync_nars(&self) -> io::Result<()> {
        let asked = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if *synced < asked {
            // All that have asked by now had their names before that.
            let covered = self.asked.load(Ordering::Acquire);
            self.nar.sync_all()?;
            *synced = covered;
        }
        Ok(())
    }

    fn write_narinfo(&self, text: &[u8]) -> io::Result<WrittenNarinfo> {
        write(&self.data, text).map(|file| WrittenNarinfo(Some(file)))
    }

    fn publish(&self, record: &PathRecord, written: Option<WrittenNarinfo>, _: Instant) -> io::Result<()> {
        let place = self.path.join(format!("{}.narinfo", record.hash_part));
        let narinfo = match written {
            Some(WrittenNarinfo(Some(written))) => written,
            // It was published, and its listing before it. After a commit of many, whoever opens the folder finds nearly all so, and others wait for it.
            _ if is_there(&place, &record.narinfo) => return Ok(()),
            _ => write(&self.data, &record.narinfo)?,
        };
        if record.listing_size.is_some() {
            let place = self.path.join(format!("{}{LISTING}", record.hash_part));
            link_listing(&self.nar_listing(&record.file), &place)?;
        }
        narinfo.persist(&place)
    }

    fn withdraw(&self, part: &HashPart, _: Instant) -> io::Result<()> {
        self.remove(&format!("{part}.narinfo"))?;
        self.remove(&format!("{part}.ls"))
    }
}

/// Whether a file has these contents.
fn is_there(path: &Path, contents: &[u8]) -> bool {
    file_len(path).is_ok_and(|len| len == Some(contents.len() as u64))
        && fs::read(path).is_ok_and(|there| there == contents)
}

/// A file that is being written.
fn incoming(data: &Path) -> io::Result<TemporaryFile> {
    TemporaryFile::create(&data.join("incoming"), TEMPORARY, 0o644)
}

/// Writes a file under a temporary name: it appears whole when it is given its own.
fn write(data: &Path, contents: &[u8]) -> io::Result<TemporaryFile> {
    let file = incoming(data)?;
    file.file().write_all(contents)?;
    Ok(file)
}

/// Makes `to` another name of the file at `from`, in place of what may have it.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let (source, there) = (fs::metadata(from)?, fs::symlink_metadata(to)?);
            if (source.dev(), source.ino()) == (there.dev(), there.ino()) {
                return Ok(());
            }
            let folder = to.parent().ok_or(ErrorKind::InvalidInput)?;
            let temporary = folder.join(temporary_name(TEMPORARY));
            fs::hard_link(from, &temporary)?;
            fs::rename(&temporary, to).inspect_err(|_| {
                // The first error counts.
                fs::remove_file(&temporary).ok();
            })
        }
        linked => linked,
    }
}

/// Makes `to` another name of a listing. Not essential: that may be gone, or have more links than the file system allows (thousands of paths with
/// the same contents).
fn link_listing(from: &Path, to: &Path) -> io::Result<()> {
    match link(from, to) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::TooManyLinks) => Ok(()),
        linked => linked,
    }
}

/// Gives a written file its name; makes the folder when it is missing.
fn persist(file: TemporaryFile, to: &Path) -> io::Result<()> {
    if let Some(folder) = to.parent()
        && !folder.exists()
    {
        fs::create_dir_all(folder)?;
    }
    file.persist(to)
}

/// Bytes in a file; `None` if there is none.
fn file_len(path: &Path) -> io::Result<Option<u64>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata.len())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect()
}

/// A lock belongs to an open file: threads are to each other as processes are.
fn lock(data: &Path, operation: FlockOperation) -> io::Result<StorageLock> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file: File = rustix::fs::open(data.join("storage.lock"), flags, Mode::RUSR | Mode::WUSR)?.into();
    loop {
        match rustix::fs::flock(&file, operation) {
            Err(Errno::INTR) => {}
            result => {
                result?;
                return Ok(StorageLock { _file: Some(file) });
            }
        }
    }
}
