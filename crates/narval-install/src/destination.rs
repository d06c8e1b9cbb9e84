//! The store that is installed into, as long as it is only asked: it need not exist yet.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use narval_nix::{StoreDir, StorePath};
use narval_store::{
    Access, Daemon, LocalRoots, LocalStore, LocalStoreError, Store, StoreConfig, StoreError, TemporaryRoots,
};

use crate::{Error, Wanted};

/// A local store. Paths that it was asked to keep, and paths installed into it, are not garbage-collected while this value
/// lives.
pub struct Destination {
    config: StoreConfig,
    store: Store,
    roots: Arc<LocalRoots>,
    daemon_roots: Mutex<Option<TemporaryRoots>>,
}

impl Destination {
    /// A store by its configuration; nothing is made or opened yet.
    pub fn new(config: StoreConfig) -> Self {
        let (store, roots) = (Store::new(config.clone()), Arc::new(LocalRoots::new(&config)));
        Self { config, store, roots, daemon_roots: Mutex::new(None) }
    }

    /// Its configuration.
    pub const fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// Its name in messages: its store directory on disk.
    pub fn name(&self) -> String {
        self.config.real_store_dir.display().to_string()
    }

    /// The store, to be asked.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// The logical store directory.
    pub fn store_dir(&self) -> &StoreDir {
        &self.config.store_dir
    }

    /// The daemon to write through: if the configuration demands it, or leaves it open and a daemon runs. Otherwise the
    /// store is written directly, under Nix's locks.
    pub fn daemon(&self) -> Option<&Daemon> {
        let daemon = self.store.daemon()?;
        match self.config.access {
            Access::Daemon => Some(daemon),
            Access::Auto => daemon.hello().is_ok().then_some(daemon),
            Access::Database => None,
        }
    }

    /// Whether there is a store at all yet.
    pub fn exists(&self) -> bool {
        // Written last: whoever makes a store at this moment has its database, and not yet the tables in it.
        self.config.access == Access::Daemon || self.config.database().with_file_name("schema").exists()
    }

    /// Protects paths, valid or not, from garbage collection while this destination lives. Validity that is asked for
    /// afterwards holds.
    ///
    /// # Errors
    /// If the store, or its daemon, refuses.
    pub fn keep(&self, paths: &[StorePath]) -> Result<(), Error> {
        let Some(daemon) = self.daemon() else { return Ok(self.roots.keep(paths)?) };
        let mut roots = self.daemon_roots.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = match &mut *roots {
            Some(roots) => roots.keep(paths),
            none => daemon.keep(paths).map(|kept| *none = Some(kept)),
        };
        Ok(kept.map_err(StoreError::from)?)
    }

    /// The valid path that is meant, if the store has it. It is protected from then on if this user may write to the store.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub fn find_and_keep(&self, wanted: &Wanted) -> Result<Option<StorePath>, Error> {
        let Some(path) = self.find(wanted)? else { return Ok(None) };
        match self.keep(std::slice::from_ref(&path)) {
            // To use what is there takes no right to write; a profile or a root then can't be made either.
            Err(Error::LocalStore { error: LocalStoreError::Io { source, .. } })
                if matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {}
            kept => kept?,
        }
        // It may have been collected just before it was kept.
        Ok(self.is_valid(&path)?.then_some(path))
    }

    /// The valid path meant, if the store has it.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub fn find(&self, wanted: &Wanted) -> Result<Option<StorePath>, Error> {
        if !self.exists() {
            return Ok(None);
        }
        match wanted {
            Wanted::Path(path) => Ok(self.is_valid(path)?.then(|| path.clone())),
            Wanted::HashPart(hash_part) => Ok(self.store.path_from_hash_part(hash_part)?),
        }
    }

    /// Whether a path is valid, and so everything that it refers to.
    ///
    /// # Errors
    /// If the store cannot be asked.
    pub fn is_valid(&self, path: &StorePath) -> Result<bool, Error> {
        Ok(self.exists() && self.store.is_valid(path)?)
    }

    /// Opens the store for writing, and creates it if it does not exist.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn open(&self) -> Result<LocalStore, LocalStoreError> {
        LocalStore::open_keeping(self.config.clone(), Arc::clone(&self.roots))
    }
}
