//! Lists of releases, a page at a time: what a request holds in memory has a limit, however many releases a cache has.

use std::fmt;
use std::str::FromStr;

use narval_nix::release::{ReleaseError, ReleaseName, ReleaseSystem};

use super::{KeptRelease, kept};
use crate::cache::Cache;
use crate::index::ReleaseRecord;
use crate::rejection::Rejection;

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
    name: ReleaseName,
    revision: u64,
    system: ReleaseSystem,
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

/// A page of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReleasePage {
    /// Its rows.
    pub releases: Vec<KeptRelease>,
    /// What the next page comes after; `None`: this is the last one.
    pub next: Option<ReleaseCursor>,
}

impl Cache {
    /// A page of the releases of a name, the newest first; without one, of the newest of each name and system, by name. It has at most
    /// [`RELEASES_LISTED_MAX`] rows, and their records [`RELEASES_LISTED_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// If the index fails.
    pub fn releases(
        &self,
        name: Option<&ReleaseName>,
        after: Option<&ReleaseCursor>,
    ) -> Result<ReleasePage, Rejection> {
        // A cursor of another name would be before or after all of them.
        let after = after.filter(|after| name.is_none_or(|name| *name == after.name));
        let listed = name.map_or(Listed::Newest, |name| Listed::Of(name.as_str()));
        let (found, is_more) = self.index().releases(self.id(), listed, after, PAGE)?;
        let releases = found.into_iter().map(kept).collect::<Result<Vec<_>, _>>()?;
        let next = releases.last().filter(|_| is_more).and_then(|last| {
            let system = last.system.parse().ok()?;
            Some(ReleaseCursor { name: last.release.name.clone(), revision: last.release.revision, system })
        });
        Ok(ReleasePage { releases, next })
    }
}
