//! Lists of releases, a page at a time: what a request holds in memory has a limit, however many releases a cache has.

use narval_nix::release::ReleaseName;

use super::{KeptRelease, kept};
use crate::cache::Cache;
use crate::records::releases::{Listed, PAGE, ReleaseCursor};
use crate::rejection::Rejection;

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
    /// [`RELEASES_LISTED_MAX`](crate::RELEASES_LISTED_MAX) rows, and their records [`RELEASES_LISTED_BYTES_MAX`](crate::RELEASES_LISTED_BYTES_MAX) bytes.
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
