//! Files of a data folder: where they are, and how they come to be there.
//!
//! ```text
//! blobs/<xx>/<NarHash>.nar.<compression>   a NAR's file, one for all caches
//! blobs/<xx>/<NarHash>.ls                  its listing
//! caches/<name>/nar/<FileHash>.nar[.ext]   hard links to the former
//! caches/<name>/<hash part>.ls             hard links to the latter
//! incoming/                                what is being written
//! ```

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use narval_nix::{Compression, NarHash};
use narval_store::{TemporaryFile, open_beneath, temporary_name};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// What names of files that are being written begin with.
pub(crate) const TEMPORARY: &str = ".tmp-";

/// Folders in each cache: those of the standard layout.
const CACHE_FOLDERS: [&str; 5] = ["nar", "log", "realisations", "build-trace-v2", "debuginfo"];

/// The data folder's files.
pub(crate) struct Storage {
    path: PathBuf,
}

/// Held while files come to be, or, exclusively, while they are removed, in whichever process. Ends when dropped.
pub(crate) struct StorageLock {
    _file: File,
}

impl Storage {
    /// Makes the folders that are missing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        for folder in ["blobs", "caches", "incoming"] {
            fs::create_dir_all(path.join(folder))?;
        }
        Ok(Self { path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for processes that remove files, and keeps others from starting.
    pub(crate) fn lock_shared(&self) -> io::Result<StorageLock> {
        self.lock(FlockOperation::LockShared)
    }

    /// Waits for processes that add files, and keeps others from starting.
    pub(crate) fn lock_exclusive(&self) -> io::Result<StorageLock> {
        self.lock(FlockOperation::LockExclusive)
    }

    fn lock(&self, operation: FlockOperation) -> io::Result<StorageLock> {
        // A lock belongs to an open file: threads are to each other as processes are.
        let file = open_lock(&self.path.join("storage.lock"))?;
        retry(|| rustix::fs::flock(&file, operation))?;
        Ok(StorageLock { _file: file })
    }

    /// A file that is being written.
    pub(crate) fn incoming(&self) -> io::Result<TemporaryFile> {
        TemporaryFile::create(&self.path.join("incoming"), TEMPORARY, 0o644)
    }

    pub(crate) fn blob(&self, nar_hash: &NarHash, compression: Compression) -> PathBuf {
        let name = nar_hash.to_nix32();
        let extension = match compression {
            Compression::None => "",
            // Nix has no extension for some; there may be two of one NAR.
            _ if compression.file_extension().is_empty() => &format!(".{compression}"),
            _ => compression.file_extension(),
        };
        self.blob_folder(&name).join(format!("{name}.nar{extension}"))
    }

    pub(crate) fn blob_listing(&self, nar_hash: &NarHash) -> PathBuf {
        let name = nar_hash.to_nix32();
        self.blob_folder(&name).join(format!("{name}.ls"))
    }

    fn blob_folder(&self, name: &str) -> PathBuf {
        self.path.join("blobs").join(name.get(..2).unwrap_or_default())
    }
}

/// A cache's folder.
pub(crate) struct CacheDirectory {
    path: PathBuf,
    root: File,
    nar: File,
    /// Names that were added below `nar/` so far (one for those of before), and how many of them are durable.
    added: AtomicU64,
    durable: Mutex<u64>,
}

impl CacheDirectory {
    /// Makes the folders that are missing.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        for folder in CACHE_FOLDERS {
            fs::create_dir_all(path.join(folder))?;
        }
        let (root, nar) = (File::open(path)?, File::open(path.join("nar"))?);
        Ok(Self { path: path.to_owned(), root, nar, added: AtomicU64::new(1), durable: Mutex::new(0) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a regular file below the folder and nowhere else, not through a symlink either.
    pub(crate) fn open_file(&self, name: &str) -> io::Result<Option<File>> {
        let name = CString::new(name)?;
        match open_beneath(self.root.as_fd(), &name) {
            Ok(file) => {
                let file = File::from(file);
                Ok(file.metadata()?.is_file().then_some(file))
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Bytes in a NAR's file; `None` if there is none.
    pub(crate) fn nar_len(&self, name: &str) -> io::Result<Option<u64>> {
        match rustix::fs::statat(&self.nar, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(u64::try_from(stat.st_size).unwrap_or(0))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives a stored NAR a name below `nar/`.
    pub(crate) fn link_nar(&self, blob: &Path, name: &str) -> io::Result<()> {
        link(blob, &self.path.join("nar").join(name))?;
        self.added.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Makes the names below `nar/` durable that were added so far. Commits at the same time share one call.
    pub(crate) fn sync_nars(&self) -> io::Result<()> {
        let wanted = self.added.load(Ordering::Acquire);
        let mut durable = self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        if *durable < wanted {
            let added = self.added.load(Ordering::Acquire);
            self.nar.sync_all()?;
            *durable = added;
        }
        Ok(())
    }

    /// Removes a file, which may be gone.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.root, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Writes a file under a temporary name: it appears whole when it is given its own by `persist`.
pub(crate) fn write_new(storage: &Storage, contents: &[u8]) -> io::Result<TemporaryFile> {
    let file = storage.incoming()?;
    file.file().write_all(contents)?;
    Ok(file)
}

/// Makes `to` another name of the file at `from`, in place of what may have it.
pub(crate) fn link(from: &Path, to: &Path) -> io::Result<()> {
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

/// Gives a written file its name; makes the folder when it is missing.
pub(crate) fn persist(file: TemporaryFile, to: &Path) -> io::Result<()> {
    if let Some(folder) = to.parent()
        && !folder.exists()
    {
        fs::create_dir_all(folder)?;
    }
    file.persist(to)
}

/// Bytes in a file; `None` if there is none.
pub(crate) fn file_len(path: &Path) -> io::Result<Option<u64>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata.len())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a file, which may be gone.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn open_lock(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?.into())
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
