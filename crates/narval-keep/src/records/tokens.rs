//! Tokens, and the keys that caches sign with.

use serde::{Deserialize, Serialize};

/// A token as recorded in the index.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TokenRecord {
    pub(crate) id: String,
    /// SHA-256 of the whole token.
    #[serde(rename = "sha256")]
    pub(crate) hash: [u8; 32],
    pub(crate) label: String,
    /// Names of scopes, separated by commas.
    pub(crate) scopes: String,
    /// Patterns, separated by blanks.
    pub(crate) caches: String,
    pub(crate) created: u64,
    pub(crate) expires: Option<u64>,
    pub(crate) last_used: Option<u64>,
    pub(crate) revoked: Option<u64>,
}

/// A key that a cache signs with, as recorded in the index.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct SignKeyRecord {
    /// The name of the cache.
    #[serde(skip)]
    pub(crate) cache: String,
    pub(crate) name: String,
    /// In the format of Nix's files.
    pub(crate) secret: String,
    pub(crate) created: u64,
    pub(crate) ends: Option<u64>,
}
