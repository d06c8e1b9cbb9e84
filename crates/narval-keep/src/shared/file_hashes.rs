//! The hashes of NARs that are a file, which this process remembers.

use narval_nix::{NarHash, Sha256};
use quick_cache::sync::Cache as Memory;

use crate::records::paths::CacheId;

/// The number of NARs whose file's hash is remembered.
const REMEMBERED_MAX: usize = 16_384;

/// SHA-256 of the contents of NARs that are a single file, which is not executable.
pub(crate) struct FileHashes(pub(crate) Memory<(CacheId, NarHash), Sha256>);

impl FileHashes {
    pub(crate) fn new() -> Self {
        Self(Memory::new(REMEMBERED_MAX))
    }

    pub(crate) fn note(&self, cache: CacheId, nar_hash: NarHash, file: Sha256) {
        self.0.insert((cache, nar_hash), file);
    }
}
