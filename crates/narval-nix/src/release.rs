//! Releases: names that a cache gives to store paths, such as `api` for the last good build of a service.
//!
//! The format is Narval's own. A release has a name, a revision that only grows, and the store paths of its outputs by system. The cache signs it over
//! a canonical text, one field a line, so that whoever has the cache's bucket but not its key can neither make a release nor change one. Clients
//! remember revisions, so that an old release is not taken for the newest one.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::hash::{HashError, NarHash, Sha256};
use crate::signing::keys::{SecretKey, SignError, TrustedKeys};
use crate::signing::signature::{KeyTextError, Signature};
use crate::store_path::{StoreDir, StoreDirError, StorePath, StorePathError, StorePathName};

/// The maximum length of the name of a release, of a version, and of a system, in bytes.
pub const RELEASE_NAME_LEN_MAX: usize = 64;
/// The maximum number of paths of a release, over all systems.
pub const RELEASE_PATHS_MAX: usize = 256;
/// The maximum number of notes of a release.
pub const RELEASE_NOTES_MAX: usize = 16;
/// The maximum length of a note, in bytes.
pub const RELEASE_NOTE_LEN_MAX: usize = 1024;
/// The maximum length of the id of a cache, in bytes.
pub const CACHE_ID_LEN_MAX: usize = 256;
/// The maximum size of the JSON of a release, in bytes.
pub const RELEASE_LEN_MAX: usize = 256 * 1024;
/// The maximum number of signatures: a cache has few keys.
const SIGNATURES_MAX: usize = 32;
/// The version of the canonical text, with which it begins.
const TEXT_VERSION: &str = "narval-release-1";
/// In place of a revision or a version: the newest.
const LATEST: &str = "latest";

/// Why a release, or a part of one, was rejected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ReleaseError {
    /// The JSON is longer than [`RELEASE_LEN_MAX`].
    #[error("the release has more than {RELEASE_LEN_MAX} bytes")]
    TooLong,
    /// Not valid JSON of this format; the error gives the line and column.
    #[error("not a release: {0}")]
    Json(String),
    /// A name, version or system has characters that it may not have.
    #[error(
        "'{text}' is not the {what} of a release: it begins with a letter or digit and has 1 to {RELEASE_NAME_LEN_MAX} letters, digits, and . _ + -"
    )]
    Word {
        /// What it should be.
        what: &'static str,
        /// The text.
        text: String,
    },
    /// A version could be mistaken for a revision.
    #[error("'{0}' is not the version of a release: a number alone is a revision, and '{LATEST}' the newest one")]
    Version(String),
    /// Not a share of all machines.
    #[error("the share of machines that a release is for is a number of percent from 1 to 100")]
    Percent,
    /// Not a revision.
    #[error("the revision of a release is a number from 1 to {}", i64::MAX)]
    Revision,
    /// The id of the cache is empty, too long, or has characters that it may not have.
    #[error("the id of a cache has 1 to {CACHE_ID_LEN_MAX} bytes of ASCII without white space")]
    Cache,
    /// A note has a name or a text that it may not have.
    #[error(
        "note '{0}': a note is NAME=TEXT, a name as that of a release and a line of at most {RELEASE_NOTE_LEN_MAX} bytes"
    )]
    Note(String),
    /// More than the limit.
    #[error("a release has at most {limit} {what}")]
    TooMany {
        /// What.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// It has no path.
    #[error("a release has at least one path")]
    Empty,
    /// A store path or output name is invalid.
    #[error("not a path of a release: {0}")]
    Path(#[from] StorePathError),
    /// The store directory is invalid.
    #[error("not the store directory of a release: {0}")]
    StoreDir(#[from] StoreDirError),
    /// A hash is malformed.
    #[error("not the hash of a path of a release: {0}")]
    Hash(#[from] HashError),
    /// A signature is malformed.
    #[error("not a signature of a release: {0}")]
    Signature(#[from] KeyTextError),
}

/// Checks a name, a version or a system, which stand in URLs, in file names, and between `@`.
fn check_word(what: &'static str, text: &str) -> Result<(), ReleaseError> {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-".contains(&byte);
    let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if begins && text.len() <= RELEASE_NAME_LEN_MAX && text.bytes().all(is_legal) {
        return Ok(());
    }
    Err(ReleaseError::Word {
        what,
        text: text.chars().filter(|c| !c.is_control()).take(RELEASE_NAME_LEN_MAX).collect(),
    })
}

macro_rules! words {
    ($($(#[$doc:meta])* $type:ident = $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(Box<str>);

        impl $type {
            /// As text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

words! {
    /// The name of a release: a letter or a digit, then letters, digits, and `. _ + -`.
    ReleaseName = "name";
    /// The version of a release, as its author counts: like a name, but not a number alone.
    ReleaseVersion = "version";
    /// A system, such as `x86_64-linux`.
    ReleaseSystem = "system";
}

impl FromStr for ReleaseName {
    type Err = ReleaseError;

    fn from_str(text: &str) -> Result<Self, ReleaseError> {
        check_word("name", text)?;
        Ok(Self(text.into()))
    }
}

impl FromStr for ReleaseSystem {
    type Err = ReleaseError;

    fn from_str(text: &str) -> Result<Self, ReleaseError> {
        check_word("system", text)?;
        Ok(Self(text.into()))
    }
}

impl FromStr for ReleaseVersion {
    type Err = ReleaseError;

    fn from_str(text: &str) -> Result<Self, ReleaseError> {
        check_word("version", text)?;
        if text == LATEST || text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(ReleaseError::Version(text.to_owned()));
        }
        Ok(Self(text.into()))
    }
}

/// A revision, which databases keep as a signed number.
fn parse_revision(text: &str) -> Result<u64, ReleaseError> {
    let number = text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    number.ok_or(ReleaseError::Revision).and_then(check_revision)
}

fn check_revision(revision: u64) -> Result<u64, ReleaseError> {
    if revision == 0 || i64::try_from(revision).is_err() { Err(ReleaseError::Revision) } else { Ok(revision) }
}

/// Which release of a name is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The newest one.
    Latest,
    /// The one with this revision.
    Revision(u64),
    /// The newest one with this version.
    Version(ReleaseVersion),
}

impl FromStr for Which {
    type Err = ReleaseError;

    fn from_str(text: &str) -> Result<Self, ReleaseError> {
        match text {
            LATEST => Ok(Self::Latest),
            text if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                parse_revision(text).map(Self::Revision)
            }
            text => text.parse().map(Self::Version),
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Latest => f.write_str(LATEST),
            Self::Revision(revision) => write!(f, "{revision}"),
            Self::Version(version) => write!(f, "{version}"),
        }
    }
}

/// A release as users name it: `@api`, `@api@41`, `@api@1.4.2`.
///
/// ```
/// use narval_nix::release::{Selector, Which};
/// let selector: Selector = "@api@41".parse().unwrap();
/// assert_eq!((selector.name.as_str(), &selector.which), ("api", &Which::Revision(41)));
/// assert_eq!("@api@latest".parse::<Selector>().unwrap().to_string(), "@api");
/// assert!("api".parse::<Selector>().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    /// The name.
    pub name: ReleaseName,
    /// Which one.
    pub which: Which,
}

impl FromStr for Selector {
    type Err = ReleaseError;

    fn from_str(text: &str) -> Result<Self, ReleaseError> {
        let rest = text.strip_prefix('@').ok_or_else(|| ReleaseError::Word { what: "name", text: text.to_owned() })?;
        let (name, which) = rest.split_once('@').unwrap_or((rest, LATEST));
        Ok(Self { name: name.parse()?, which: which.parse()? })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.which {
            Which::Latest => write!(f, "@{}", self.name),
            which => write!(f, "@{}@{which}", self.name),
        }
    }
}

/// A path of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleasedPath {
    /// The path.
    pub path: StorePath,
    /// The hash of its NAR.
    pub nar_hash: NarHash,
}

/// The paths of a release, by system and output.
pub type ReleasedPaths = BTreeMap<ReleaseSystem, BTreeMap<StorePathName, ReleasedPath>>;

/// A release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    /// The store directory of its paths.
    pub store_dir: StoreDir,
    /// The id of the cache that has recorded it, which stays when the cache's address changes.
    pub cache: String,
    /// The name.
    pub name: ReleaseName,
    /// The revision: 1 for the first release of this name. None is used twice.
    pub revision: u64,
    /// When the cache recorded it, in seconds since 1970.
    pub created: u64,
    /// The version, if its author has given one.
    pub version: Option<ReleaseVersion>,
    /// The release that it was promoted from.
    pub promoted_from: Option<(ReleaseName, u64)>,
    /// The share of machines that it is for, from 1 to 99 percent; `None`: it is for all. See [`share_of`].
    pub percent: Option<u8>,
    /// The paths.
    pub paths: ReleasedPaths,
    /// What its author has noted, such as the revision of the sources.
    pub notes: BTreeMap<String, String>,
    /// Signatures of [`Release::signed_text`].
    pub signatures: Vec<Signature>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReleaseJson {
    name: String,
    revision: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    created: u64,
    cache: String,
    store_dir: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    promoted_from: Option<FromJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    percent: Option<u8>,
    systems: BTreeMap<String, BTreeMap<String, PathJson>>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    notes: BTreeMap<String, String>,
    #[serde(default)]
    signatures: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct FromJson {
    name: String,
    revision: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PathJson {
    path: String,
    nar_hash: String,
}

impl Release {
    /// Parses the JSON. Unknown keys are ignored: signatures do not cover them.
    ///
    /// # Errors
    /// If it is not JSON of this format, or exceeds a limit.
    pub fn parse(json: &[u8]) -> Result<Self, ReleaseError> {
        if json.len() > RELEASE_LEN_MAX {
            return Err(ReleaseError::TooLong);
        }
        let json: ReleaseJson = serde_json::from_slice(json).map_err(|error| ReleaseError::Json(error.to_string()))?;
        if json.signatures.len() > SIGNATURES_MAX {
            return Err(ReleaseError::TooMany { what: "signatures", limit: SIGNATURES_MAX });
        }
        let store_dir = StoreDir::parse_dir(&json.store_dir)?;
        let mut paths = ReleasedPaths::new();
        for (system, outputs) in &json.systems {
            let of_system = paths.entry(system.parse()?).or_default();
            for (output, PathJson { path, nar_hash }) in outputs {
                let released = ReleasedPath { path: store_dir.parse(path)?, nar_hash: NarHash::parse(nar_hash)? };
                of_system.insert(output.parse()?, released);
            }
        }
        let promoted_from = json.promoted_from.map(|from| Ok::<_, ReleaseError>((from.name.parse()?, from.revision)));
        let release = Self {
            store_dir,
            cache: json.cache,
            name: json.name.parse()?,
            revision: json.revision,
            created: json.created,
            version: json.version.map(|version| version.parse()).transpose()?,
            promoted_from: promoted_from.transpose()?,
            percent: json.percent,
            paths,
            notes: json.notes,
            signatures: json.signatures.iter().map(|text| text.parse()).collect::<Result<_, KeyTextError>>()?,
        };
        release.check()?;
        Ok(release)
    }

    /// Checks what the types of its fields do not. Whatever passes has one canonical text, and no other release has the same.
    ///
    /// # Errors
    /// If it exceeds a limit, or has characters that would not stand on one line.
    pub fn check(&self) -> Result<(), ReleaseError> {
        check_revision(self.revision)?;
        if self.percent.is_some_and(|percent| !(1..100).contains(&percent)) {
            return Err(ReleaseError::Percent);
        }
        if let Some((_, revision)) = self.promoted_from {
            check_revision(revision)?;
        }
        let is_id = self.cache.bytes().all(|byte| byte.is_ascii_graphic());
        if self.cache.is_empty() || self.cache.len() > CACHE_ID_LEN_MAX || !is_id {
            return Err(ReleaseError::Cache);
        }
        check_paths(&self.paths)?;
        check_notes(&self.notes)
    }

    /// The JSON, in which caches and clients exchange it.
    pub fn to_json(&self) -> String {
        let path = |released: &ReleasedPath| PathJson {
            path: self.store_dir.display(&released.path).to_string(),
            nar_hash: released.nar_hash.to_string(),
        };
        let outputs = |outputs: &BTreeMap<StorePathName, ReleasedPath>| {
            outputs.iter().map(|(output, released)| (output.to_string(), path(released))).collect()
        };
        let json = ReleaseJson {
            name: self.name.to_string(),
            revision: self.revision,
            version: self.version.as_ref().map(ToString::to_string),
            created: self.created,
            cache: self.cache.clone(),
            store_dir: self.store_dir.to_string(),
            promoted_from: self
                .promoted_from
                .as_ref()
                .map(|(name, revision)| FromJson { name: name.to_string(), revision: *revision }),
            percent: self.percent,
            systems: self.paths.iter().map(|(system, of)| (system.to_string(), outputs(of))).collect(),
            notes: self.notes.clone(),
            signatures: self.signatures.iter().map(Signature::to_string).collect(),
        };
        // Serialising strings, numbers and maps of strings to memory cannot fail.
        serde_json::to_string(&json).unwrap_or_default()
    }

    /// The text that signatures sign: a field a line, each line one word that says what it is, and values. Systems, outputs and notes are sorted.
    pub fn signed_text(&self) -> String {
        let mut text = format!(
            "{TEXT_VERSION}\nstore {}\ncache {}\nname {}\nrevision {}\ncreated {}\n",
            self.store_dir, self.cache, self.name, self.revision, self.created
        );
        // Writing to a String cannot fail.
        if let Some(version) = &self.version {
            let _ = writeln!(text, "version {version}");
        }
        if let Some((name, revision)) = &self.promoted_from {
            let _ = writeln!(text, "from {name} {revision}");
        }
        if let Some(percent) = self.percent {
            let _ = writeln!(text, "percent {percent}");
        }
        for (system, outputs) in &self.paths {
            for (output, ReleasedPath { path, nar_hash }) in outputs {
                let _ = writeln!(text, "path {system} {output} {} {nar_hash}", self.store_dir.display(path));
            }
        }
        for (name, note) in &self.notes {
            let _ = writeln!(text, "note {name} {note}");
        }
        text
    }

    /// Adds the signature of a key.
    ///
    /// # Errors
    /// The key does not sign.
    pub fn sign(&mut self, key: &SecretKey) -> Result<(), SignError> {
        self.signatures.push(key.sign(self.signed_text().as_bytes())?);
        Ok(())
    }

    /// The first signature by one of these keys.
    pub fn find_valid(&self, keys: &TrustedKeys) -> Option<&Signature> {
        keys.find_valid(self.signed_text().as_bytes(), &self.signatures)
    }

    /// The path that a system has if it is asked for one: output `out`, or else the first one.
    pub fn main_path(&self, system: &ReleaseSystem) -> Option<&ReleasedPath> {
        let outputs = self.paths.get(system)?;
        let out = outputs.iter().find(|(output, _)| output.as_str() == "out");
        out.or_else(|| outputs.first_key_value()).map(|(_, released)| released)
    }

    /// Whether it is for machines of this share, from [`share_of`].
    pub fn is_for(&self, share: u8) -> bool {
        self.percent.is_none_or(|percent| share < percent)
    }

    /// How users name it: `@api@41`.
    pub fn selector(&self) -> Selector {
        Selector { name: self.name.clone(), which: Which::Revision(self.revision) }
    }
}

/// The share that is only reached by releases for all machines: whoever is no machine has it.
pub const SHARE_OF_ALL: u8 = 99;

/// Where a machine is among all that follow a release, from 0 to 99: a release for 10 percent of them is for those below 10. It depends on the two
/// names alone, so a larger percentage is for the same machines and more.
///
/// ```
/// use narval_nix::release::share_of;
/// let web = "web".parse().unwrap();
/// assert_eq!(share_of("machine-1", &web), share_of("machine-1", &web));
/// ```
pub fn share_of(machine: &str, release: &ReleaseName) -> u8 {
    // Neither has a line break.
    let digest = Sha256::of(format!("{machine}\n{release}").as_bytes());
    let number = digest.as_bytes().iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    u8::try_from(number % 100).unwrap_or(SHARE_OF_ALL)
}

/// Checks the number of a release's paths.
///
/// # Errors
/// If there are none, or too many.
pub fn check_paths<T>(paths: &BTreeMap<ReleaseSystem, BTreeMap<StorePathName, T>>) -> Result<(), ReleaseError> {
    match paths.values().map(BTreeMap::len).sum() {
        0 => Err(ReleaseError::Empty),
        1..=RELEASE_PATHS_MAX if paths.values().all(|outputs| !outputs.is_empty()) => Ok(()),
        1..=RELEASE_PATHS_MAX => Err(ReleaseError::Empty),
        _ => Err(ReleaseError::TooMany { what: "paths", limit: RELEASE_PATHS_MAX }),
    }
}

/// Checks the notes of a release.
///
/// # Errors
/// If there are too many, or one is not a word and a line.
pub fn check_notes(notes: &BTreeMap<String, String>) -> Result<(), ReleaseError> {
    if notes.len() > RELEASE_NOTES_MAX {
        return Err(ReleaseError::TooMany { what: "notes", limit: RELEASE_NOTES_MAX });
    }
    let is_bad = |(name, note): &(&String, &String)| {
        check_word("note", name).is_err() || note.len() > RELEASE_NOTE_LEN_MAX || note.chars().any(char::is_control)
    };
    match notes.iter().find(is_bad) {
        Some((name, _)) => {
            Err(ReleaseError::Note(name.chars().filter(|c| !c.is_control()).take(RELEASE_NAME_LEN_MAX).collect()))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
