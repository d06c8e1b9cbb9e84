//! narinfo: a binary cache's metadata of a store path.
//!
//! Format: Nix `libstore/nar-info.cc`. Parsing preserves the order of the lines, unknown keys and the encoding of
//! hashes, so that a parsed narinfo is rendered as the same text.

mod parse;
mod render;

use std::collections::BTreeSet;

use crate::compression::Compression;
use crate::content_address::ContentAddress;
use crate::hash::{Encoding, Hash, NarHash};
use crate::path_info::PathInfo;
use crate::signing::signature::{Signature, fingerprint};
use crate::store_path::{StoreDir, StorePath};

pub use parse::{NarInfoError, ValueError};

/// The maximum size of a narinfo, in bytes. The largest real ones, with thousands of references, have a few 100 KiB.
pub const NARINFO_LEN_MAX: usize = 1024 * 1024;

/// The maximum number of signatures in a narinfo: checking one takes about 50 µs.
pub const SIGNATURES_MAX: usize = 256;

/// The key of the line with [`NarInfo::build_seconds`], which Nix ignores, as it does all that it does not know.
const BUILD_SECONDS_KEY: &str = "NarvalBuildSeconds";

/// The longest build that is believed, in seconds: 30 days.
const BUILD_SECONDS_MAX: u64 = 30 * 24 * 60 * 60;

/// The MIME type of a narinfo.
pub const MIME_TYPE: &str = "text/x-nix-narinfo";

/// A binary cache's metadata of a store path.
///
/// ```
/// use narval_nix::{NarInfo, StoreDir};
/// let text = "StorePath: /nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-a\n\
///     URL: nar/a.nar\n\
///     Compression: none\n\
///     NarHash: sha256:0ip26j2h11n1kgkz36rl4akv694yz65hr72q4kv4b3lxcbi65b3p\n\
///     NarSize: 112\n\
///     References: \n";
/// let info = NarInfo::parse(text.as_bytes(), &StoreDir::default()).unwrap();
/// assert_eq!(info.nar_size, 112);
/// assert_eq!(info.render(&StoreDir::default()), text);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NarInfo {
    /// The path. A client must check that its hash part is the requested one.
    pub path: StorePath,
    /// The URL of the NAR: absolute, or relative to the cache's URL with a trailing slash.
    pub url: String,
    /// How the file at `url` is compressed.
    pub compression: Compression,
    /// Hash of the file at `url`. Not covered by signatures.
    pub file_hash: Option<Hash>,
    /// Size in bytes of the file at `url`. Not covered by signatures.
    pub file_size: Option<u64>,
    /// SHA-256 of the uncompressed NAR.
    pub nar_hash: NarHash,
    /// Size of the uncompressed NAR in bytes, never 0.
    pub nar_size: u64,
    /// The paths it refers to, in the order of the text. May include the path itself.
    pub references: Vec<StorePath>,
    /// The derivation that it was built from. Not covered by signatures.
    pub deriver: Option<StorePath>,
    /// Its signatures, in the order of the text.
    pub signatures: Vec<Signature>,
    /// Its content address, if it has one. Not covered by signatures.
    pub ca: Option<ContentAddress>,
    /// Whether to omit the `References` line if there are none, as nix-serve does. Nix always writes it.
    pub omit_empty_references: bool,
    form: Form,
}

impl NarInfo {
    /// Makes the narinfo of a path in a store, for a NAR at `url`.
    pub fn new(info: &PathInfo, url: impl Into<String>, compression: Compression) -> Self {
        Self {
            path: info.path.clone(),
            url: url.into(),
            compression,
            file_hash: None,
            file_size: None,
            nar_hash: info.nar_hash,
            nar_size: info.nar_size,
            references: info.references.iter().cloned().collect(),
            deriver: info.deriver.clone(),
            signatures: info.signatures.clone(),
            ca: info.ca,
            omit_empty_references: false,
            form: Form::default(),
        }
    }

    /// The references, sorted.
    pub fn reference_set(&self) -> BTreeSet<StorePath> {
        self.references.iter().cloned().collect()
    }

    /// The fingerprint: the text that signatures of this path sign.
    pub fn fingerprint(&self, store_dir: &StoreDir) -> String {
        fingerprint(store_dir, &self.path, &self.nar_hash, self.nar_size, &self.reference_set())
    }

    /// The record of this path in a store, registered at the given time (seconds since 1970).
    pub fn path_info(&self, registration_time: u64) -> PathInfo {
        PathInfo {
            path: self.path.clone(),
            nar_hash: self.nar_hash,
            nar_size: self.nar_size,
            references: self.reference_set(),
            deriver: self.deriver.clone(),
            registration_time,
            ultimate: false,
            signatures: self.signatures.clone(),
            ca: self.ca,
        }
    }

    /// The lines with unknown keys, in order. Malformed signatures are among them, with the key `Sig`.
    pub fn unknown(&self) -> impl Iterator<Item = (&str, &str)> {
        self.form.lines.iter().filter_map(|line| match line {
            Line::Unknown { key, value } => Some((&**key, &**value)),
            Line::Known(_) | Line::Odd(_) => None,
        })
    }

    /// How long the derivation took to build, in seconds, as whoever pushed the path has said. Not covered by signatures, and for statistics only.
    pub fn build_seconds(&self) -> Option<u64> {
        let (_, value) = self.unknown().find(|(key, _)| *key == BUILD_SECONDS_KEY)?;
        value.parse().ok().filter(|seconds| *seconds <= BUILD_SECONDS_MAX)
    }

    /// Says how long the derivation took to build, if nothing is said yet.
    pub fn set_build_seconds(&mut self, seconds: u64) {
        if seconds <= BUILD_SECONDS_MAX && self.build_seconds().is_none() {
            self.add_unknown(BUILD_SECONDS_KEY, &seconds.to_string());
        }
    }

    /// Appends a line with an unknown key. Returns `false`, and adds nothing, if Nix knows the key, or if the text
    /// would not be a single line.
    pub fn add_unknown(&mut self, key: &str, value: &str) -> bool {
        let legal = !key.is_empty()
            && Key::from_name(key).is_none()
            && !key.contains([':', '\n', '\r'])
            && !value.contains(['\n', '\r']);
        if legal {
            self.form.lines.push(Line::Unknown { key: key.into(), value: value.into() });
        }
        legal
    }
}

/// How a narinfo was written, where its fields do not determine that.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Form {
    /// The lines in their order. Known keys that are not among them follow in Nix's order.
    lines: Vec<Line>,
    /// No `Compression` line, or an empty one, means bzip2.
    compression_defaulted: bool,
    file_hash_encoding: Encoding,
    nar_hash_encoding: Encoding,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Line {
    Known(Key),
    Unknown {
        key: Box<str>,
        value: Box<str>,
    },
    /// A line that does not have the form `Key: value`, with an unknown key.
    Odd(Box<str>),
}

/// The keys that Nix knows, in the order in which it writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Key {
    StorePath,
    Url,
    Compression,
    FileHash,
    FileSize,
    NarHash,
    NarSize,
    References,
    Deriver,
    Sig,
    Ca,
}

impl Key {
    const ALL: [Self; 11] = [
        Self::StorePath,
        Self::Url,
        Self::Compression,
        Self::FileHash,
        Self::FileSize,
        Self::NarHash,
        Self::NarSize,
        Self::References,
        Self::Deriver,
        Self::Sig,
        Self::Ca,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::StorePath => "StorePath",
            Self::Url => "URL",
            Self::Compression => "Compression",
            Self::FileHash => "FileHash",
            Self::FileSize => "FileSize",
            Self::NarHash => "NarHash",
            Self::NarSize => "NarSize",
            Self::References => "References",
            Self::Deriver => "Deriver",
            Self::Sig => "Sig",
            Self::Ca => "CA",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.name() == name)
    }
}

/// The value of `Deriver` for "none".
const UNKNOWN_DERIVER: &str = "unknown-deriver";

#[cfg(test)]
mod tests;
