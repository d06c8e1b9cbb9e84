//! A data folder.
//!
//! ```text
//! caches/<name>/nar/<name>.nar[.ext]      a NAR's file
//! caches/<name>/nar/<name>.nar[.ext].ls   its listing
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
    Asker, Below, CACHE_FOLDERS, CacheStorage, Incoming, NarBytes, Redirect, Room, Storage, StorageLock, StoredFile,
    TEMPORARY, WrittenNarinfo,
};
use crate::name::CacheName;
use crate::records::paths::{NarRecord, PathRecord};

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
    requested: AtomicU64,
    synced: Mutex<u64>,
}

impl CacheFolder {
    /// Makes the folders that are missing.
    fn open(data: &Path, path: &Path) -> io::Result<Self> {
        for folder in CACHE_FOLDERS {
            fs::create_dir_all(path.join(folder))?;
        }
        let (root, nar) = (File::open(path)?, File::open(path.join("nar"))?);
        let (requested, synced) = (AtomicU64::new(0), Mutex::new(0));
        Ok(Self { data: data.to_owned(), path: path.to_owned(), root, nar, requested, synced })
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

    fn check_nar(&self, name: &str, nar: &NarRecord) -> io::Result<bool> {
        self.has_nar(name, nar.file_size)
    }

    fn nar(&self, name: &str, nar: &NarRecord, _: Asker) -> io::Result<Option<NarBytes>> {
        Ok(self.open_nar(name, nar)?.map(NarBytes::File))
    }

    fn read(&self, name: &str) -> io::Result<Option<Box<dyn Read>>> {
        Ok(self.open(name)?.map(|(file, _)| Box::new(file) as Box<dyn Read>))
    }

    fn receive(&self, _: &str, _: u64) -> io::Result<Incoming> {
        incoming(&self.data).map(Incoming::File)
    }

    fn listing(&self) -> io::Result<Option<TemporaryFile>> {
        incoming(&self.data).map(Some)
    }

    fn has_nar(&self, name: &str, file_size: u64) -> io::Result<bool> {
        Ok(self.nar_len(name)? == Some(file_size))
    }

    fn redirect_url(&self, _: &str, _: &NarRecord, _: Redirect) -> Option<String> {
        None
    }

    fn open_nar(&self, name: &str, nar: &NarRecord) -> io::Result<Option<File>> {
        let opened = self.open(&format!("nar/{name}"))?;
        Ok(opened.filter(|(_, len)| *len == nar.file_size).map(|(file, _)| file))
    }

    fn store(&self, received: Incoming, name: &str, nar: &NarRecord, listing: Option<TemporaryFile>) -> io::Result<()> {
        // Only buckets have objects.
        let Incoming::File(file) = received else { return Err(ErrorKind::InvalidInput.into()) };
        if let Some(listing) = listing.filter(|_| nar.listing_size.is_some()) {
            self.keep_listing(name, listing)?;
        }
        persist(file, &self.nar_path(name))
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
        let requested = self.requested.fetch_add(1, Ordering::AcqRel) + 1;
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if *synced < requested {
            // All that have asked by now had their names before that.
            let covered = self.requested.load(Ordering::Acquire);
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
            _ if exists(&place, &record.narinfo) => return Ok(()),
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
fn exists(path: &Path, contents: &[u8]) -> bool {
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
