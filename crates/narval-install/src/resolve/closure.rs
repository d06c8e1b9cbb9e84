//! What refers to what: closures, their sizes, and why one path needs another.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use narval_cache::Caches;
use narval_client::Client;
use narval_nix::{ClosureWalk, PathInfo, StorePath};

use super::walk::closure;
use crate::{Destination, Error, Options, Wanted};

/// One path of a closure, as far as it is known.
#[derive(Clone, Debug)]
pub struct Node {
    /// What is known of it.
    pub info: PathInfo,
    /// What would be downloaded for it, if a cache told us of it.
    pub file_size: Option<u64>,
}

/// A closure. What the store has comes from there, the rest from the caches.
pub struct Closure {
    /// The paths asked for.
    pub roots: Vec<StorePath>,
    /// All paths.
    pub nodes: BTreeMap<StorePath, Node>,
}

impl Closure {
    /// Finds it. Caches are asked only for what the store has not.
    ///
    /// # Errors
    /// If a path is nowhere to be found.
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
                Caches::open(&options.caches, client, destination.store_dir(), keys, options.check_signatures)?;
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

    /// Finds the closure of paths of a store, in that store alone.
    ///
    /// # Errors
    /// If the store has not all of it.
    pub fn in_store(store: &Destination, wanted: &[Wanted]) -> Result<Self, Error> {
        let mut found = Self { roots: Vec::new(), nodes: BTreeMap::new() };
        for one in wanted {
            let absent = || Error::NotInStore { what: one.to_string(), store: store.name() };
            found.roots.push(store.find(one)?.ok_or_else(absent)?);
        }
        found.add_from(store, found.roots.clone())?;
        Ok(found)
    }

    /// Adds paths of a store, with all that they refer to.
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

    /// Bytes of all its NARs.
    pub fn size(&self) -> u64 {
        self.nodes.values().map(|node| node.info.nar_size).sum()
    }

    /// Bytes of the NARs of a path and all that it needs.
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
