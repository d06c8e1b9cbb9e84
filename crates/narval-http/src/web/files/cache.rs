use std::sync::Arc;

use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::SiteOptions;
use super::dictionary::{DictionaryHash, hex};
use super::resource::Resource;

/// What an entry is charged besides its contents: key, fields, the cache's overhead.
const ENTRY_BYTES: u64 = 2048;

/// Resources by request path, bounded both in memory and in open files.
#[derive(Debug)]
pub(super) struct ResourceCache {
    entries: Cache<Box<str>, Arc<Resource>, Charge>,
}

/// Charges an open file such a share of memory that the largest number of them fills the cache.
#[derive(Clone, Debug)]
struct Charge {
    bytes_per_file: u64,
}

impl Weighter<Box<str>, Arc<Resource>> for Charge {
    fn weight(&self, path: &Box<str>, resource: &Arc<Resource>) -> u64 {
        ENTRY_BYTES + path.len() as u64 + resource.memory_bytes() + resource.open_files() * self.bytes_per_file
    }
}

impl ResourceCache {
    pub(super) fn new(options: &SiteOptions) -> Self {
        let bytes_per_file = options.memory_bytes_max / options.open_files_max.max(1);
        let entries = usize::try_from(options.memory_bytes_max / (8 * ENTRY_BYTES)).unwrap_or(usize::MAX);
        Self { entries: Cache::with_weighter(entries, options.memory_bytes_max, Charge { bytes_per_file }) }
    }

    pub(super) fn get(&self, path: &str) -> Option<Arc<Resource>> {
        self.entries.get(path)
    }

    pub(super) fn insert(&self, path: &str, resource: Arc<Resource>) {
        self.entries.insert(path.into(), resource);
    }

    /// The delta of the file at `path` from this dictionary.
    pub(super) fn delta(&self, path: &str, dictionary: &DictionaryHash) -> Option<Arc<Resource>> {
        self.entries.get(&*delta_key(path, dictionary))
    }

    pub(super) fn insert_delta(&self, path: &str, dictionary: &DictionaryHash, delta: Arc<Resource>) {
        self.entries.insert(delta_key(path, dictionary).into(), delta);
    }

    pub(super) fn remove(&self, path: &str) {
        self.entries.remove(path);
    }
}

/// No path of a request has a space.
fn delta_key(path: &str, dictionary: &DictionaryHash) -> String {
    format!("{path} {}", hex(dictionary))
}
