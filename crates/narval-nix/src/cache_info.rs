//! `nix-cache-info`: the metadata of a binary cache.
//!
//! Format: Nix `libstore/binary-cache-store.cc` (`init`).

use std::fmt;

use thiserror::Error;

use crate::store_path::{StoreDir, StoreDirError};

/// The largest `nix-cache-info` that is read, in bytes.
pub const CACHE_INFO_LEN_MAX: usize = 64 * 1024;

/// The metadata of a binary cache.
///
/// ```
/// let info = narval_nix::CacheInfo::parse(b"StoreDir: /nix/store\nWantMassQuery: 1\nPriority: 30\n").unwrap();
/// assert_eq!(info.priority, Some(30));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CacheInfo {
    /// The store directory that the cache's paths belong to.
    pub store_dir: StoreDir,
    /// Whether clients may query many paths at once.
    pub want_mass_query: bool,
    /// Its priority: caches with lower values are asked first. Without one, Nix assumes 0.
    pub priority: Option<i64>,
    /// Lines with other keys, in order.
    pub unknown: Vec<(String, String)>,
}

/// Why a `nix-cache-info` file was rejected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CacheInfoError {
    /// Longer than [`CACHE_INFO_LEN_MAX`].
    #[error("nix-cache-info has more than {CACHE_INFO_LEN_MAX} bytes")]
    TooLong,
    /// Not UTF-8.
    #[error("nix-cache-info is not UTF-8 text")]
    NotText,
    /// `StoreDir` is not a valid store directory.
    #[error("nix-cache-info line {line}: StoreDir: {error}")]
    StoreDir {
        /// The line number, starting at 1.
        line: usize,
        /// What is wrong with it.
        error: StoreDirError,
    },
    /// `Priority` is not a number.
    #[error("nix-cache-info line {line}: Priority is not a number")]
    Priority {
        /// The line number, starting at 1.
        line: usize,
    },
}

impl CacheInfo {
    /// Parses the file. Like Nix, ignores lines without a colon and lets a later line win over an earlier one.
    pub fn parse(text: &[u8]) -> Result<Self, CacheInfoError> {
        if text.len() > CACHE_INFO_LEN_MAX {
            return Err(CacheInfoError::TooLong);
        }
        let text = std::str::from_utf8(text).map_err(|_| CacheInfoError::NotText)?;
        let mut info = Self::default();
        for (index, content) in text.split('\n').enumerate() {
            let line = index + 1;
            let Some((key, value)) = content.split_once(':') else { continue };
            let value = value.trim();
            match key {
                "StoreDir" => {
                    info.store_dir = value.parse().map_err(|error| CacheInfoError::StoreDir { line, error })?;
                }
                "WantMassQuery" => info.want_mass_query = value == "1",
                "Priority" => info.priority = Some(value.parse().map_err(|_| CacheInfoError::Priority { line })?),
                _ => info.unknown.push((key.to_owned(), value.to_owned())),
            }
        }
        Ok(info)
    }
}

impl fmt::Display for CacheInfo {
    /// Writes the whole file, including the final newline.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "StoreDir: {}", self.store_dir)?;
        writeln!(f, "WantMassQuery: {}", u8::from(self.want_mass_query))?;
        if let Some(priority) = self.priority {
            writeln!(f, "Priority: {priority}")?;
        }
        self.unknown.iter().try_for_each(|(key, value)| writeln!(f, "{key}: {value}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_nix_serve() {
        let text = "StoreDir: /nix/store\nWantMassQuery: 1\nPriority: 30\n";
        let info = CacheInfo::parse(text.as_bytes()).unwrap();
        assert_eq!((info.store_dir.as_str(), info.want_mass_query, info.priority), ("/nix/store", true, Some(30)));
        assert_eq!(info.to_string(), text);
    }

    #[test]
    fn leniency_of_nix() {
        let info = CacheInfo::parse(b"nothing here\n\nPriority:\t 10 \r\nX: a: b\nPriority: -5").unwrap();
        assert_eq!(info.priority, Some(-5));
        assert_eq!(info.store_dir, StoreDir::default());
        assert!(!info.want_mass_query);
        assert_eq!(info.unknown, [("X".to_owned(), "a: b".to_owned())]);
        assert_eq!(CacheInfo::parse(b""), Ok(CacheInfo::default()));
    }

    #[test]
    fn refused() {
        assert_eq!(CacheInfo::parse(b"\nPriority: high\n"), Err(CacheInfoError::Priority { line: 2 }));
        assert!(matches!(CacheInfo::parse(b"StoreDir: nix\n"), Err(CacheInfoError::StoreDir { line: 1, .. })));
        assert_eq!(CacheInfo::parse(b"\xff"), Err(CacheInfoError::NotText));
        assert_eq!(CacheInfo::parse(&vec![b'a'; CACHE_INFO_LEN_MAX + 1]), Err(CacheInfoError::TooLong));
    }
}
