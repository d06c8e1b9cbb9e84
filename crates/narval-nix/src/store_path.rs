//! Store paths, `/nix/store/<32 nix32 characters>-<name>`, as types that cannot hold an invalid value.
//!
//! Format: Nix `libstore/path.cc` (`checkName`), `libstore/store-dir-config.cc`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

use crate::hash::nix32;

/// The length of a store path's hash part, in characters.
pub const HASH_PART_LEN: usize = 32;

/// The maximum length of the name after the hash part and the dash, in bytes.
pub const NAME_LEN_MAX: usize = 211;

/// The maximum length of a base name: hash part, dash and name.
pub const BASE_NAME_LEN_MAX: usize = HASH_PART_LEN + 1 + NAME_LEN_MAX;

/// The maximum length of a store directory, in bytes: with a base name it stays below Linux's `PATH_MAX`.
pub const STORE_DIR_LEN_MAX: usize = 3072;

/// Why a store path was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum StorePathError {
    /// Shorter than a hash part, a dash and one character, or without the dash.
    #[error("a store path is named '<{HASH_PART_LEN} nix32 characters>-<name>'")]
    Shape,
    /// The hash part is not 32 nix32 characters.
    #[error("invalid hash part: {0}")]
    HashPart(#[from] nix32::Nix32Error),
    /// The name is empty.
    #[error("the name is empty")]
    EmptyName,
    /// The name is longer than [`NAME_LEN_MAX`].
    #[error("the name has {found} bytes, more than {NAME_LEN_MAX}")]
    NameTooLong {
        /// Bytes found.
        found: usize,
    },
    /// The name is `.` or `..`, or starts with `.-` or `..-`.
    #[error("the name may not be '.' or '..', nor start with '.-' or '..-'")]
    DotName,
    /// A byte outside `0-9 a-z A-Z + - . _ ? =`.
    #[error("byte {index} of the name is not one of 0-9 a-z A-Z + - . _ ? =")]
    NameCharacter {
        /// The position in the name, starting at 0.
        index: usize,
    },
    /// A full path that is not directly below the store directory.
    #[error("the path is not directly below the store directory")]
    NotInStore,
}

/// Why a store directory was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum StoreDirError {
    /// Not absolute, or not normalised.
    #[error("a store directory is an absolute path without '.', '..', empty components or a trailing slash")]
    NotCanonical,
    /// Contains a control character.
    #[error("a store directory may not contain control characters")]
    Control,
    /// Longer than [`STORE_DIR_LEN_MAX`].
    #[error("a store directory has at most {STORE_DIR_LEN_MAX} bytes")]
    TooLong,
}

/// The 32 nix32 characters that identify a store path, and that its narinfo is named after.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HashPart([u8; HASH_PART_LEN]);

impl HashPart {
    /// Parses exactly 32 nix32 characters.
    pub fn parse(text: &[u8]) -> Result<Self, StorePathError> {
        // 32 characters are exactly 160 bits, so every combination of digits is canonical.
        if text.len() != HASH_PART_LEN || !nix32::has_digits_only(text) {
            nix32::decode::<20>(text)?;
        }
        let mut part = [0; HASH_PART_LEN];
        part.copy_from_slice(text);
        Ok(Self(part))
    }

    /// Makes a hash part from 160 bits.
    pub fn from_digest(digest: &[u8; 20]) -> Self {
        let mut part = [b'0'; HASH_PART_LEN];
        part.copy_from_slice(nix32::encode(digest).as_bytes());
        Self(part)
    }

    /// The characters.
    pub fn as_str(&self) -> &str {
        // Always ASCII, so the default is never used.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The characters as bytes.
    pub const fn as_bytes(&self) -> &[u8; HASH_PART_LEN] {
        &self.0
    }
}

impl fmt::Display for HashPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for HashPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for HashPart {
    type Err = StorePathError;

    fn from_str(text: &str) -> Result<Self, StorePathError> {
        Self::parse(text.as_bytes())
    }
}

/// The part of a store path after the hash part and its dash: 1 to 211 bytes of `[0-9a-zA-Z+\-._?=]`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorePathName(Arc<str>);

impl StorePathName {
    /// Parses a name.
    pub fn parse(text: &str) -> Result<Self, StorePathError> {
        check_name(text)?;
        Ok(Self(text.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StorePathName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StorePathName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for StorePathName {
    type Err = StorePathError;

    fn from_str(text: &str) -> Result<Self, StorePathError> {
        Self::parse(text)
    }
}

/// A store path without its store directory: the base name, `<hash part>-<name>`. Cheap to clone. Ordered by the bytes
/// of the base name, as Nix sorts references.
///
/// ```
/// use narval_nix::{StoreDir, StorePath};
/// let path = StorePath::parse("00bgd045z0d4icpbc2yyz4gx48ak44la-net-tools-1.60").unwrap();
/// assert_eq!(path.name(), "net-tools-1.60");
/// assert_eq!(StoreDir::default().display(&path).to_string(), "/nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-net-tools-1.60");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorePath(Arc<str>);

impl StorePath {
    /// Parses a base name.
    pub fn parse(base_name: &str) -> Result<Self, StorePathError> {
        check_base_name(base_name.as_bytes())?;
        Ok(Self(base_name.into()))
    }

    /// Parses a base name from bytes. Bytes that are not UTF-8 are an error.
    pub fn parse_bytes(base_name: &[u8]) -> Result<Self, StorePathError> {
        check_base_name(base_name)?;
        // A valid base name is ASCII, so this never fails.
        std::str::from_utf8(base_name).map(|text| Self(text.into())).map_err(|_| StorePathError::Shape)
    }

    /// Makes a store path from its two parts.
    pub fn from_parts(hash_part: HashPart, name: &StorePathName) -> Self {
        Self(format!("{hash_part}-{name}").into())
    }

    /// `<hash part>-<name>`.
    pub fn base_name(&self) -> &str {
        &self.0
    }

    /// The hash part.
    pub fn hash_part(&self) -> HashPart {
        let mut part = [0; HASH_PART_LEN];
        part.copy_from_slice(&self.0.as_bytes()[..HASH_PART_LEN]);
        HashPart(part)
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0[HASH_PART_LEN + 1..]
    }

    /// Whether this is a derivation: the name ends in `.drv`.
    pub fn is_derivation(&self) -> bool {
        self.0.ends_with(".drv")
    }
}

impl fmt::Display for StorePath {
    /// The base name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StorePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for StorePath {
    type Err = StorePathError;

    fn from_str(base_name: &str) -> Result<Self, StorePathError> {
        Self::parse(base_name)
    }
}

/// The directory in the names of store paths, `/nix/store` by default. This is the logical directory that hashes and
/// narinfos refer to; the files may be elsewhere.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreDir(Arc<str>);

impl StoreDir {
    /// Nix's default.
    pub const DEFAULT: &'static str = "/nix/store";

    /// Parses a normalised absolute path: no `.`, `..`, `//` or trailing slash.
    pub fn parse_dir(text: &str) -> Result<Self, StoreDirError> {
        if text.len() > STORE_DIR_LEN_MAX {
            return Err(StoreDirError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(StoreDirError::Control);
        }
        let components = text.strip_prefix('/').ok_or(StoreDirError::NotCanonical)?;
        if components.split('/').any(|component| matches!(component, "" | "." | "..")) {
            return Err(StoreDirError::NotCanonical);
        }
        Ok(Self(text.into()))
    }

    /// The directory.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Parses the full path of a store path: this directory, a slash and a base name.
    pub fn parse(&self, full_path: &str) -> Result<StorePath, StorePathError> {
        self.parse_bytes(full_path.as_bytes())
    }

    /// Like [`StoreDir::parse`], from bytes.
    pub fn parse_bytes(&self, full_path: &[u8]) -> Result<StorePath, StorePathError> {
        let base_name = full_path.strip_prefix(self.0.as_bytes()).and_then(|rest| rest.strip_prefix(b"/"));
        StorePath::parse_bytes(base_name.ok_or(StorePathError::NotInStore)?)
    }

    /// Returns the full path of a store path, for printing.
    pub fn display<'a>(&'a self, path: &'a StorePath) -> FullPath<'a> {
        FullPath { store_dir: self, path }
    }
}

impl Default for StoreDir {
    fn default() -> Self {
        Self(Self::DEFAULT.into())
    }
}

impl fmt::Display for StoreDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StoreDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for StoreDir {
    type Err = StoreDirError;

    fn from_str(text: &str) -> Result<Self, StoreDirError> {
        Self::parse_dir(text)
    }
}

/// Prints as `<store dir>/<base name>`. Made by [`StoreDir::display`].
#[derive(Debug, Clone, Copy)]
pub struct FullPath<'a> {
    store_dir: &'a StoreDir,
    path: &'a StorePath,
}

impl fmt::Display for FullPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.store_dir, self.path)
    }
}

fn check_base_name(base_name: &[u8]) -> Result<(), StorePathError> {
    match base_name.split_at_checked(HASH_PART_LEN) {
        Some((hash_part, [b'-', name @ ..])) => {
            HashPart::parse(hash_part)?;
            check_name_bytes(name)
        }
        _ => Err(StorePathError::Shape),
    }
}

fn check_name(name: &str) -> Result<(), StorePathError> {
    check_name_bytes(name.as_bytes())
}

fn check_name_bytes(name: &[u8]) -> Result<(), StorePathError> {
    if name.len() > NAME_LEN_MAX {
        return Err(StorePathError::NameTooLong { found: name.len() });
    }
    match name {
        [] => return Err(StorePathError::EmptyName),
        b"." | b".." | [b'.', b'-', ..] | [b'.', b'.', b'-', ..] => return Err(StorePathError::DotName),
        _ => {}
    }
    let legal = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-._?=".contains(byte);
    match name.iter().position(|byte| !legal(byte)) {
        Some(index) => Err(StorePathError::NameCharacter { index }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HASH: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la";

    #[test]
    fn parts() {
        let path = StorePath::parse(&format!("{HASH}-net-tools-1.60")).unwrap();
        assert_eq!(path.hash_part().as_str(), HASH);
        assert_eq!(path.name(), "net-tools-1.60");
        assert_eq!(StorePath::from_parts(path.hash_part(), &"net-tools-1.60".parse().unwrap()), path);
        assert!(!path.is_derivation());
    }

    #[test]
    fn names() {
        for good in ["a", ".gitignore", "...", "..a", ".a-", "A+b-c._?=9", &"n".repeat(NAME_LEN_MAX)] {
            assert_eq!(StorePathName::parse(good).map(|name| name.as_str().to_owned()).as_deref(), Ok(good));
        }
        for bad in
            ["", ".", "..", ".-", "..-", ".-a", "..-a", "a/b", "a b", "a\0", "ä", "a\n", &"n".repeat(NAME_LEN_MAX + 1)]
        {
            assert!(StorePathName::parse(bad).is_err(), "{bad:?}");
            assert!(StorePath::parse(&format!("{HASH}-{bad}")).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn shapes() {
        for bad in [
            "".to_owned(),
            HASH.to_owned(),
            format!("{HASH}_a"),
            format!("{}-a", &HASH[1..]),
            format!("{HASH}0-a"),
            format!("{}-a", HASH.replace('b', "e")),
            format!("{}-a", HASH.to_uppercase()),
            format!("{}é-a", &HASH[..31]),
        ] {
            assert!(StorePath::parse(&bad).is_err(), "{bad:?}");
        }
        assert!(StorePath::parse_bytes(&[0xff; 40]).is_err());
    }

    #[test]
    fn full_paths() {
        let store_dir = StoreDir::default();
        let full = format!("/nix/store/{HASH}-a");
        let path = store_dir.parse(&full).unwrap();
        assert_eq!(store_dir.display(&path).to_string(), full);
        assert_eq!(store_dir.parse_bytes(full.as_bytes()), Ok(path));
        for bad in [
            format!("/nix/store{HASH}-a"),
            format!("/nix/store//{HASH}-a"),
            format!("/nix/store/{HASH}-a/"),
            format!("/nix/store/{HASH}-a/b"),
            format!("/nix/storé/{HASH}-a"),
            format!("/other/{HASH}-a"),
            format!("{HASH}-a"),
        ] {
            assert!(store_dir.parse(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn store_dirs() {
        assert_eq!("/gnu/store".parse::<StoreDir>().unwrap().as_str(), "/gnu/store");
        for bad in ["", "/", "nix/store", "/nix/", "/nix//store", "/nix/../store", "/./store", "/nix\nURL: x", "/a\0"] {
            assert!(bad.parse::<StoreDir>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn sorted_by_bytes_of_the_base_name() {
        let mut paths = [format!("{HASH}-b"), format!("{HASH}-B"), format!("1{}-a", &HASH[1..])]
            .map(|base_name| StorePath::parse(&base_name).unwrap());
        paths.sort();
        assert_eq!(paths.map(|path| path.name().to_owned()), ["B", "b", "a"]);
    }

    proptest! {
        #[test]
        fn round_trip(digest in any::<[u8; 20]>(), name in "[0-9a-zA-Z+_?=][0-9a-zA-Z+._?=-]{0,210}") {
            let path = StorePath::from_parts(HashPart::from_digest(&digest), &name.parse().unwrap());
            prop_assert_eq!(StorePath::parse(path.base_name()).unwrap(), path.clone());
            prop_assert_eq!(path.name(), name);
        }
    }
}
