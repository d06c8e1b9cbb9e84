//! Untrusted names that become file names: of caches and of NARs.

use std::fmt;
use std::str::FromStr;

use narval_nix::nix32::{self, Nix32Error};
use narval_nix::{Compression, NarHash, Sha256};
use thiserror::Error;

#[cfg(test)]
use crate::rule::holds;

/// The maximum length of a cache name in bytes.
pub const CACHE_NAME_LEN_MAX: usize = 64;

/// The cache that is served at `/`.
pub const DEFAULT_CACHE: &str = "default";

/// Why a text is not the name of a cache.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "a cache name must have 1 to {CACHE_NAME_LEN_MAX} characters of a-z, 0-9, '-', '_' and '.', and start with a letter or a digit"
)]
pub struct CacheNameError;

/// The name of a cache, used as a folder, in URLs and in tokens. Cheap to clone.
///
/// ```
/// use narval_keep::CacheName;
/// assert!("team-1".parse::<CacheName>().is_ok());
/// assert!("../etc".parse::<CacheName>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CacheName(Box<str>);

impl CacheName {
    /// Parses a name.
    ///
    /// # Errors
    /// If it is invalid.
    pub fn parse(text: &str) -> Result<Self, CacheNameError> {
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
        let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if first && text.len() <= CACHE_NAME_LEN_MAX && text.bytes().all(legal) {
            Ok(Self(text.into()))
        } else {
            Err(CacheNameError)
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for CacheName {
    /// [`DEFAULT_CACHE`].
    fn default() -> Self {
        Self(DEFAULT_CACHE.into())
    }
}

impl fmt::Display for CacheName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for CacheName {
    type Err = CacheNameError;

    fn from_str(text: &str) -> Result<Self, CacheNameError> {
        Self::parse(text)
    }
}

/// Why a text is not the name of a NAR's file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NarFileNameError {
    /// It does not have this format.
    #[error(
        "a NAR is named '<52 nix32 characters of its file's SHA-256>.nar', then nothing or .xz .bz2 .zst .lzip .lz4 .br"
    )]
    Shape,
    /// The characters are not a hash.
    #[error("the name of the NAR does not start with a SHA-256: {0}")]
    Hash(#[from] Nix32Error),
}

/// The name of a NAR's file. Nix gives it `<FileHash>.nar`, and an extension for some compressions. A cache stores it under a name that no
/// other file ever has: `<hash>-<16 random characters>.nar`, with the hash that the client has named, and the same extension.
///
/// Format: Nix `libstore/binary-cache-store.cc` (`addToStoreCommon`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NarFileName {
    hash: Sha256,
    random: Option<[u8; Self::RANDOM_LEN]>,
    extension: &'static str,
}

impl NarFileName {
    /// Characters of the hash.
    const HASH_LEN: usize = 52;

    /// Random bytes: 16 characters.
    const RANDOM_LEN: usize = 10;

    /// The name that clients give to a file with this hash and compression.
    pub fn new(hash: Sha256, compression: Compression) -> Self {
        Self { hash, random: None, extension: compression.file_extension() }
    }

    /// Parses a name, without the `nar/` before it.
    ///
    /// # Errors
    /// If it is invalid.
    pub fn parse(name: &str) -> Result<Self, NarFileNameError> {
        let (hash, rest) = name.split_at_checked(Self::HASH_LEN).ok_or(NarFileNameError::Shape)?;
        let (random, rest) = match rest.strip_prefix('-') {
            Some(rest) => {
                let random = rest.split_at_checked(nix32::encoded_len(Self::RANDOM_LEN));
                let (random, rest) = random.ok_or(NarFileNameError::Shape)?;
                (Some(nix32::decode(random.as_bytes())?), rest)
            }
            None => (None, rest),
        };
        let found = rest.strip_prefix(".nar").ok_or(NarFileNameError::Shape)?;
        let extensions = Compression::ALL.map(Compression::file_extension);
        let extension = extensions.into_iter().find(|known| *known == found).ok_or(NarFileNameError::Shape)?;
        Ok(Self { hash: Sha256::from_nix32(hash.as_bytes())?, random, extension })
    }

    /// The hash in it: of the file, as Nix names it, or of the NAR.
    pub const fn hash(&self) -> &Sha256 {
        &self.hash
    }

    /// Whether a cache has chosen it.
    pub const fn is_unique(&self) -> bool {
        self.random.is_some()
    }

    /// Whether a file with this compression can have it.
    pub(crate) fn fits(&self, compression: &Compression) -> bool {
        compression.file_extension() == self.extension
    }

    /// A name that no other file ever has.
    pub(crate) fn unique(self) -> Result<Self, getrandom::Error> {
        let mut random = [0; Self::RANDOM_LEN];
        #[cfg(test)]
        if !holds!(Unique) {
            return Ok(self);
        }
        #[cfg(test)]
        if let Some(simulated) = crate::simulator::task::random() {
            random[2..].copy_from_slice(&simulated.to_be_bytes());
            return Ok(Self { random: Some(random), ..self });
        }
        getrandom::fill(&mut random)?;
        Ok(Self { random: Some(random), ..self })
    }

    /// The compression that the extension means; `None` without an extension, which several compressions have.
    pub fn compression(&self) -> Option<Compression> {
        if self.extension.is_empty() { None } else { Compression::ALL.into_iter().find(|known| self.fits(known)) }
    }
}

impl fmt::Display for NarFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = self.hash.to_nix32();
        match &self.random {
            Some(random) => write!(f, "{hash}-{}.nar{}", nix32::encode(random), self.extension),
            None => write!(f, "{hash}.nar{}", self.extension),
        }
    }
}

impl FromStr for NarFileName {
    type Err = NarFileNameError;

    fn from_str(text: &str) -> Result<Self, NarFileNameError> {
        Self::parse(text)
    }
}

/// How a client identifies a NAR that it uploads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NarTarget {
    /// By the hash of its file, as Nix does.
    File(NarFileName),
    /// By the hash of the NAR, so the file can be produced while it is sent.
    Nar {
        /// SHA-256 of the NAR.
        nar_hash: NarHash,
        /// How the file is compressed.
        compression: Compression,
    },
}

impl NarTarget {
    /// The compression, if it is known in advance.
    pub fn compression(&self) -> Option<Compression> {
        match self {
            Self::File(name) => name.compression(),
            Self::Nar { compression, .. } => Some(*compression),
        }
    }
}

impl fmt::Display for NarTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(name) => name.fmt(f),
            Self::Nar { nar_hash, compression } => NarFileName::new(*nar_hash, *compression).fmt(f),
        }
    }
}

/// The longest name of a machine: a host's name has 64 bytes at most.
const MACHINE_NAME_LEN_MAX: usize = 64;
/// The name of a machine: a letter or a digit, then letters, digits, and `. _ -`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MachineName(Box<str>);

impl MachineName {
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MachineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is not the name of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "not the name of a machine: it begins with a letter or digit and has 1 to {} letters, digits, and . _ -",
    MACHINE_NAME_LEN_MAX
)]
pub struct InvalidMachineName;

impl FromStr for MachineName {
    type Err = InvalidMachineName;

    fn from_str(text: &str) -> Result<Self, InvalidMachineName> {
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let is_name = begins && text.len() <= MACHINE_NAME_LEN_MAX && text.bytes().all(is_legal);
        if is_name { Ok(Self(text.into())) } else { Err(InvalidMachineName) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_caches() {
        for good in ["default", "a", "team-1.x_y", "0"] {
            assert_eq!(good.parse::<CacheName>().unwrap().to_string(), good);
        }
        for bad in ["", ".", "..", ".hidden", "-a", "A", "a/b", "a b", "é", &"a".repeat(65)] {
            assert_eq!(bad.parse::<CacheName>(), Err(CacheNameError), "{bad:?}");
        }
    }

    #[test]
    fn names_of_nars() {
        let hash = Sha256::of(b"").to_nix32();
        for (extension, compression) in [
            ("", None),
            (".xz", Some(Compression::Xz)),
            (".zst", Some(Compression::Zstd)),
            (".br", Some(Compression::Brotli)),
        ] {
            let text = format!("{hash}.nar{extension}");
            let name: NarFileName = text.parse().unwrap();
            assert_eq!((name.to_string(), name.compression()), (text, compression));
        }
        for bad in ["", "x.nar", &format!("{hash}.nar.gz"), &format!("{hash}.nar/"), &format!("../{hash}.nar"), &hash] {
            assert!(bad.parse::<NarFileName>().is_err(), "{bad:?}");
        }
        assert!("ééééééééééééééééééééééééééééé.nar".parse::<NarFileName>().is_err());
    }
}
