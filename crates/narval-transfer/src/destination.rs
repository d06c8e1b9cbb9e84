//! The store that is installed into, for queries: it need not exist yet.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use narval_nix::{StoreDir, StorePath};
use narval_store::{
    Access, Daemon, LocalRoots, LocalStore, LocalStoreError, Store, StoreConfig, StoreError, TemporaryRoots,
};
use parking_lot::Mutex;

use narval_cache::Wanted;

use crate::error::Error;

/// A local store. Kept and installed paths are not garbage-collected while this value lives.
pub struct Destination {
    config: StoreConfig,
    store: Store,
    roots: Arc<LocalRoots>,
    daemon_roots: Mutex<Option<TemporaryRoots>>,
}

impl Destination {
    /// The store of this configuration; nothing is created or opened yet.
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

    /// The store, for queries.
    pub const fn store(&self) -> &Store {
        &self.store
    }

    /// The logical store directory.
    pub fn store_dir(&self) -> &StoreDir {
        &self.config.store_dir
    }

    /// Waits until what is valid now is on disk: the files, and what the database says of them. SQLite's log does not last by itself in the
    /// way that Nix opens the database, so that a power failure could leave a profile that leads to a path the store does not know.
    pub fn make_last(&self) -> Result<(), Error> {
        for folder in [&self.config.real_store_dir, &self.config.state_dir.join("db")] {
            File::open(folder)
                .and_then(|opened| rustix::fs::syncfs(opened).map_err(io::Error::from))
                .map_err(|source| Error::File { action: "write out", path: folder.clone(), source })?;
        }
        Ok(())
    }

    /// The daemon to write through: if the configuration requires it, or allows it and a daemon runs. Otherwise the
    /// store is written directly, under Nix's locks.
    pub fn daemon(&self) -> Option<&Daemon> {
        let daemon = self.store.daemon()?;
        match self.config.access {
            Access::Daemon => Some(daemon),
            Access::Auto => daemon.hello().is_ok().then_some(daemon),
            Access::Database => None,
        }
    }

    /// Whether the store exists.
    pub fn exists(&self) -> bool {
        self.config.access == Access::Daemon || self.config.exists()
    }

    /// Protects paths, valid or not, from garbage collection while this destination lives. Check their validity
    /// afterwards.
    ///
    /// # Errors
    /// If the store, or its daemon, refuses.
    pub fn keep(&self, paths: &[StorePath]) -> Result<(), Error> {
        let Some(daemon) = self.daemon() else { return Ok(self.roots.keep(paths)?) };
        let mut roots = self.daemon_roots.lock();
        let kept = match &mut *roots {
            Some(roots) => roots.keep(paths),
            none => daemon.keep(paths).map(|kept| *none = Some(kept)),
        };
        Ok(kept.map_err(StoreError::from)?)
    }

    /// Finds a valid path in the store. It is protected from then on if this user may write to the store.
    ///
    /// # Errors
    /// If the store cannot be queried.
    pub fn find_and_keep(&self, wanted: &Wanted) -> Result<Option<StorePath>, Error> {
        let Some(path) = self.find(wanted)? else { return Ok(None) };
        match self.keep(std::slice::from_ref(&path)) {
            // Using existing paths requires no write access; a profile or a root cannot be created then either.
            Err(Error::LocalStore { error: LocalStoreError::Io { source, .. } })
                if matches!(source.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {}
            kept => kept?,
        }
        // It may have been collected just before it was protected.
        Ok(self.is_valid(&path)?.then_some(path))
    }

    /// Finds a valid path in the store.
    ///
    /// # Errors
    /// If the store cannot be queried.
    pub fn find(&self, wanted: &Wanted) -> Result<Option<StorePath>, Error> {
        if !self.exists() {
            return Ok(None);
        }
        match wanted {
            Wanted::Path(path) => Ok(self.is_valid(path)?.then(|| path.clone())),
            Wanted::HashPart(hash_part) => Ok(self.store.path_from_hash_part(hash_part)?),
        }
    }

    /// Whether a path is valid, and so its closure.
    ///
    /// # Errors
    /// If the store cannot be queried.
    pub fn is_valid(&self, path: &StorePath) -> Result<bool, Error> {
        Ok(self.exists() && self.store.is_valid(path)?)
    }

    /// Registers symlinks to store paths as roots: as long as they exist, the paths are not garbage.
    ///
    /// # Errors
    /// If the store, or its daemon, refuses.
    pub fn add_indirect_roots(&self, links: impl IntoIterator<Item = PathBuf>) -> Result<(), Error> {
        let mut links = links.into_iter().peekable();
        if let Some(daemon) = self.daemon() {
            for link in links {
                daemon.add_indirect_root(&link).map_err(StoreError::from)?;
            }
        } else if links.peek().is_some() {
            let store = self.open()?;
            for link in links {
                store.add_indirect_root(&link)?;
            }
        }
        Ok(())
    }

    /// Opens the store for writing, and creates it if it does not exist.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn open(&self) -> Result<LocalStore, LocalStoreError> {
        LocalStore::open_keeping(self.config.clone(), Arc::clone(&self.roots))
    }
}
