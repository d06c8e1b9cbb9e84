//! Content addresses (`CA:` in a narinfo), and the store paths derived from them.
//!
//! Format: Nix `libstore/content-address.cc`, `libstore/store-dir-config.cc` (`makeStorePath`, `makeFixedOutputPath`).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::hash::{Algorithm, HASH_TEXT_LEN_MAX, Hash, HashError, Sha256, Sha256Hasher};
use crate::store_path::{HashPart, StoreDir, StorePath, StorePathName};

/// The longest text that can be a content address: `fixed:git:` and the longest hash.
pub const CONTENT_ADDRESS_LEN_MAX: usize = 10 + HASH_TEXT_LEN_MAX;

/// What a content address hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// The contents of a file that may refer to other paths: derivations and `builtins.toFile`. Always SHA-256.
    Text,
    /// The contents of a file.
    Flat,
    /// The NAR.
    Nar,
    /// The Git object (experimental in Nix).
    Git,
}

/// A content address: the hash of a store path's contents that its name is derived from.
///
/// ```
/// use narval_nix::ContentAddress;
/// let text = "fixed:r:sha256:0sjjj9z1dhilhpc8pq4154czrb79z9cm044jvn75kxcjv6v5l2m5";
/// assert_eq!(text.parse::<ContentAddress>().unwrap().to_string(), text);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentAddress {
    method: Method,
    hash: Hash,
}

/// Why a content address was rejected, or no store path can be derived from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ContentAddressError {
    /// Longer than any content address.
    #[error("a content address has at most {CONTENT_ADDRESS_LEN_MAX} bytes")]
    TooLong,
    /// The text starts with neither `text:` nor `fixed:`.
    #[error("a content address starts with 'text:' or 'fixed:'")]
    Prefix,
    /// The hash, which must have the form `algo:digest`, is malformed.
    #[error("invalid hash in a content address: {0}")]
    Hash(#[from] HashError),
    /// `text:` with something other than SHA-256, or `fixed:git:` with something other than SHA-1 or SHA-256.
    #[error("a content address of this kind cannot use {0}")]
    Algorithm(Algorithm),
    /// Only SHA-256 NAR hashes and texts may have references.
    #[error("a path with this content address cannot have references")]
    References,
    /// The path refers to itself, which only NAR hashes support: they are computed with the path's own hash part zeroed.
    #[error("the store path of a text or a flat file cannot refer to itself")]
    SelfReference,
}

impl ContentAddress {
    /// Makes a content address.
    ///
    /// # Errors
    /// The method does not allow the hash's algorithm.
    pub fn new(method: Method, hash: Hash) -> Result<Self, ContentAddressError> {
        let allowed = match method {
            Method::Text => hash.algorithm() == Algorithm::Sha256,
            Method::Git => matches!(hash.algorithm(), Algorithm::Sha1 | Algorithm::Sha256),
            Method::Flat | Method::Nar => true,
        };
        if allowed { Ok(Self { method, hash }) } else { Err(ContentAddressError::Algorithm(hash.algorithm())) }
    }

    /// What is hashed.
    pub const fn method(&self) -> Method {
        self.method
    }

    /// The hash.
    pub const fn hash(&self) -> &Hash {
        &self.hash
    }

    /// Derives the store path from this address, a name and references. A reference of the path to itself is given as
    /// `self_reference`, because its name is not known yet.
    pub fn store_path(
        &self,
        store_dir: &StoreDir,
        name: &StorePathName,
        references: &BTreeSet<StorePath>,
        self_reference: bool,
    ) -> Result<StorePath, ContentAddressError> {
        let sha256_nar = self.method == Method::Nar && self.hash.algorithm() == Algorithm::Sha256;
        if self_reference && !sha256_nar {
            return Err(ContentAddressError::SelfReference);
        }
        if sha256_nar || self.method == Method::Text {
            let mut kind = if sha256_nar { "source" } else { "text" }.to_owned();
            for reference in references {
                kind.push(':');
                kind.push_str(&store_dir.display(reference).to_string());
            }
            if self_reference {
                kind.push_str(":self");
            }
            return Ok(make_store_path(store_dir, &kind, &self.hash.to_hex(), name));
        }
        if !references.is_empty() {
            return Err(ContentAddressError::References);
        }
        let inner = Sha256::of(
            format!("fixed:out:{}{}:{}:", self.prefix(), self.hash.algorithm(), self.hash.to_hex()).as_bytes(),
        );
        Ok(make_store_path(store_dir, "output:out", &inner.to_hex(), name))
    }

    /// Returns whether `path` is the store path derived from this content address and these references. `path` among the
    /// references counts as a self-reference.
    ///
    /// This ties the *name* to the hash and does not check the contents:
    /// [`PathInfo::check_by_contents`](crate::PathInfo::check_by_contents) returns what else must be checked.
    pub fn names(&self, store_dir: &StoreDir, path: &StorePath, references: &BTreeSet<StorePath>) -> bool {
        let mut others = references.clone();
        let self_reference = others.remove(path);
        let Ok(name) = StorePathName::parse(path.name()) else { return false };
        self.store_path(store_dir, &name, &others, self_reference).as_ref() == Ok(path)
    }

    const fn prefix(&self) -> &'static str {
        match self.method {
            Method::Text | Method::Flat => "",
            Method::Nar => "r:",
            Method::Git => "git:",
        }
    }
}

/// `<hash part>-<name>` where the hash part is the SHA-256 of `kind:sha256:inner:store dir:name`, folded to 160 bits.
fn make_store_path(store_dir: &StoreDir, kind: &str, inner_hex: &str, name: &StorePathName) -> StorePath {
    let mut hasher = Sha256Hasher::new();
    for piece in [kind, ":sha256:", inner_hex, ":", store_dir.as_str(), ":", name.as_str()] {
        hasher.update(piece.as_bytes());
    }
    let mut folded = [0; 20];
    for (index, byte) in hasher.finish().as_bytes().iter().enumerate() {
        folded[index % 20] ^= byte;
    }
    StorePath::from_parts(HashPart::from_digest(&folded), name)
}

impl fmt::Display for ContentAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.method == Method::Text { "text" } else { "fixed" };
        write!(f, "{kind}:{}{}", self.prefix(), self.hash)
    }
}

impl FromStr for ContentAddress {
    type Err = ContentAddressError;

    fn from_str(text: &str) -> Result<Self, ContentAddressError> {
        if text.len() > CONTENT_ADDRESS_LEN_MAX {
            return Err(ContentAddressError::TooLong);
        }
        let (method, hash) = if let Some(hash) = text.strip_prefix("text:") {
            (Method::Text, hash)
        } else if let Some(rest) = text.strip_prefix("fixed:") {
            if let Some(hash) = rest.strip_prefix("r:") {
                (Method::Nar, hash)
            } else if let Some(hash) = rest.strip_prefix("git:") {
                (Method::Git, hash)
            } else {
                (Method::Flat, rest)
            }
        } else {
            return Err(ContentAddressError::Prefix);
        };
        let (algorithm, digest) = hash.split_once(':').ok_or(HashError::NoAlgorithm)?;
        Self::new(method, Hash::parse_digest(Algorithm::from_name(algorithm)?, digest)?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path_of(method: Method, hash: Sha256) -> String {
        let address = ContentAddress::new(method, hash.into()).unwrap();
        let name = "hello.txt".parse().unwrap();
        address.store_path(&StoreDir::default(), &name, &BTreeSet::new(), false).unwrap().to_string()
    }

    #[test]
    fn store_paths_of_hello_world() {
        let flat = Sha256::of(b"hello world");
        let mut nar = Sha256Hasher::new();
        for token in ["nix-archive-1", "(", "type", "regular", "contents", "hello world", ")"] {
            nar.update(&(token.len() as u64).to_le_bytes());
            nar.update(token.as_bytes());
            nar.update(&[0; 8][..token.len().next_multiple_of(8) - token.len()]);
        }
        assert_eq!(path_of(Method::Text, flat), "m6wswa7yn6x5gi6gdq7x1fqlwmlhfja9-hello.txt");
        assert_eq!(path_of(Method::Nar, nar.finish()), "9833pw3cj8paw1plnya839qnikx9jjcd-hello.txt");
        assert_eq!(path_of(Method::Flat, flat), "9956wx21q0rb63w8s43n6z1bims9sjs0-hello.txt");
    }

    #[test]
    fn refused() {
        let digest = Sha256::of(b"").to_nix32();
        for bad in [
            String::new(),
            "text".into(),
            format!("sha256:{digest}"),
            format!("text:r:sha256:{digest}"),
            format!("fixed:x:sha256:{digest}"),
            "text:sha1:00000000000000000000000000000000".into(),
            "fixed:git:md5:00000000000000000000000000".into(),
            format!("fixed:{}", Sha256::of(b"").to_sri()),
            format!("fixed:r:sha256:{digest}0"),
            format!("Fixed:r:sha256:{digest}"),
            "fixed:".to_owned() + &"r:".repeat(1000),
        ] {
            assert!(bad.parse::<ContentAddress>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn references_only_if_the_method_allows_them() {
        let path: StorePath = "m6wswa7yn6x5gi6gdq7x1fqlwmlhfja9-hello.txt".parse().unwrap();
        let references = BTreeSet::from([path.clone()]);
        let (store_dir, name) = (StoreDir::default(), "a".parse().unwrap());
        let at = |method| ContentAddress::new(method, Sha256::of(b"").into()).unwrap();
        assert!(at(Method::Nar).store_path(&store_dir, &name, &references, true).is_ok());
        assert!(at(Method::Text).store_path(&store_dir, &name, &references, false).is_ok());
        let expected = Err(ContentAddressError::SelfReference);
        assert_eq!(at(Method::Text).store_path(&store_dir, &name, &references, true), expected);
        let expected = Err(ContentAddressError::References);
        assert_eq!(at(Method::Flat).store_path(&store_dir, &name, &references, false), expected);
        assert!(!at(Method::Nar).names(&store_dir, &path, &references));
    }

    proptest! {
        #[test]
        fn round_trip(method in 0..4_usize, algorithm in 0..5_usize, bytes in any::<[u8; 64]>()) {
            let method = [Method::Text, Method::Flat, Method::Nar, Method::Git][method];
            let algorithm = Algorithm::ALL[algorithm];
            let hash = Hash::new(algorithm, &bytes[..algorithm.digest_len()]).unwrap();
            if let Ok(address) = ContentAddress::new(method, hash) {
                prop_assert_eq!(address.to_string().parse(), Ok(address));
            }
        }
    }
}
