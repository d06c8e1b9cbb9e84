//! Releases, as they are recorded and listed.

use std::fmt;
use std::str::FromStr;

use narval_nix::HashPart;
use narval_nix::release::{ReleaseError, ReleaseName, ReleaseSystem};
use serde::{Deserialize, Serialize};

/// How many names of releases a cache has at most: a token with a pattern may make any.
pub const RELEASE_NAMES_MAX: u64 = 10_000;
/// How many systems the releases of a name have at most, over all of its revisions.
pub const RELEASE_SYSTEMS_MAX: usize = 32;

/// A release as recorded in the index: one row for each of its systems.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReleaseRecord {
    pub(crate) name: String,
    pub(crate) revision: u64,
    pub(crate) system: String,
    pub(crate) version: Option<String>,
    pub(crate) created: u64,
    /// Whether it keeps its paths whatever comes after it.
    #[serde(rename = "pinned")]
    pub(crate) is_pinned: bool,
    /// The name of the pins that keep its paths for this system.
    pub(crate) hold: String,
    /// As it was signed, with all systems.
    #[serde(rename = "record")]
    pub(crate) json: String,
    /// Whether there are such pins.
    #[serde(skip)]
    pub(crate) is_kept: bool,
    /// The share of machines that it is for; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) percent: Option<u32>,
}

/// What is recorded of a new release.
#[derive(Debug, Clone)]
pub(crate) struct ReleaseToRecord {
    pub(crate) version: Option<String>,
    pub(crate) percent: Option<u8>,
    pub(crate) json: String,
    /// System, hash part and base name of each path.
    pub(crate) paths: Vec<(ReleaseSystem, HashPart, String)>,
}

/// A request for a release. One that is sent again, because its answer was lost, has the same key.
#[derive(Debug, Clone)]
pub(crate) struct ReleaseRequest {
    pub(crate) name: ReleaseName,
    pub(crate) key: Option<String>,
    /// The id that the cache gets if it has none.
    pub(crate) new_uid: String,
}

/// What became of a request for a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Recorded<T> {
    New(T),
    /// The record that the request with this key has made before.
    Again(String),
}

/// Why a release was not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReleaseRefused {
    /// This path is not there, or one with another name.
    Absent(Option<HashPart>),
    /// The cache has as many names as it may have.
    Names,
    /// The name has as many systems as it may have.
    Systems,
}

/// The most rows of a page: a release has one for each of its systems.
pub const RELEASES_LISTED_MAX: u32 = 200;
/// The most bytes of the records of a page. It has at least one row, and a record has at most [`RELEASE_LEN_MAX`](narval_nix::release::RELEASE_LEN_MAX).
pub const RELEASES_LISTED_BYTES_MAX: u64 = 1024 * 1024;

/// How much of a list is read at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListMax {
    pub(crate) rows: u32,
    pub(crate) bytes: u64,
}

/// Which releases a list has.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Listed<'a> {
    /// All of a name.
    Of(&'a str),
    /// Of each name and system the newest, and those that other machines have meanwhile.
    Newest,
    /// All.
    All,
}

pub(crate) const PAGE: ListMax = ListMax { rows: RELEASES_LISTED_MAX, bytes: RELEASES_LISTED_BYTES_MAX };

/// The row that a page of a list comes after, as text `name@revision@system`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleaseCursor {
    pub(crate) name: ReleaseName,
    pub(crate) revision: u64,
    pub(crate) system: ReleaseSystem,
}

impl ReleaseCursor {
    /// That of a row; `None` if it has not what names have, which nothing records.
    pub(crate) fn of(row: &ReleaseRecord) -> Option<Self> {
        Some(Self { name: row.name.parse().ok()?, revision: row.revision, system: row.system.parse().ok()? })
    }

    pub(crate) fn key(&self) -> (&str, u64, &str) {
        (self.name.as_str(), self.revision, self.system.as_str())
    }
}

impl fmt::Display for ReleaseCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}@{}", self.name, self.revision, self.system)
    }
}

impl FromStr for ReleaseCursor {
    type Err = ReleaseError;

    fn from_str(text: &str) -> Result<Self, ReleaseError> {
        let (name, rest) = text.split_once('@').ok_or(ReleaseError::Revision)?;
        let (revision, system) = rest.split_once('@').ok_or(ReleaseError::Revision)?;
        let revision = revision.parse().map_err(|_| ReleaseError::Revision)?;
        Ok(Self { name: name.parse()?, revision, system: system.parse()? })
    }
}
