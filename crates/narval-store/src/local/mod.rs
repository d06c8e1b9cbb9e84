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
mod error;
mod graph;
mod identity;
mod incoming;
mod locks;
mod path_locks;
mod register;
mod roots;
mod schema;
mod writable;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use narval_nix::{NarHash, StoreDir, StorePath};
use parking_lot::Mutex;
use rusqlite::Connection;

pub use add::describe;
pub use collect::{Garbage, GarbageCollector, disk_usage, find_garbage};
pub use error::LocalStoreError;
pub use graph::GarbageOptions;
pub use incoming::{Incoming, Prepared};
pub use locks::lock_file;
pub use path_locks::PathLock;
pub use register::{LeftOut, Unregistered};
pub use roots::root::Root;
pub use roots::temporary_roots::LocalRoots;

use self::identity::Identity;
use self::schema::Use;
use crate::config::StoreConfig;
use crate::database::Database;

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
