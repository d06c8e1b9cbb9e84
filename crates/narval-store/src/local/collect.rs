//! Garbage collection: unreachable paths are invalidated in one transaction, then their files are deleted.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use narval_nix::{HashPart, StorePath};
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::incoming::is_temporary_of_before;
use super::{LocalStore, LocalStoreError};
use crate::config::StoreConfig;
use crate::remove::list;

/// What to collect.
#[derive(Debug, Clone, Default)]
pub struct GarbageOptions {
    /// Only report what would be deleted.
    pub dry_run: bool,
    /// Further paths to keep, with their closures.
    pub keep: Vec<StorePath>,
    /// Whether derivers of live paths may be collected if nothing else keeps them (`keep-derivations = false`).
    pub drop_derivations: bool,
    /// Whether outputs of live derivations are kept (`keep-outputs = true`).
    pub keep_outputs: bool,
    /// Collect only these paths; it is an error if one of them is in use.
    pub only: Option<Vec<StorePath>>,
}

/// The result of a collection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Garbage {
    /// Paths that were invalidated.
    pub paths: Vec<StorePath>,
    /// Names in the store directory that were never valid, or are leftovers.
    pub leftovers: Vec<String>,
    /// Bytes on disk that were freed; in a dry run, bytes of NARs.
    pub bytes_freed: u64,
    /// The number of paths that remain valid.
    pub kept: usize,
}

/// A store that is locked for garbage collection.
#[derive(Debug)]
pub struct GarbageCollector {
    store: LocalStore,
}

impl GarbageCollector {
    /// Opens a store for a collection, after waiting for other collections to end. Processes that add to the store
    /// meanwhile wait before they examine a path; paths that they have already examined are protected by their
    /// temporary roots.
    ///
    /// # Errors
    /// See [`LocalStore::open`].
    pub fn open(config: StoreConfig) -> Result<Self, LocalStoreError> {
        Ok(Self { store: LocalStore::open_collecting(config)? })
    }

    /// The store.
    pub fn store(&self) -> &LocalStore {
        &self.store
    }

    /// Deletes unreachable paths. If it is killed, the store stays valid, and the next collection deletes the leftover
    /// files.
    ///
    /// # Errors
    /// [`LocalStoreError::Alive`] for a path of [`GarbageOptions::only`] that is still in use. If roots cannot be read,
    /// nothing is deleted.
    pub fn collect(&self, options: &GarbageOptions) -> Result<Garbage, LocalStoreError> {
        let store = &self.store;
        let roots = store.roots()?;
        let graph = Graph::read(store)?;
        let mut start: BTreeSet<StorePath> = roots.iter().map(|root| root.path.clone()).collect();
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
        let leftovers = if options.only.is_some() { Vec::new() } else { store.leftovers(&graph, &start)? };
        let mut garbage =
            Garbage { kept: graph.paths.len() - dead.len(), paths: dead, leftovers, ..Garbage::default() };
        if options.dry_run {
            garbage.bytes_freed =
                garbage.paths.iter().filter_map(|path| graph.paths.get(path)).map(|node| node.nar_size).sum();
            return Ok(garbage);
        }
        store.invalidate(garbage.paths.iter().filter_map(|path| graph.paths.get(path)).map(|node| node.id))?;
        let names = garbage.paths.iter().map(StorePath::base_name).chain(garbage.leftovers.iter().map(String::as_str));
        for name in names {
            garbage.bytes_freed += store.remove(OsStr::new(name))?;
        }
        garbage.bytes_freed += store.remove_deep_leftovers()?;
        garbage.bytes_freed += store.remove_unused_links()?;
        Ok(garbage)
    }
}

fn hash_parts_of(paths: &BTreeSet<StorePath>) -> HashSet<HashPart> {
    paths.iter().map(StorePath::hash_part).collect()
}

struct Node {
    id: i64,
    nar_size: u64,
    deriver: Option<StorePath>,
}

/// The valid paths and their references.
struct Graph {
    paths: BTreeMap<StorePath, Node>,
    references: HashMap<StorePath, Vec<StorePath>>,
    /// The outputs of derivations.
    outputs: HashMap<StorePath, Vec<StorePath>>,
}

impl Graph {
    fn read(store: &LocalStore) -> Result<Self, LocalStoreError> {
        let connection = store.writer();
        let graph = Self::query(store, &connection);
        graph.map_err(|error| store.database_error(error))
    }

    fn query(store: &LocalStore, connection: &Connection) -> Result<Self, rusqlite::Error> {
        let parse = |full: &str| store.config.store_dir.parse(full).ok();
        let snapshot = connection.unchecked_transaction()?;
        let mut by_id = HashMap::new();
        let mut paths = BTreeMap::new();
        let mut statement = snapshot.prepare("select id, path, narSize, deriver from ValidPaths")?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            // Paths of another store directory are not collected.
            let Some(path) = parse(&row.get::<_, String>(1)?) else { continue };
            let nar_size = row.get::<_, Option<i64>>(2)?.and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
            let deriver = row.get::<_, Option<String>>(3)?.and_then(|deriver| parse(&deriver));
            let id = row.get(0)?;
            by_id.insert(id, path.clone());
            paths.insert(path, Node { id, nar_size, deriver });
        }
        let mut references: HashMap<StorePath, Vec<StorePath>> = HashMap::new();
        let mut statement = snapshot.prepare("select referrer, reference from Refs")?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            if let (Some(referrer), Some(reference)) =
                (by_id.get(&row.get::<_, i64>(0)?), by_id.get(&row.get::<_, i64>(1)?))
            {
                references.entry(referrer.clone()).or_default().push(reference.clone());
            }
        }
        let mut outputs: HashMap<StorePath, Vec<StorePath>> = HashMap::new();
        let mut statement = snapshot.prepare("select drv, path from DerivationOutputs")?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            if let (Some(derivation), Some(output)) =
                (by_id.get(&row.get::<_, i64>(0)?), parse(&row.get::<_, String>(1)?))
            {
                outputs.entry(derivation.clone()).or_default().push(output);
            }
        }
        Ok(Self { paths, references, outputs })
    }

    /// The closure of these paths. A root keeps every path with its hash part, whatever its name (Nix `gc.cc`).
    fn reach(&self, start: &BTreeSet<StorePath>, options: &GarbageOptions) -> HashSet<StorePath> {
        let mut reached: HashSet<StorePath> = HashSet::new();
        let hash_parts = hash_parts_of(start);
        let mut next: Vec<&StorePath> =
            self.paths.keys().filter(|path| hash_parts.contains(&path.hash_part())).collect();
        while let Some(path) = next.pop() {
            let Some((path, node)) = self.paths.get_key_value(path) else { continue };
            if reached.insert(path.clone()) {
                next.extend(self.references.get(path).into_iter().flatten());
                next.extend(node.deriver.iter().filter(|_| !options.drop_derivations));
                next.extend(self.outputs.get(path).into_iter().flatten().filter(|_| options.keep_outputs));
            }
        }
        reached
    }

    /// A path that refers to this one and is not in `except`.
    fn referrer(&self, path: &StorePath, except: &[StorePath]) -> Option<String> {
        let mut all = self.references.iter();
        let (referrer, _) =
            all.find(|(referrer, references)| references.contains(path) && !except.contains(referrer))?;
        Some(format!("'{referrer}' refers to it"))
    }
}

impl LocalStore {
    /// Invalidates paths that nothing valid refers to, in one transaction.
    fn invalidate(&self, ids: impl Iterator<Item = i64> + Clone) -> Result<(), LocalStoreError> {
        let mut connection = self.writer();
        let outcome = (|| {
            let transaction = Transaction::new(&mut connection, TransactionBehavior::Immediate)?;
            // First all references: those among the paths would prevent the deletion.
            for id in ids.clone() {
                transaction.prepare_cached("delete from Refs where referrer = ?1")?.execute([id])?;
            }
            for id in ids {
                transaction.prepare_cached("delete from ValidPaths where id = ?1")?.execute([id])?;
            }
            transaction.commit()
        })();
        outcome.map_err(|error| self.database_error(error))
    }

    /// Names in the store directory that are not valid and not being created: complete paths that were never
    /// registered, and temporary names of processes that have ended. A root keeps every name with its hash part: a
    /// builder's root is its derivation, and its working directory is called `<derivation>.chroot`.
    fn leftovers(&self, graph: &Graph, keep: &BTreeSet<StorePath>) -> Result<Vec<String>, LocalStoreError> {
        let fail = |error| LocalStoreError::io("list", &self.config.real_store_dir, error);
        let mut leftovers = Vec::new();
        let hash_parts = hash_parts_of(keep);
        for (name, _) in list(self.directory.as_fd()).map_err(fail)? {
            let Ok(name) = name.into_string() else { continue };
            let left = match StorePath::parse(&name) {
                Ok(path) => {
                    let is_lock = name.strip_suffix(".lock").is_some_and(|path| StorePath::parse(path).is_ok());
                    !is_lock && !graph.paths.contains_key(&path) && !hash_parts.contains(&path.hash_part())
                }
                Err(_) => is_temporary_of_before(&name),
            };
            if left {
                leftovers.push(name);
            }
        }
        leftovers.sort();
        Ok(leftovers)
    }

    /// Removes files from `.links` that have no other link.
    fn remove_unused_links(&self) -> Result<u64, LocalStoreError> {
        let directory = self.config.real_store_dir.join(".links");
        let fail = |error| LocalStoreError::io("list", &directory, error);
        let handle = std::fs::File::open(&directory).map_err(fail)?;
        let mut freed = 0;
        for (name, _) in list(handle.as_fd()).map_err(|error| fail(error.into()))? {
            let path = directory.join(OsStr::from_bytes(name.to_bytes()));
            let Ok(found) = std::fs::symlink_metadata(&path) else { continue };
            if found.nlink() == 1 && !found.is_dir() {
                freed += found.blocks() * 512;
                std::fs::remove_file(&path).map_err(|error| LocalStoreError::io("remove", &path, error))?;
            }
        }
        Ok(freed)
    }
}
