//! Reads a store: from the database, from the daemon if the database cannot be read, or from only one of them.

use std::path::PathBuf;

use narval_nix::{ClosureWalk, HashPart, PathInfo, StoreDir, StorePath};

use crate::config::{Access, StoreConfig};
use crate::daemon::{Daemon, DaemonError};
use crate::database::{Database, Stamp};
use crate::error::StoreError;
use crate::logs::BuildLog;
use crate::realisation::Realisation;

/// A read-only Nix store. Can be shared between threads.
///
/// ```no_run
/// use narval_store::{Environment, Store, StoreConfig};
/// let store = Store::new(StoreConfig::from_environment(&Environment::of_process())?);
/// for path in store.all_valid_paths()? {
///     println!("{}", store.store_dir().display(&path));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Store {
    config: StoreConfig,
    database: Option<Database>,
    daemon: Option<Daemon>,
}

/// The number of paths that [`Store::check`] looks for: some may have been deleted by hand or by a running collection.
const CHECKED_PATHS: u32 = 16;

impl Store {
    /// The store of this configuration. Nothing is opened before the first query.
    pub fn new(config: StoreConfig) -> Self {
        let database = || Database::new(&config.database(), config.store_dir.clone());
        let daemon = || Daemon::new(&config.daemon_socket, config.store_dir.clone());
        let (database, daemon) = match config.access {
            Access::Auto => (Some(database()), Some(daemon())),
            Access::Database => (Some(database()), None),
            Access::Daemon => (None, Some(daemon())),
        };
        Self { config, database, daemon }
    }

    /// Its configuration.
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// The logical store directory.
    pub fn store_dir(&self) -> &StoreDir {
        &self.config.store_dir
    }

    /// The location of a store path's files.
    pub fn real_path(&self, path: &StorePath) -> PathBuf {
        self.config.real_store_dir.join(path.base_name())
    }

    /// The current state of the store's metadata. Take it *before* a query; the answer holds while the stamp stays the
    /// same. Returns `None` if the state is unknown (a daemon, a database that is being written): then no remembered answer
    /// may be used.
    #[inline(always)]
    pub fn stamp(&self) -> Option<Stamp> {
        self.database.as_ref()?.stamp()
    }

    /// The database, if it is used at all.
    pub fn database(&self) -> Option<&Database> {
        self.database.as_ref()
    }

    /// The daemon, if it is used at all.
    pub fn daemon(&self) -> Option<&Daemon> {
        self.daemon.as_ref()
    }

    /// Returns the valid path with this hash part.
    ///
    /// # Errors
    /// [`StoreError`] if the store cannot be read. An absent path is not an error.
    pub fn path_from_hash_part(&self, hash_part: &HashPart) -> Result<Option<StorePath>, StoreError> {
        self.ask(|database| database.path_from_hash_part(hash_part), |daemon| daemon.path_from_hash_part(hash_part))
    }

    /// Returns the metadata of the valid path with this hash part.
    ///
    /// # Errors
    /// See [`Store::path_from_hash_part`].
    pub fn path_info_by_hash_part(&self, hash_part: &HashPart) -> Result<Option<PathInfo>, StoreError> {
        self.ask(
            |database| database.path_info_by_hash_part(hash_part),
            |daemon| match daemon.path_from_hash_part(hash_part)? {
                Some(path) => daemon.path_info(&path),
                None => Ok(None),
            },
        )
    }

    /// Returns the metadata of a valid path.
    ///
    /// # Errors
    /// See [`Store::path_from_hash_part`].
    pub fn path_info(&self, path: &StorePath) -> Result<Option<PathInfo>, StoreError> {
        self.ask(|database| database.path_info(path), |daemon| daemon.path_info(path))
    }

    /// Returns the metadata of several paths, in order.
    ///
    /// # Errors
    /// See [`Store::path_from_hash_part`].
    pub fn path_infos(&self, paths: &[StorePath]) -> Result<Vec<Option<PathInfo>>, StoreError> {
        self.ask(
            |database| database.path_infos(paths),
            |daemon| paths.iter().map(|path| daemon.path_info(path)).collect(),
        )
    }

    /// Returns the closure of these paths, each path once: the metadata of the valid ones, and those that are not
    /// valid. In a consistent store, only the given paths can be invalid.
    ///
    /// # Errors
    /// See [`Store::path_from_hash_part`].
    pub fn closure(
        &self,
        roots: impl IntoIterator<Item = StorePath>,
    ) -> Result<(Vec<PathInfo>, Vec<StorePath>), StoreError> {
        let (mut walk, mut valid, mut invalid) = (ClosureWalk::new(roots), Vec::new(), Vec::new());
        while let Some(path) = walk.next() {
            let Some(info) = self.path_info(&path)? else {
                invalid.push(path);
                continue;
            };
            walk.add(info.references.iter().cloned());
            valid.push(info);
        }
        Ok((valid, invalid))
    }

    /// Checks that the store is usable: it answers a query, its folder can be opened, and at least one of the paths
    /// registered last exists. This detects a folder that is empty because nothing is mounted there.
    ///
    /// # Errors
    /// [`StoreError`] with what is not usable.
    pub fn check(&self) -> Result<(), StoreError> {
        let newest = self.ask(
            |database| database.newest_paths(CHECKED_PATHS),
            |daemon| {
                daemon.path_from_hash_part(&HashPart::from_digest(&[0; 20])).map(|path| path.into_iter().collect())
            },
        )?;
        let folder = &self.config.real_store_dir;
        std::fs::read_dir(folder).map_err(|error| StoreError::io("open", folder, error))?;
        let mut missing = None;
        for path in newest {
            let real = self.real_path(&path);
            match std::fs::symlink_metadata(&real) {
                Ok(_) => return Ok(()),
                Err(error) => missing = Some(StoreError::io("find", &real, error)),
            }
        }
        missing.map_or(Ok(()), Err)
    }

    /// Whether a path is valid.
    ///
    /// # Errors
    /// See [`Store::path_from_hash_part`].
    pub fn is_valid(&self, path: &StorePath) -> Result<bool, StoreError> {
        self.ask(|database| database.is_valid(path), |daemon| daemon.is_valid(path))
    }

    /// Returns all valid paths, in no particular order.
    ///
    /// # Errors
    /// See [`Store::path_from_hash_part`].
    pub fn all_valid_paths(&self) -> Result<Vec<StorePath>, StoreError> {
        self.ask(Database::all_valid_paths, Daemon::all_valid_paths)
    }

    /// Returns the references of a valid path, sorted; empty for a path that is not valid.
    ///
    /// # Errors
    /// See [`Store::path_from_hash_part`].
    pub fn references(&self, path: &StorePath) -> Result<Vec<StorePath>, StoreError> {
        self.ask(
            |database| database.references(path),
            |daemon| Ok(daemon.path_info(path)?.map(|info| info.references.into_iter().collect()).unwrap_or_default()),
        )
    }

    /// Returns the valid paths that refer to a path.
    ///
    /// # Errors
    /// See [`Store::path_from_hash_part`].
    pub fn referrers(&self, path: &StorePath) -> Result<Vec<StorePath>, StoreError> {
        self.ask(|database| database.referrers(path), |daemon| daemon.referrers(path))
    }

    /// Returns the realisation of a derivation's output; `None` if only the daemon is used.
    ///
    /// # Errors
    /// See [`Store::path_from_hash_part`].
    pub fn realisation(&self, derivation: &StorePath, output: &str) -> Result<Option<Realisation>, StoreError> {
        self.ask(|database| database.realisation(derivation, output), |_| Ok(None))
    }

    /// Like [`Store::realisation`], by the derivation's hash, `sha256:<hex>` (Nix ≤ 2.34).
    ///
    /// # Errors
    /// See [`Store::path_from_hash_part`].
    pub fn realisation_by_hash(&self, derivation_hash: &str, output: &str) -> Result<Option<Realisation>, StoreError> {
        self.ask(|database| database.realisation_by_hash(derivation_hash, output), |_| Ok(None))
    }

    /// Returns the build log of a derivation.
    ///
    /// # Errors
    /// [`StoreError::Io`] if it exists but cannot be opened.
    pub fn build_log(&self, derivation: &StorePath) -> Result<Option<BuildLog>, StoreError> {
        BuildLog::find(&self.config.log_dir, derivation)
    }

    fn ask<T>(
        &self,
        database: impl FnOnce(&Database) -> Result<T, StoreError>,
        daemon: impl FnOnce(&Daemon) -> Result<T, DaemonError>,
    ) -> Result<T, StoreError> {
        let unavailable = match &self.database {
            None => None,
            Some(by) => match database(by) {
                Err(error @ StoreError::DatabaseUnavailable { .. }) => Some(error),
                answer => return answer,
            },
        };
        match (&self.daemon, unavailable) {
            (None, Some(error)) => Err(error),
            (Some(by), None) => Ok(daemon(by)?),
            (Some(by), Some(error)) => daemon(by).map_err(|daemon| match daemon {
                DaemonError::Connect { .. } => {
                    StoreError::NoWay { database: Box::new(error), daemon: Box::new(daemon) }
                }
                daemon => daemon.into(),
            }),
            // `new` sets at least one.
            (None, None) => Err(StoreError::DatabaseUnavailable {
                path: self.config.database(),
                reason: "neither the database nor the daemon is configured".into(),
            }),
        }
    }
}
