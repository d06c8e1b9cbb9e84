//! Writes a real Nix store on disk without Nix. `nix --store DIR` accepts it, and may use it at the same time.
//!
//! Layout, locks and schema: Nix `libstore/local-store.cc`, `pathlocks.cc`, `gc.cc`. A path is unpacked under a
//! temporary name beside its own, renamed once its hash is verified, and registered together with the rest of its
//! closure. Its lock is not held between renaming and registration, so that two processes with overlapping closures
//! cannot deadlock. Registration takes the lock again, checks that the path is unchanged, and holds the lock until the
//! transaction is committed. A killed process leaves temporary names and complete but invalid paths behind; the next
//! process finds both. Locked files, never process ids, show what belongs to a living process.

mod add;
mod collect;
mod disk_usage;
mod graph;
mod incoming;
mod locks;
mod process_roots;
mod register;
mod root_server;
mod roots;
mod schema;
mod temporary_roots;
mod writable;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use narval_nix::{NarHash, StoreDir, StorePath};
use parking_lot::Mutex;
use rusqlite::Connection;
use thiserror::Error;

pub use collect::{Garbage, GarbageCollector, GarbageOptions, disk_usage, find_garbage};
pub use incoming::{Incoming, Prepared};
pub use locks::{PathLock, lock_file};
pub use register::{LeftOut, Unregistered};
pub use roots::Root;
pub use temporary_roots::LocalRoots;

use self::incoming::Identity;
use self::schema::Use;
use crate::config::StoreConfig;
use crate::database::{self, Database};
use crate::error::StoreError;
use crate::nar::NarIoError;
use crate::unpack::UnpackError;

/// Why a store could not be written.
#[derive(Debug, Error)]
pub enum LocalStoreError {
    /// A file or directory cannot be used.
    #[error("cannot {action} '{}': {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// SQLite returned an error.
    #[error("Nix database '{}': {source}", path.display())]
    Database {
        /// The database.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The store's schema is not 10.
    #[error("the store '{}' has schema {found}; only 10 (Nix 2.0 and newer) can be written", path.display())]
    Schema {
        /// The file `schema`.
        path: PathBuf,
        /// Its contents.
        found: String,
    },
    /// The NAR is invalid, or cannot be written.
    #[error("cannot unpack '{path}': {source}")]
    Unpack {
        /// The store path.
        path: StorePath,
        /// Why.
        source: UnpackError,
    },
    /// The NAR has the wrong hash.
    #[error("the NAR of '{path}' has hash sha256:{}, but sha256:{} was expected", found.to_nix32(), expected.to_nix32())]
    Hash {
        /// The store path.
        path: StorePath,
        /// The expected hash.
        expected: Box<NarHash>,
        /// The actual hash.
        found: Box<NarHash>,
    },
    /// A path to be registered is not on disk.
    #[error("'{path}' cannot become valid: it is not in the store directory")]
    Missing {
        /// The store path.
        path: StorePath,
    },
    /// A path to be registered refers to one that is not valid.
    #[error("'{path}' cannot become valid: it refers to '{reference}', which is not valid")]
    Reference {
        /// The store path.
        path: StorePath,
        /// The reference.
        reference: StorePath,
    },
    /// Paths have cyclic references.
    #[error("'{path}' cannot become valid: it refers to itself through others")]
    Cycle {
        /// One of them.
        path: StorePath,
    },
    /// A derivation that cannot be read.
    #[error("'{path}' is not a derivation: {reason}")]
    Derivation {
        /// The store path.
        path: StorePath,
        /// Why.
        reason: String,
    },
    /// A path to be deleted is in use.
    #[error("'{path}' cannot be deleted: {reason}")]
    Alive {
        /// The store path.
        path: StorePath,
        /// What uses it.
        reason: String,
    },
    /// Another process replaced a path before it could be registered.
    #[error("'{path}' cannot become valid: another process has changed it")]
    Changed {
        /// The store path.
        path: StorePath,
    },
    /// A root cannot be followed, so it is unknown what it keeps.
    #[error(
        "cannot follow the root '{}' to '{}': {source}; run the same command as root or as its owner, or remove that link",
        link.display(),
        target.display()
    )]
    Root {
        /// The root's own link.
        link: PathBuf,
        /// Where it points.
        target: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is no store.
    #[error("there is no store at '{}'; check --store", path.display())]
    NoStore {
        /// Its store directory.
        path: PathBuf,
    },
    /// The store directory is mounted read-only.
    #[error(
        "the store directory '{}' is read-only ({reason}); use '--store daemon' if the Nix daemon runs, or mount it \
         writable",
        path.display()
    )]
    ReadOnly {
        /// The store directory.
        path: PathBuf,
        /// Why it cannot be made writable.
        reason: String,
    },
    /// The database has a write-ahead log although the settings exclude that.
    #[error(
        "the database '{}' has a write-ahead log, but Nix's setting 'use-sqlite-wal' is false; remove the setting, or \
         convert the database ('pragma journal_mode = delete' in sqlite3)",
        path.display()
    )]
    WriteAheadLog {
        /// The database.
        path: PathBuf,
    },
    /// Another process holds a lock, or the database, for too long.
    #[error("'{}' is still locked by another process after {waited_s} s", path.display())]
    Locked {
        /// The lock file, or the database.
        path: PathBuf,
        /// The time waited, in seconds.
        waited_s: u64,
    },
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A path in the store cannot be read.
    #[error(transparent)]
    Nar(#[from] NarIoError),
}

impl LocalStoreError {
    /// Whether a disk or a quota is full.
    pub fn is_disk_full(&self) -> bool {
        let source = match self {
            Self::Io { source, .. } => source,
            Self::Unpack { source: UnpackError::Io { source, .. }, .. } => source,
            Self::Database { source, .. } => return database::is_disk_full(source),
            Self::Store(StoreError::Database { source, .. }) => return database::is_disk_full(source),
            _ => return false,
        };
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }

    fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), source: source.into() }
    }
}

/// A store on disk that this process writes. Can be shared between threads.
///
/// ```no_run
/// use narval_store::{LocalStore, Prepared, StoreConfig};
/// # fn info() -> narval_nix::PathInfo { unimplemented!() }
/// # fn nar() -> Vec<u8> { Vec::new() }
/// let store = LocalStore::open(StoreConfig::for_root("/srv/root".as_ref())?)?;
/// let info = info();
/// if let Prepared::Missing(mut incoming) = store.prepare(&info)? {
///     incoming.write(&nar())?;
///     incoming.commit()?;
/// }
/// store.register(&[info])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct LocalStore {
    config: StoreConfig,
    /// The directory that contains the store paths, on a mount that is writable. What is written there is written
    /// relative to this handle.
    directory: Arc<File>,
    reader: Database,
    writer: Mutex<Connection>,
    roots: Arc<LocalRoots>,
    /// Paths that were unpacked or found complete, and are not valid yet.
    complete: Mutex<BTreeMap<StorePath, (Identity, NarHash)>>,
    #[expect(dead_code, reason = "held as long as the store is open")]
    schema_lock: File,
}

impl LocalStore {
    /// Opens a store, creating it if it does not exist. Added paths are protected from garbage collection until this
    /// value is dropped.
    ///
    /// # Errors
    /// [`LocalStoreError`] if it cannot be written, or has another schema.
    pub fn open(config: StoreConfig) -> Result<Self, LocalStoreError> {
        let roots = Arc::new(LocalRoots::new(&config));
        Self::open_keeping(config, roots)
    }

    /// Like [`LocalStore::open`]; added paths are protected as long as `roots` lives.
    ///
    /// # Errors
    /// As [`LocalStore::open`].
    pub fn open_keeping(config: StoreConfig, roots: Arc<LocalRoots>) -> Result<Self, LocalStoreError> {
        let directory = writable::open_store_directory(&config)?;
        let store = Self::open_in(config, directory, roots, Use::Adding)?;
        schema::make_reserve(&store.config);
        Ok(store)
    }

    /// Opens the store with this store directory.
    fn open_in(
        config: StoreConfig,
        directory: File,
        roots: Arc<LocalRoots>,
        use_: Use,
    ) -> Result<Self, LocalStoreError> {
        schema::make_directories(&config, &directory)?;
        let schema_lock = locks::lock_schema(&config)?;
        let writer = Mutex::new(schema::open_database(&config, use_)?);
        let reader = Database::new(&config.database(), config.store_dir.clone());
        let directory = Arc::new(directory);
        Ok(Self { config, directory, reader, writer, roots, complete: Mutex::default(), schema_lock })
    }

    /// Protects a path, valid or not, from garbage collection. Check its validity afterwards.
    ///
    /// # Errors
    /// The temporary root cannot be written.
    pub fn keep(&self, path: &StorePath) -> Result<(), LocalStoreError> {
        self.roots.keep([path])
    }

    /// The configuration that it was opened with.
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// The logical store directory.
    pub fn store_dir(&self) -> &StoreDir {
        &self.config.store_dir
    }

    /// The store's metadata.
    pub fn database(&self) -> &Database {
        &self.reader
    }

    /// The location of a store path's files.
    pub fn real_path(&self, path: &StorePath) -> PathBuf {
        self.config.real_store_dir.join(path.base_name())
    }

    /// The free space for this user on the store's file system, in bytes.
    ///
    /// # Errors
    /// The file system does not report it.
    pub fn free_bytes(&self) -> Result<u64, LocalStoreError> {
        let found = rustix::fs::fstatvfs(&self.directory)
            .map_err(|error| LocalStoreError::io("read", &self.config.real_store_dir, error))?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    /// Waits until everything written to the store's file system is on disk.
    ///
    /// # Errors
    /// Writing failed.
    pub fn sync(&self) -> Result<(), LocalStoreError> {
        rustix::fs::syncfs(&self.directory)
            .map_err(|error| LocalStoreError::io("write out", &self.config.real_store_dir, error))
    }

    fn database_error(&self, source: rusqlite::Error) -> LocalStoreError {
        schema::database_error(&self.config, source)
    }

    fn full(&self, path: &StorePath) -> String {
        self.config.store_dir.display(path).to_string()
    }
}
