//! How a path is specified.

use std::fmt;

use narval_nix::store_path::StorePathError;
use narval_nix::{HashPart, StoreDir, StorePath};

/// A text that is not a store path.
#[derive(Debug, thiserror::Error)]
#[error("'{text}' is not a store path, HASH-NAME or hash part of the store {store_dir}: {source}")]
pub struct WantedError {
    text: String,
    store_dir: StoreDir,
    source: StorePathError,
}

/// A store path to look for, as users write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A whole store path.
    Path(StorePath),
    /// Only its hash part.
    HashPart(HashPart),
}

impl Wanted {
    /// Parses a store path, `HASH-NAME`, or only a hash part. A path below a store path is ignored.
    ///
    /// ```
    /// use narval_cache::Wanted;
    /// let dir = narval_nix::StoreDir::default();
    /// let path = Wanted::parse("/nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-a/bin/a", &dir).unwrap();
    /// assert_eq!(path, Wanted::parse("00bgd045z0d4icpbc2yyz4gx48ak44la-a", &dir).unwrap());
    /// assert_eq!(path.hash_part(), Wanted::parse("00bgd045z0d4icpbc2yyz4gx48ak44la", &dir).unwrap().hash_part());
    /// ```
    pub fn parse(text: &str, store_dir: &StoreDir) -> Result<Self, WantedError> {
        let base = match text.strip_prefix(store_dir.as_str()) {
            Some(below) => below.trim_start_matches('/').split('/').next().unwrap_or_default(),
            None => text,
        };
        if let Ok(hash_part) = HashPart::parse(base.as_bytes()) {
            return Ok(Self::HashPart(hash_part));
        }
        StorePath::parse(base).map(Self::Path).map_err(|source| WantedError {
            text: text.to_owned(),
            store_dir: store_dir.clone(),
            source,
        })
    }

    /// Its hash part.
    pub fn hash_part(&self) -> HashPart {
        match self {
            Self::Path(path) => path.hash_part(),
            Self::HashPart(hash_part) => *hash_part,
        }
    }

    /// Whether it matches a path.
    pub fn is(&self, path: &StorePath) -> bool {
        match self {
            Self::Path(wanted) => wanted == path,
            Self::HashPart(hash_part) => *hash_part == path.hash_part(),
        }
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.fmt(f),
            Self::HashPart(hash_part) => hash_part.fmt(f),
        }
    }
}
