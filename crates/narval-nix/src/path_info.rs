//! What a store knows of a valid path.

use std::collections::BTreeSet;

use crate::content_address::{ContentAddress, Method};
use crate::hash::{NarHash, Sha256};
use crate::signature::{Signature, fingerprint};
use crate::store_path::{StoreDir, StorePath};

/// What a store knows of a valid path: the row of the Nix database, the answer of the daemon, the heart of a narinfo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathInfo {
    /// The path.
    pub path: StorePath,
    /// SHA-256 of its NAR.
    pub nar_hash: NarHash,
    /// Size of its NAR in bytes.
    pub nar_size: u64,
    /// The paths it refers to, itself among them if it does.
    pub references: BTreeSet<StorePath>,
    /// The derivation that made it.
    pub deriver: Option<StorePath>,
    /// When it became valid, in seconds since 1970.
    pub registration_time: u64,
    /// Whether it was built here rather than copied.
    pub ultimate: bool,
    /// Its signatures.
    pub signatures: Vec<Signature>,
    /// How its contents determine its name, if they do.
    pub ca: Option<ContentAddress>,
}

impl PathInfo {
    /// The text that signatures of this path sign.
    pub fn fingerprint(&self, store_dir: &StoreDir) -> String {
        fingerprint(store_dir, &self.path, &self.nar_hash, self.nar_size, &self.references)
    }

    /// Whether this path can be trusted without a signature, and what must then be checked: `None` if it needs one.
    ///
    /// The content address must name the path, and be of a kind whose hash can be checked against the contents. A path
    /// that refers to itself needs a signature: its hash is taken with its own hash part blanked out.
    pub fn check_by_contents(&self, store_dir: &StoreDir) -> Option<ContentsCheck> {
        let ca = self.ca.as_ref()?;
        if self.references.contains(&self.path) || !ca.names(store_dir, &self.path, &self.references) {
            return None;
        }
        let hash = ca.hash().sha256().ok()?;
        match ca.method() {
            // The name says nothing of what the NAR hash says unless they are the same.
            Method::Nar => (hash == self.nar_hash).then_some(ContentsCheck::Nar),
            Method::Text | Method::Flat => Some(ContentsCheck::File(hash)),
            Method::Git => None,
        }
    }

    /// Whether the NAR hash alone determines the name: then the path needs neither a signature nor a further check.
    pub fn is_named_by_contents(&self, store_dir: &StoreDir) -> bool {
        self.check_by_contents(store_dir) == Some(ContentsCheck::Nar)
    }
}

/// What ties the contents of a path to its name, so that no signature is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentsCheck {
    /// The NAR hash does, which is checked anyway.
    Nar,
    /// The NAR must be of one regular file, whose contents have this SHA-256.
    File(Sha256),
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(check(format!("fixed:r:{hash}"), hash), Some(ContentsCheck::Nar));
        assert_eq!(check(format!("fixed:{hash}"), other), Some(ContentsCheck::File(hash)));
        assert_eq!(check(format!("text:{hash}"), other), Some(ContentsCheck::File(hash)));
        // The right content address beside the hash of other contents: a cache that lies.
        assert_eq!(check(format!("fixed:r:{hash}"), other), None);
        assert!(!info(&format!("fixed:r:{hash}"), other).is_named_by_contents(&store_dir));
        assert!(info(&format!("fixed:r:{hash}"), hash).is_named_by_contents(&store_dir));
        // Hashes that nobody here can check.
        assert_eq!(check("fixed:r:sha1:00000000000000000000000000000000".into(), hash), None);
        assert_eq!(check(format!("fixed:git:{hash}"), hash), None);
    }

    #[test]
    fn not_trusted_by_contents() {
        let (store_dir, hash) = (StoreDir::default(), Sha256::of(b"a"));
        let good = info(&format!("fixed:r:{hash}"), hash);
        let unaddressed = PathInfo { ca: None, ..good.clone() };
        let renamed = PathInfo { path: "00bgd045z0d4icpbc2yyz4gx48ak44la-a".parse().unwrap(), ..good.clone() };
        let to_itself = PathInfo { references: BTreeSet::from([good.path.clone()]), ..good.clone() };
        for bad in [unaddressed, renamed, to_itself] {
            assert_eq!(bad.check_by_contents(&store_dir), None);
        }
    }
}
