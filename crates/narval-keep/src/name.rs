//! Untrusted names that become file names: of caches and of NARs.

use std::fmt;
use std::str::FromStr;

use narval_nix::nix32::Nix32Error;
use narval_nix::{Compression, NarHash, Sha256};
use thiserror::Error;

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

/// The name that Nix gives to a NAR's file: `<FileHash>.nar`, and an extension for some compressions.
///
/// Format: Nix `libstore/binary-cache-store.cc` (`addToStoreCommon`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NarFileName {
    file_hash: Sha256,
    extension: &'static str,
}

impl NarFileName {
    /// Characters of the hash.
    const HASH_LEN: usize = 52;

    /// The name of a file with this hash and compression.
    pub fn new(file_hash: Sha256, compression: Compression) -> Self {
        Self { file_hash, extension: compression.file_extension() }
    }

    /// Parses a name, without the `nar/` before it.
    ///
    /// # Errors
    /// If it is invalid.
    pub fn parse(name: &str) -> Result<Self, NarFileNameError> {
        let (hash, rest) = name.split_at_checked(Self::HASH_LEN).ok_or(NarFileNameError::Shape)?;
        let found = rest.strip_prefix(".nar").ok_or(NarFileNameError::Shape)?;
        let extensions = Compression::ALL.map(Compression::file_extension);
        let extension = extensions.into_iter().find(|known| *known == found).ok_or(NarFileNameError::Shape)?;
        Ok(Self { file_hash: Sha256::from_nix32(hash.as_bytes())?, extension })
    }

    /// SHA-256 of the file.
    pub const fn file_hash(&self) -> &Sha256 {
        &self.file_hash
    }

    /// The compression that the extension means; `None` without an extension, which several compressions have.
    pub fn compression(&self) -> Option<Compression> {
        let named = |compression: &Compression| compression.file_extension() == self.extension;
        if self.extension.is_empty() { None } else { Compression::ALL.into_iter().find(named) }
    }
}

impl fmt::Display for NarFileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.nar{}", self.file_hash.to_nix32(), self.extension)
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
