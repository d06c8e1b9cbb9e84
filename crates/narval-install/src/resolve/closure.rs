//! Closures, their sizes, and why one path depends on another.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use narval_cache::BinaryCaches;
use narval_client::Client;
use narval_nix::{ClosureWalk, PathInfo, StorePath};

use super::walk::closure;
use crate::options::Options;
use narval_cache::Wanted;
use narval_transfer::{Destination, Error};

/// One path of a closure.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its metadata.
    pub info: PathInfo,
    /// The size of its download in bytes, if it was found in a cache.
    pub file_size: Option<u64>,
}

/// A closure. Metadata of paths that the store has come from there, others from the caches.
pub struct Closure {
    /// The requested paths.
    pub roots: Vec<StorePath>,
    /// All paths.
    pub nodes: BTreeMap<StorePath, Node>,
}

impl Closure {
    /// Finds a closure. Caches are only queried for paths that the store does not have.
    ///
    /// # Errors
    /// If a path is not found.
    pub fn find(
        destination: &Destination,
        options: &Options,
        client: &Arc<Client>,
        wanted: &[Wanted],
    ) -> Result<Self, Error> {
        let (mut missing, mut found) = (Vec::new(), Self { roots: Vec::new(), nodes: BTreeMap::new() });
        for one in wanted {
            match destination.find(one)? {
                Some(path) => found.roots.push(path),
                None => missing.push(one.clone()),
            }
        }
        let mut queue: Vec<_> = found.roots.clone();
        if !missing.is_empty() {
            let keys = options.keys.clone();
            let caches =
                BinaryCaches::open(&options.caches, client, destination.store_dir(), keys, options.check_signatures)?;
            for one in closure(&caches, &missing, &|path| destination.is_valid(path))? {
                let (info, file_size) = (one.info.path_info(0), one.info.file_size);
                found.roots.extend(missing.iter().any(|wanted| wanted.is(&info.path)).then(|| info.path.clone()));
                queue.extend(info.references.iter().cloned());
                found.nodes.insert(info.path.clone(), Node { info, file_size });
            }
        }
        found.add_from(destination, queue)?;
        Ok(found)
    }

    /// Finds the closure of paths of a store, only in that store.
    ///
    /// # Errors
    /// If the store does not have all of it.
    pub fn in_store(store: &Destination, wanted: &[Wanted]) -> Result<Self, Error> {
        let mut found = Self { roots: Vec::new(), nodes: BTreeMap::new() };
        for one in wanted {
            let absent = || Error::NotInStore { what: one.to_string(), store: store.name() };
            found.roots.push(store.find(one)?.ok_or_else(absent)?);
        }
        found.add_from(store, found.roots.clone())?;
        Ok(found)
    }

    /// Adds paths of a store with their closures.
    fn add_from(&mut self, store: &Destination, paths: Vec<StorePath>) -> Result<(), Error> {
        let new = paths.into_iter().filter(|path| !self.nodes.contains_key(path));
        let (valid, invalid) = store.store().closure(new)?;
        if let Some(path) = invalid.into_iter().find(|path| !self.nodes.contains_key(path)) {
            return Err(Error::NotInStore { what: path.to_string(), store: store.name() });
        }
        for info in valid {
            self.nodes.entry(info.path.clone()).or_insert(Node { info, file_size: None });
        }
        Ok(())
    }

    /// The metadata of its paths.
    pub fn infos(&self) -> BTreeMap<StorePath, PathInfo> {
        self.nodes.iter().map(|(path, node)| (path.clone(), node.info.clone())).collect()
    }

    /// The total size of its NARs in bytes.
    pub fn size(&self) -> u64 {
        self.nodes.values().map(|node| node.info.nar_size).sum()
    }

    /// The total size of the NARs of a path's closure, in bytes.
    pub fn size_of(&self, path: &StorePath) -> u64 {
        let (mut walk, mut total) = (ClosureWalk::new([path]), 0);
        while let Some(path) = walk.next() {
            let Some(node) = self.nodes.get(path) else { continue };
            total += node.info.nar_size;
            walk.add(&node.info.references);
        }
        total
    }

    /// A shortest chain of references from a root to `to`, or `None` if nothing refers to it.
    pub fn why(&self, to: &StorePath) -> Option<Vec<StorePath>> {
        let mut came_from: HashMap<&StorePath, Option<&StorePath>> =
            self.roots.iter().map(|root| (root, None)).collect();
        let mut queue: VecDeque<_> = self.roots.iter().collect();
        while let Some(path) = queue.pop_front() {
            if path == to {
                let mut chain = vec![path.clone()];
                let mut at = path;
                while let Some(Some(before)) = came_from.get(at) {
                    chain.push((*before).clone());
                    at = before;
                }
                chain.reverse();
                return Some(chain);
            }
            for reference in self.nodes.get(path).into_iter().flat_map(|node| &node.info.references) {
                came_from.entry(reference).or_insert_with(|| {
                    queue.push_back(reference);
                    Some(path)
                });
            }
        }
        None
    }
}
