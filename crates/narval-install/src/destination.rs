//! The store that is installed into, as long as it is only asked: it need not exist yet.

use narval_nix::{StoreDir, StorePath};
use narval_store::{Access, Daemon, LocalStore, LocalStoreError, Store, StoreConfig};

use crate::{Error, Wanted};

/// A local store.
pub struct Destination {
    config: StoreConfig,
    store: Store,
}

impl Destination {
    /// A store by its configuration; nothing is made or opened yet.
    pub fn new(config: StoreConfig) -> Self {
        let store = Store::new(config.clone());
        Self { config, store }
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
        LocalStore::open(self.config.clone())
    }
}
