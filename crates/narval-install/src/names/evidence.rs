//! What the narinfos of caches tell about paths: references, derivers, and which system a C library is for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use narval_cache::{BinaryCaches, CacheError, TrustedNarInfo, Wanted};
use narval_names::Evidence;
use narval_nix::listing::{Listing, Node};
use narval_nix::{HashPart, StorePath};
use parking_lot::Mutex;

use super::learnt::Learnt;
use crate::inspect::listing;

/// How many narinfos are asked for at a time.
const REQUESTS_MAX: usize = 32;
/// The file of a C library that loads programs, and the system of these.
const LOADERS: [(&str, &str); 12] = [
    ("ld-linux-x86-64.so.2", "x86_64-linux"),
    ("ld-linux-aarch64.so.1", "aarch64-linux"),
    ("ld-linux.so.2", "i686-linux"),
    ("ld-linux-armhf.so.3", "armv7l-linux"),
    ("ld-linux-riscv64-lp64d.so.1", "riscv64-linux"),
    ("ld64.so.2", "powerpc64le-linux"),
    ("ld-linux-loongarch-lp64d.so.1", "loongarch64-linux"),
    ("ld-musl-x86_64.so.1", "x86_64-linux"),
    ("ld-musl-aarch64.so.1", "aarch64-linux"),
    ("ld-musl-i386.so.1", "i686-linux"),
    ("ld-musl-armhf.so.1", "armv7l-linux"),
    ("ld-musl-riscv64.so.1", "riscv64-linux"),
];

/// Evidence from narinfos.
pub(crate) struct FromNarinfos<'a> {
    caches: &'a BinaryCaches,
    pub(crate) learnt: &'a mut Learnt,
    found: HashMap<HashPart, Option<TrustedNarInfo>>,
    /// The first failure that is not the absence of a path.
    pub(crate) failure: Option<CacheError>,
}

impl<'a> FromNarinfos<'a> {
    pub(crate) fn new(caches: &'a BinaryCaches, learnt: &'a mut Learnt) -> Self {
        Self { caches, learnt, found: HashMap::new(), failure: None }
    }

    /// The narinfos of these paths, from memory or from the caches.
    fn ask(&mut self, paths: &[StorePath]) {
        let mut open: Vec<HashPart> = paths.iter().map(StorePath::hash_part).collect();
        open.retain(|part| !self.found.contains_key(part));
        if open.is_empty() {
            return;
        }
        for found in self.caches.find_many(&open) {
            self.found.insert(found.info.path.hash_part(), Some(found));
        }
        open.retain(|part| !self.found.contains_key(part));
        let (next, answers) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..open.len().min(REQUESTS_MAX) {
                scope.spawn(|| {
                    while let Some(part) = open.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let answer = self.caches.find(&Wanted::HashPart(*part));
                        answers.lock().push((*part, answer));
                    }
                });
            }
        });
        for (part, answer) in answers.into_inner() {
            let found = match answer {
                Ok(found) => Some(found),
                Err(CacheError::NotFound { .. }) => None,
                Err(error) => {
                    tracing::debug!(%error, "the references of a path are not known");
                    self.failure.get_or_insert(error);
                    None
                }
            };
            self.found.insert(part, found);
        }
    }

    /// The narinfo of a path.
    pub(crate) fn narinfo(&mut self, path: &StorePath) -> Option<&TrustedNarInfo> {
        self.ask(std::slice::from_ref(path));
        self.found.get(&path.hash_part()).and_then(Option::as_ref).filter(|found| found.info.path == *path)
    }
}

impl Evidence for FromNarinfos<'_> {
    fn references(&mut self, paths: &[StorePath]) -> Vec<Option<Vec<StorePath>>> {
        self.ask(paths);
        let of = |path: &StorePath| {
            let found = self.found.get(&path.hash_part()).and_then(Option::as_ref);
            found.map(|found| found.info.references.clone())
        };
        paths.iter().map(of).collect()
    }

    fn deriver(&mut self, path: &StorePath) -> Option<StorePath> {
        self.narinfo(path).and_then(|found| found.info.deriver.clone())
    }

    fn c_library(&mut self, path: &StorePath) -> Vec<String> {
        if let Some(known) = self.learnt.library(path) {
            return known;
        }
        match listing(self.caches, &Wanted::Path(path.clone())) {
            Ok(listing) => {
                let systems = systems_of(&listing);
                self.learnt.add_library(path, &systems);
                systems
            }
            Err(error) => {
                tracing::debug!(%path, %error, "has no listing");
                Vec::new()
            }
        }
    }
}

/// The systems of the programs that a C library loads.
fn systems_of(listing: &Listing) -> Vec<String> {
    let Some(Node::Directory(lib)) = listing.get(b"lib") else { return Vec::new() };
    let is_darwin = |name: &[u8]| name.ends_with(b".dylib") || name.ends_with(b".tbd");
    if lib.keys().any(|name| is_darwin(name)) {
        return vec!["darwin".to_owned()];
    }
    let has = |loader: &str| lib.contains_key(loader.as_bytes());
    let mut systems: Vec<_> =
        LOADERS.iter().filter(|(loader, _)| has(loader)).map(|(_, system)| (*system).to_owned()).collect();
    systems.dedup();
    systems
}
