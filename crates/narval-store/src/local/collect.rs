//! Garbage collection. Unreachable paths are deleted one by one, each after those that refer to it: under its lock, and
//! after its row.

use std::collections::{BTreeSet, HashSet};
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use narval_files::Work;
use narval_nix::StorePath;
use rusqlite::{OptionalExtension, Transaction, TransactionBehavior, params};
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::disk_usage::DiskUsage;
use super::graph::{GarbageOptions, Graph, Node, hash_parts_of};
use super::roots::root::Root;
use super::roots::root_finder::RootFinder;
use super::roots::root_server::{self, RootServer};
use super::schema::{self, LINKS};
use super::{LocalRoots, LocalStore, LocalStoreError, locks, writable};
use crate::config::StoreConfig;
use crate::database::Database;
use crate::remove::list;

/// The result of a collection.
#[derive(Debug, Default)]
pub struct Garbage {
    /// Paths that were deleted.
    pub paths: Vec<StorePath>,
    /// Names in the store directory that were deleted and were never valid, or are leftovers.
    pub leftovers: Vec<String>,
    /// Bytes on disk that were freed.
    pub bytes_freed: u64,
    /// The number of paths that remain valid.
    pub kept: usize,
    /// What could not be removed, completely or in part. None of it is valid any more.
    pub not_removed: Vec<LocalStoreError>,
    /// Whether it was stopped before its end.
    pub is_stopped: bool,
}

/// Returns what a collection would delete now. Nothing is changed, locked or created.
///
/// # Errors
/// [`LocalStoreError::NoStore`]; [`LocalStoreError::Alive`] for a path of [`GarbageOptions::only`] that is still in use;
/// or the store or its roots cannot be read.
pub fn find_garbage(config: &StoreConfig, options: &GarbageOptions, work: &Work) -> Result<Garbage, LocalStoreError> {
    if !config.exists() {
        return Err(LocalStoreError::NoStore { path: config.real_store_dir.clone() });
    }
    let directory = File::open(&config.real_store_dir)
        .map_err(|error| LocalStoreError::io("open", &config.real_store_dir, error))?;
    let roots = RootFinder { config, is_collecting: false }.find()?.roots;
    let database = Database::undisturbed(&config.database(), config.store_dir.clone());
    let graph = database.read(|connection| Graph::read(&config.store_dir, connection))?;
    let plan = Plan::make(config, directory.as_fd(), graph, roots, options)?;
    let names = plan.dead.iter().map(StorePath::base_name).chain(plan.leftovers.iter().map(String::as_str));
    let count = plan.dead.len() + plan.leftovers.len();
    work.begin("measuring", "paths", count as u64, 0);
    let names = names.take_while(|_| !work.is_stopped()).inspect(|_| work.count(1));
    let bytes_freed = disk_usage_of(config, directory.as_fd(), names)?;
    work.check().map_err(|error| LocalStoreError::io("measure", &config.real_store_dir, error))?;
    let kept = plan.graph.paths.len() - plan.dead.len();
    Ok(Garbage { paths: plan.dead, leftovers: plan.leftovers, bytes_freed, kept, ..Garbage::default() })
}

/// The bytes on disk that deleting these names from the store directory would free.
///
/// # Errors
/// The store directory cannot be read.
pub fn disk_usage<'a>(config: &StoreConfig, names: impl Iterator<Item = &'a str>) -> Result<u64, LocalStoreError> {
    let directory = File::open(&config.real_store_dir)
        .map_err(|error| LocalStoreError::io("open", &config.real_store_dir, error))?;
    disk_usage_of(config, directory.as_fd(), names)
}

fn disk_usage_of<'a>(
    config: &StoreConfig,
    directory: BorrowedFd<'_>,
    names: impl Iterator<Item = &'a str>,
) -> Result<u64, LocalStoreError> {
    let mut usage = DiskUsage::default();
    for name in names {
        // A name in a directory has no NUL.
        usage.add(directory, &CString::new(name).unwrap_or_default());
    }
    if let Some(links) = links(config, directory)? {
        usage.add_unused(links.as_fd()).map_err(|error| LocalStoreError::io("list", &config.links(), error))?;
    }
    Ok(usage.bytes())
}

/// A store that is locked for garbage collection.
#[derive(Debug)]
pub struct GarbageCollector {
    store: LocalStore,
    /// Receives the roots of processes that add paths meanwhile.
    server: RootServer,
    /// Released last.
    _lock: File,
}

impl GarbageCollector {
    /// Opens a store for a collection, after waiting for other collections to end. Paths that other processes add or use
    /// meanwhile are spared, whether the process is Narval or any version of Nix.
    ///
    /// # Errors
    /// See [`LocalStore::open`].
    pub fn open(config: StoreConfig) -> Result<Self, LocalStoreError> {
        let directory = writable::open_store_directory(&config)?;
        schema::give_up_reserve(&config)?;
        root_server::prepare(&config)?;
        let lock = locks::lock_collector(&config)?;
        let server = RootServer::start(&config)?;
        let roots = Arc::new(LocalRoots::new(&config));
        let store = LocalStore::open_in(config, directory, roots, schema::Use::Collecting)?;
        Ok(Self { store, server, _lock: lock })
    }

    /// The store.
    pub fn store(&self) -> &LocalStore {
        &self.store
    }

    /// Deletes unreachable paths. If it is killed, the store stays valid, and the next collection deletes the leftover
    /// files; if `work` is stopped, that is after the current path. Files that cannot be removed are in [`Garbage::not_removed`]; the rest is deleted nevertheless.
    ///
    /// # Errors
    /// [`LocalStoreError::Alive`] for a path of [`GarbageOptions::only`] that is still in use. If roots cannot be read,
    /// nothing is deleted.
    pub fn collect(&self, options: &GarbageOptions, work: &Work) -> Result<Garbage, LocalStoreError> {
        let store = &self.store;
        let found = RootFinder { config: &store.config, is_collecting: true }.find()?;
        let graph = Graph::read(&store.config.store_dir, &store.writer.lock());
        let graph = graph.map_err(|error| store.database_error(error))?;
        let plan = Plan::make(&store.config, store.directory.as_fd(), graph, found.roots, options)?;
        let mut garbage = Garbage::default();
        work.begin("removing", "paths", (plan.dead.len() + plan.leftovers.len()) as u64, 0);
        let mut condemned: HashSet<i64> =
            plan.dead.iter().filter_map(|path| plan.graph.paths.get(path)).map(|node| node.id).collect();
        for path in plan.graph.referrers_first(&plan.dead) {
            let Some(node) = plan.graph.paths.get(path).filter(|node| condemned.contains(&node.id)) else { continue };
            if work.is_stopped() {
                condemned.remove(&node.id);
                continue;
            }
            work.count(1);
            if !self.delete(path, Some(node), &condemned, &mut garbage)? {
                // It is in use by now, and so is its closure.
                for path in plan.graph.reach(&BTreeSet::from([path.clone()]), options) {
                    plan.graph.paths.get(&path).map(|node| condemned.remove(&node.id));
                }
            }
        }
        for name in &plan.leftovers {
            if work.is_stopped() {
                break;
            }
            work.count(1);
            match StorePath::parse(name) {
                Ok(path) => drop(self.delete(&path, None, &condemned, &mut garbage)?),
                Err(_) => {
                    garbage.removed(store.remove(OsStr::new(name)), |garbage| garbage.leftovers.push(name.clone()))
                }
            }
        }
        garbage.is_stopped = work.is_stopped();
        if !garbage.is_stopped {
            garbage.removed(store.remove_deep_leftovers(), |_| {});
            store.remove_unused_links(&mut garbage)?;
        }
        garbage.kept = plan.graph.paths.len() - condemned.len();
        garbage.paths.sort();
        drop(found.held);
        schema::make_reserve(&store.config);
        Ok(garbage)
    }

    /// Deletes a path that nothing needs, valid or not. Returns `false` if it is in use by now.
    fn delete(
        &self,
        path: &StorePath,
        node: Option<&Node>,
        condemned: &HashSet<i64>,
        garbage: &mut Garbage,
    ) -> Result<bool, LocalStoreError> {
        let store = &self.store;
        let lock = match store.try_lock(path) {
            Ok(Some(lock)) => lock,
            Ok(None) => return Ok(false),
            Err(error) => {
                garbage.not_removed.push(error);
                return Ok(false);
            }
        };
        let Some(deleting) = self.server.delete(path.hash_part()) else { return Ok(false) };
        if !store.invalidate(path, node, condemned)? {
            return Ok(false);
        }
        garbage.removed(store.remove(OsStr::new(path.base_name())), |garbage| match node {
            Some(_) => garbage.paths.push(path.clone()),
            None => garbage.leftovers.push(path.base_name().to_owned()),
        });
        drop((deleting, lock));
        Ok(true)
    }
}

impl Garbage {
    /// Counts what a removal has freed, and calls `done` if it is complete.
    fn removed(&mut self, removed: Result<u64, (u64, LocalStoreError)>, done: impl FnOnce(&mut Self)) {
        match removed {
            Ok(freed) => {
                self.bytes_freed += freed;
                done(self);
            }
            Err((freed, error)) => {
                self.bytes_freed += freed;
                self.not_removed.push(error);
            }
        }
    }
}

/// What is to be deleted.
struct Plan {
    graph: Graph,
    /// Valid paths, sorted.
    dead: Vec<StorePath>,
    /// Names that are not valid.
    leftovers: Vec<String>,
}

impl Plan {
    fn make(
        config: &StoreConfig,
        directory: BorrowedFd<'_>,
        graph: Graph,
        roots: Vec<Root>,
        options: &GarbageOptions,
    ) -> Result<Self, LocalStoreError> {
        let is_removed = |root: &Root| options.removed_folders.iter().any(|folder| root.source.starts_with(folder));
        let mut start: BTreeSet<StorePath> =
            roots.into_iter().filter(|root| !is_removed(root)).map(|root| root.path).collect();
        start.extend(options.keep.iter().cloned());
        let alive = graph.reach(&start, options);
        let dead = match &options.only {
            None => graph.paths.keys().filter(|path| !alive.contains(*path)).cloned().collect(),
            Some(only) => {
                for path in only {
                    let by = if alive.contains(path) {
                        Some("a root reaches it".to_owned())
                    } else {
                        graph.referrer(path, only)
                    };
                    if let Some(reason) = by {
                        return Err(LocalStoreError::Alive { path: path.clone(), reason });
                    }
                }
                only.iter().filter(|path| graph.paths.contains_key(*path)).cloned().collect::<Vec<_>>()
            }
        };
        let leftovers = if options.only.is_some() { Vec::new() } else { leftovers(config, directory, &graph, &start)? };
        Ok(Self { graph, dead, leftovers })
    }
}

/// Names in the store directory that are not valid and not being created: complete paths that were never registered, and
/// temporary names of processes that have ended. A root keeps every name with its hash part: a builder's root is its
/// derivation, and its working directory is called `<derivation>.chroot`.
fn leftovers(
    config: &StoreConfig,
    directory: BorrowedFd<'_>,
    graph: &Graph,
    keep: &BTreeSet<StorePath>,
) -> Result<Vec<String>, LocalStoreError> {
    let fail = |error| LocalStoreError::io("list", &config.real_store_dir, error);
    let mut leftovers = Vec::new();
    let hash_parts = hash_parts_of(keep);
    for (name, _) in list(directory).map_err(fail)? {
        let Ok(name) = name.into_string() else { continue };
        let Ok(path) = StorePath::parse(&name) else { continue };
        let is_lock = name.strip_suffix(".lock").is_some_and(|path| StorePath::parse(path).is_ok());
        if !is_lock && !graph.paths.contains_key(&path) && !hash_parts.contains(&path.hash_part()) {
            leftovers.push(name);
        }
    }
    leftovers.sort();
    Ok(leftovers)
}

/// The directory of files with several links, if there is one.
fn links(config: &StoreConfig, directory: BorrowedFd<'_>) -> Result<Option<File>, LocalStoreError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(directory, LINKS, flags, Mode::empty()) {
        Ok(links) => Ok(Some(links.into())),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(LocalStoreError::io("open", &config.links(), error)),
    }
}

impl LocalStore {
    /// Makes a path invalid. Returns `false` if it, or a path that refers to it, is valid and not condemned. The caller
    /// holds its lock.
    fn invalidate(
        &self,
        path: &StorePath,
        node: Option<&Node>,
        condemned: &HashSet<i64>,
    ) -> Result<bool, LocalStoreError> {
        let mut connection = self.writer.lock();
        let mut outcome = || {
            let transaction = Transaction::new(&mut connection, TransactionBehavior::Immediate)?;
            if let Some(Node { id, .. }) = node {
                let mut statement =
                    transaction.prepare_cached("select referrer from Refs where reference = ?1 and referrer != ?1")?;
                let referrers = statement.query_map([id], |row| row.get(0))?.collect::<Result<Vec<i64>, _>>()?;
                drop(statement);
                if referrers.iter().any(|referrer| !condemned.contains(referrer)) {
                    return Ok(false);
                }
                // Those of a cycle would prevent the deletion.
                let sql = "delete from Refs where referrer = ?1 or reference = ?1";
                transaction.prepare_cached(sql)?.execute([id])?;
                transaction.prepare_cached("delete from ValidPaths where id = ?1")?.execute([id])?;
            }
            let sql = "select 1 from ValidPaths where path = ?1";
            let valid: Option<i64> =
                transaction.prepare_cached(sql)?.query_row(params![self.full(path)], |row| row.get(0)).optional()?;
            if valid.is_some() {
                return Ok(false);
            }
            transaction.commit()?;
            Ok(true)
        };
        outcome().map_err(|error| self.database_error(error))
    }

    /// Removes files from `.links` that have no other link.
    fn remove_unused_links(&self, garbage: &mut Garbage) -> Result<(), LocalStoreError> {
        let Some(links) = links(&self.config, self.directory.as_fd())? else { return Ok(()) };
        let path = self.config.links();
        for (name, _) in list(links.as_fd()).map_err(|error| LocalStoreError::io("list", &path, error))? {
            let Ok(found) = rustix::fs::statat(&links, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if found.st_nlink == 1 && FileType::from_raw_mode(found.st_mode) != FileType::Directory {
                let removed = rustix::fs::unlinkat(&links, &name, AtFlags::empty());
                let fail =
                    |error| (0, LocalStoreError::io("remove", &path.join(OsStr::from_bytes(name.to_bytes())), error));
                let bytes = u64::try_from(found.st_blocks).unwrap_or(0) * 512;
                garbage.removed(removed.map(|()| bytes).map_err(fail), |_| {});
            }
        }
        Ok(())
    }
}

impl StoreConfig {
    fn links(&self) -> PathBuf {
        self.real_store_dir.join(LINKS)
    }
}
