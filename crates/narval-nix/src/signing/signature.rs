//! Signatures of store paths: `<key name>:<base64 of 64 bytes>` over a fingerprint of the path's metadata.
//!
//! Format: Nix `libutil/signature/local-keys.cc`, `libstore/path-info.cc` (`fingerprint`).

use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::str::FromStr;

use base64::{Engine, engine::general_purpose::STANDARD};
use thiserror::Error;

use crate::hash::{NarHash, decode_base64};
use crate::store_path::{StoreDir, StorePath};

/// The maximum length of a key name, in bytes. Nix has no limit; real names are host names with a number.
pub const KEY_NAME_LEN_MAX: usize = 256;

/// The length of an Ed25519 signature, in bytes.
pub const SIGNATURE_LEN: usize = 64;

/// Why a signature or key was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum KeyTextError {
    /// The text has no colon.
    #[error("expected '<key name>:<base64>'")]
    NoColon,
    /// The name is empty, too long, or has white space or control characters.
    #[error("a key name has 1 to {KEY_NAME_LEN_MAX} bytes and no white space or control characters")]
    Name,
    /// Not the base64 of the right number of bytes.
    #[error("expected the base64 of {expected} bytes after the key name")]
    Base64 {
        /// The expected number of bytes.
        expected: usize,
    },
    /// The public key is not a point on the curve.
    #[error("not an Ed25519 public key")]
    PublicKey,
    /// The second half of the secret key is not the public key of the first.
    #[error("the two halves of the secret key do not match")]
    SecretKey,
}

/// Splits `<name>:<base64>`, decodes into `out`, and returns the name.
pub(crate) fn parse_named<'a>(text: &'a str, out: &mut [u8]) -> Result<&'a str, KeyTextError> {
    let (name, payload) = text.split_once(':').ok_or(KeyTextError::NoColon)?;
    check_key_name(name)?;
    decode_base64(payload, out).map_err(|_| KeyTextError::Base64 { expected: out.len() })?;
    Ok(name)
}

/// Checks a key name, which must be usable before a colon, on a line, and in lists separated by spaces.
pub(crate) fn check_key_name(name: &str) -> Result<(), KeyTextError> {
    let legal = !name.is_empty()
        && name.len() <= KEY_NAME_LEN_MAX
        && !name.chars().any(|c| c == ':' || c.is_whitespace() || c.is_control());
    if legal { Ok(()) } else { Err(KeyTextError::Name) }
}

/// A signature and the name of the key that made it. Ordered by name, then bytes.
///
/// ```
/// use narval_nix::Signature;
/// let text = "cache.nixos.org-1:sn5s/RrqEI+YG6/PjwdbPjcAC7rcta7sJU4mFOawGvJBLsWkyLtBrT2EuFt/LJjWkTZ+ZWOI9NTtjo/woMdvAg==";
/// assert_eq!(text.parse::<Signature>().unwrap().to_string(), text);
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signature {
    key_name: Box<str>,
    bytes: [u8; SIGNATURE_LEN],
}

impl Signature {
    /// Makes a signature from its parts.
    pub fn new(key_name: &str, bytes: [u8; SIGNATURE_LEN]) -> Result<Self, KeyTextError> {
        check_key_name(key_name)?;
        Ok(Self { key_name: key_name.into(), bytes })
    }

    /// Makes a signature by a key whose name has been checked.
    pub(crate) fn from_checked(key_name: &str, bytes: [u8; SIGNATURE_LEN]) -> Self {
        Self { key_name: key_name.into(), bytes }
    }

    /// The name of the key.
    pub fn key_name(&self) -> &str {
        &self.key_name
    }

    /// The 64 bytes.
    pub const fn bytes(&self) -> &[u8; SIGNATURE_LEN] {
        &self.bytes
    }

    /// The 64 bytes in base64, without the name.
    pub fn to_base64(&self) -> String {
        STANDARD.encode(self.bytes)
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.key_name, self.to_base64())
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Signature {
    type Err = KeyTextError;

    fn from_str(text: &str) -> Result<Self, KeyTextError> {
        let mut bytes = [0; SIGNATURE_LEN];
        let key_name = parse_named(text, &mut bytes)?.into();
        Ok(Self { key_name, bytes })
    }
}

/// The text that signatures of a store path sign:
/// `1;<full path>;sha256:<nix32>;<NAR size>;<full paths of the references, sorted, separated by commas>`.
pub fn fingerprint(
    store_dir: &StoreDir,
    path: &StorePath,
    nar_hash: &NarHash,
    nar_size: u64,
    references: &BTreeSet<StorePath>,
) -> String {
    let mut text = format!("1;{};{nar_hash};{nar_size};", store_dir.display(path));
    for (index, reference) in references.iter().enumerate() {
        let separator = if index == 0 { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = write!(text, "{separator}{}", store_dir.display(reference));
    }
    text
}
