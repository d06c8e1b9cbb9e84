//! A store's metadata of a valid path.

use std::collections::BTreeSet;

use crate::content_address::{ContentAddress, Method};
use crate::hash::{Hash, Hasher, NarHash};
use crate::signing::signature::{Signature, fingerprint};
use crate::store_path::{HashPart, StoreDir, StorePath};

/// A store's metadata of a valid path, as in the Nix database, the daemon's answers, and narinfos.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathInfo {
    /// The path.
    pub path: StorePath,
    /// SHA-256 of its NAR.
    pub nar_hash: NarHash,
    /// Size of its NAR in bytes.
    pub nar_size: u64,
    /// The paths it refers to. May include the path itself.
    pub references: BTreeSet<StorePath>,
    /// The derivation that it was built from.
    pub deriver: Option<StorePath>,
    /// When it was registered as valid, in seconds since 1970.
    pub registration_time: u64,
    /// Whether it was built locally rather than copied.
    pub ultimate: bool,
    /// Its signatures.
    pub signatures: Vec<Signature>,
    /// Its content address, if it has one.
    pub ca: Option<ContentAddress>,
}

impl PathInfo {
    /// The fingerprint: the text that signatures of this path sign.
    pub fn fingerprint(&self, store_dir: &StoreDir) -> String {
        fingerprint(store_dir, &self.path, &self.nar_hash, self.nar_size, &self.references)
    }

    /// Evaluates this path's content address, as far as that is possible without the contents.
    pub fn contents_claim(&self, store_dir: &StoreDir) -> ContentsClaim {
        let Some(ca) = &self.ca else { return ContentsClaim::None };
        if !ca.names(store_dir, &self.path, &self.references) {
            return ContentsClaim::Untrue;
        }
        if Hasher::new(ca.hash().algorithm()).is_none() {
            return ContentsClaim::Unsupported;
        }
        let of = match HashedContents::of(ca.method()) {
            HashedContents::Nar if self.references.contains(&self.path) => {
                HashedContents::NarWithout(self.path.hash_part())
            }
            of => of,
        };
        if of == HashedContents::Nar && ca.hash().sha256() == Ok(self.nar_hash) {
            return ContentsClaim::Check(ContentsCheck::Nar);
        }
        ContentsClaim::Check(ContentsCheck::Hash { expected: *ca.hash(), of })
    }

    /// Returns what must be checked for this path to be trusted without a signature, or `None` if it needs one.
    pub fn check_by_contents(&self, store_dir: &StoreDir) -> Option<ContentsCheck> {
        match self.contents_claim(store_dir) {
            ContentsClaim::Check(check) => Some(check),
            ContentsClaim::None | ContentsClaim::Untrue | ContentsClaim::Unsupported => None,
        }
    }
}

/// The result of evaluating a path's content address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentsClaim {
    /// The path has no content address.
    None,
    /// The content address belongs to another path, so it is wrong whatever the contents are.
    Untrue,
    /// The content address belongs to this path, but its algorithm (BLAKE3) is not supported, so it cannot be checked.
    Unsupported,
    /// The content address belongs to this path, and is right if the contents have its hash.
    Check(ContentsCheck),
}

/// How the contents of a path are checked against its name, so that no signature is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContentsCheck {
    /// By the NAR hash, which is always checked.
    Nar,
    /// By a separate hash, which a [`ContentsHasher`](crate::ContentsHasher) computes.
    Hash {
        /// The expected hash.
        expected: Hash,
        /// What is hashed.
        of: HashedContents,
    },
}

/// The data that a content address hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HashedContents {
    /// The NAR.
    Nar,
    /// The NAR of a path that refers to itself, with this hash part zeroed.
    NarWithout(HashPart),
    /// The contents of one regular file that is not executable.
    File,
    /// The Git object.
    Git,
}

impl HashedContents {
    fn of(method: Method) -> Self {
        match method {
            Method::Nar => Self::Nar,
            Method::Text | Method::Flat => Self::File,
            Method::Git => Self::Git,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Sha256;

    fn info(ca: &str, nar_hash: NarHash) -> PathInfo {
        let ca: ContentAddress = ca.parse().unwrap();
        let path = ca.store_path(&StoreDir::default(), &"a".parse().unwrap(), &BTreeSet::new(), false).unwrap();
        PathInfo {
            path,
            nar_hash,
            nar_size: 112,
            references: BTreeSet::new(),
            deriver: None,
            registration_time: 0,
            ultimate: false,
            signatures: vec![],
            ca: Some(ca),
        }
    }

    #[test]
    fn trusted_by_contents() {
        let (store_dir, hash, other) = (StoreDir::default(), Sha256::of(b"a"), Sha256::of(b"b"));
        let check = |ca: String, nar_hash| info(&ca, nar_hash).check_by_contents(&store_dir);
        let by = |of, expected: &str| Some(ContentsCheck::Hash { expected: expected.parse().unwrap(), of });
        let text = hash.to_string();
        assert_eq!(check(format!("fixed:r:{hash}"), hash), Some(ContentsCheck::Nar));
        assert_eq!(check(format!("fixed:{hash}"), other), by(HashedContents::File, &text));
        assert_eq!(check(format!("text:{hash}"), other), by(HashedContents::File, &text));
        assert_eq!(check(format!("fixed:git:{hash}"), other), by(HashedContents::Git, &text));
        // The right content address with the NAR hash of other contents: the check of the contents exposes the cache's
        // lie.
        assert_eq!(check(format!("fixed:r:{hash}"), other), by(HashedContents::Nar, &text));
        let sha1 = "sha1:00000000000000000000000000000000";
        assert_eq!(check(format!("fixed:r:{sha1}"), hash), by(HashedContents::Nar, sha1));
        // An algorithm that is not supported.
        let blake3 = format!("fixed:r:blake3:{}", hash.to_nix32());
        assert_eq!(info(&blake3, hash).contents_claim(&store_dir), ContentsClaim::Unsupported);
        assert_eq!(check(blake3, hash), None);
    }

    #[test]
    fn not_trusted_by_contents() {
        let (store_dir, hash) = (StoreDir::default(), Sha256::of(b"a"));
        let good = info(&format!("fixed:r:{hash}"), hash);
        let unaddressed = PathInfo { ca: None, ..good.clone() };
        let renamed = PathInfo { path: "00bgd045z0d4icpbc2yyz4gx48ak44la-a".parse().unwrap(), ..good.clone() };
        let to_itself = PathInfo { references: BTreeSet::from([good.path.clone()]), ..good.clone() };
        assert_eq!(unaddressed.contents_claim(&store_dir), ContentsClaim::None);
        for bad in [renamed, to_itself] {
            assert_eq!(bad.contents_claim(&store_dir), ContentsClaim::Untrue);
            assert_eq!(bad.check_by_contents(&store_dir), None);
        }
    }
}
