//! The options of an install.

use std::collections::HashMap;

use narval_cache::TrustedNarInfo;
use narval_client::Url;
use narval_nix::{NarHash, StorePath, TrustedKeys};
use narval_transfer::Error;

use crate::delta::DeltaUse;

/// Options of an install.
pub struct Options {
    /// The caches.
    pub caches: Vec<Url>,
    /// The trusted keys.
    pub keys: TrustedKeys,
    /// Whether signatures are required.
    pub check_signatures: bool,
    /// The number of cores to use.
    pub cores: usize,
    /// Whether to sync everything to disk before it becomes valid, and what became valid before the end.
    pub durable: bool,
    /// Whether paths are fetched as the difference to what the store has.
    pub deltas: DeltaUse,
    /// Paths whose closures are preferred as bases of deltas: those that a profile shows until now.
    pub delta_bases: Vec<StorePath>,
    /// What paths must contain: the hashes that a lock file has. A narinfo that says otherwise ends the install before its NAR is fetched.
    pub nar_hashes: HashMap<StorePath, NarHash>,
}

impl Options {
    /// Compares what a trusted key has signed with what is expected.
    pub(crate) fn check_hash(&self, found: &TrustedNarInfo) -> Result<(), Error> {
        match self.nar_hashes.get(&found.info.path) {
            Some(expected) if *expected != found.info.nar_hash => Err(Error::WrongPath(format!(
                "{} of {} has the NAR hash {}, and the lock has {expected}",
                found.info.path,
                found.cache.url(),
                found.info.nar_hash
            ))),
            _ => Ok(()),
        }
    }
}
