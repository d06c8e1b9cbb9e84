//! The `Compression` of a narinfo.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// How the file behind a narinfo's `URL` is compressed: every name that Nix knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Compression {
    /// Not compressed.
    None,
    /// Brotli.
    Brotli,
    /// bzip2: for historical reasons the default of a narinfo without `Compression`.
    #[default]
    Bzip2,
    /// compress (`.Z`).
    Compress,
    /// grzip.
    Grzip,
    /// gzip, possibly with several members.
    Gzip,
    /// lrzip.
    Lrzip,
    /// LZ4, frame format.
    Lz4,
    /// lzip.
    Lzip,
    /// LZMA (`.lzma`).
    Lzma,
    /// lzop.
    Lzop,
    /// xz, possibly with several blocks.
    Xz,
    /// Zstandard, possibly with several frames.
    Zstd,
}

/// The name is not one of the compressions that Nix knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("unknown compression")]
pub struct UnknownCompression;

impl Compression {
    /// All compressions that Nix knows.
    pub const ALL: [Self; 13] = [
        Self::None,
        Self::Brotli,
        Self::Bzip2,
        Self::Compress,
        Self::Grzip,
        Self::Gzip,
        Self::Lrzip,
        Self::Lz4,
        Self::Lzip,
        Self::Lzma,
        Self::Lzop,
        Self::Xz,
        Self::Zstd,
    ];

    /// The name that narinfos use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Brotli => "br",
            Self::Bzip2 => "bzip2",
            Self::Compress => "compress",
            Self::Grzip => "grzip",
            Self::Gzip => "gzip",
            Self::Lrzip => "lrzip",
            Self::Lz4 => "lz4",
            Self::Lzip => "lzip",
            Self::Lzma => "lzma",
            Self::Lzop => "lzop",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
        }
    }

    /// The extension that Nix appends to `.nar` in file names. Empty if Nix defines none.
    pub const fn file_extension(self) -> &'static str {
        match self {
            Self::Xz => ".xz",
            Self::Bzip2 => ".bz2",
            Self::Zstd => ".zst",
            Self::Lzip => ".lzip",
            Self::Lz4 => ".lz4",
            Self::Brotli => ".br",
            _ => "",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Compression {
    type Err = UnknownCompression;

    fn from_str(name: &str) -> Result<Self, UnknownCompression> {
        Self::ALL.into_iter().find(|compression| compression.name() == name).ok_or(UnknownCompression)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for compression in Compression::ALL {
            assert_eq!(compression.name().parse(), Ok(compression));
        }
        for bad in ["", "XZ", "zst", "xz "] {
            assert_eq!(bad.parse::<Compression>(), Err(UnknownCompression));
        }
    }
}
