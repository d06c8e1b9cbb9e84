//! The store that is installed into, as long as it is only asked: it need not exist yet.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use narval_nix::{StoreDir, StorePath};
use narval_store::{
    Access, Daemon, LocalRoots, LocalStore, LocalStoreError, Store, StoreConfig, StoreError, TemporaryRoots,
};

use crate::{Error, Wanted};

/// A local store. What it was asked to keep, and what was installed into it, is not collected as garbage as long as this lives.
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

    /// How it is named in messages: by its store directory on the disk.
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

    /// The daemon that this store is to be written through: always where that is asked for, and where nothing is asked
    /// for if it runs. Otherwise the store is written directly, with Nix's own locks.
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

    /// Keeps paths, valid or not, from garbage collections as long as this destination lives. What is asked afterwards holds.
    ///
    /// # Errors
    /// When the store, or its daemon, refuses.
    pub fn keep(&self, paths: &[StorePath]) -> Result<(), Error> {
        let Some(daemon) = self.daemon() else { return Ok(self.roots.keep(paths)?) };
        let mut roots = self.daemon_roots.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = match &mut *roots {
            Some(roots) => roots.keep(paths),
            none => daemon.keep(paths).map(|kept| *none = Some(kept)),
        };
        Ok(kept.map_err(StoreError::from)?)
    }

    /// The valid path meant, if the store has it; kept from then on, where this user may write to the store.
    ///
    /// # Errors
    /// When the store can't be asked.
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
    /// When the store can't be asked.
    pub fn find(&self, wanted: &Wanted) -> Result<Option<StorePath>, Error> {
        if !self.exists() {
            return Ok(None);
        }
        match wanted {
            Wanted::Path(path) => Ok(self.is_valid(path)?.then(|| path.clone())),
            Wanted::HashPart(hash_part) => Ok(self.store.path_from_hash_part(hash_part)?),
        }
    }

    /// Whether the store has a path, and with it all that it refers to.
    ///
    /// # Errors
    /// When the store can't be asked.
    pub fn is_valid(&self, path: &StorePath) -> Result<bool, Error> {
        Ok(self.exists() && self.store.is_valid(path)?)
    }

    /// Opens it to be written to directly; makes it if there is none.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn open(&self) -> Result<LocalStore, LocalStoreError> {
        LocalStore::open_keeping(self.config.clone(), Arc::clone(&self.roots))
    }
}
