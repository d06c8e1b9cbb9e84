//! Paths by package, to find the best base for the delta of another path.

use std::collections::{HashMap, HashSet};

use narval_nix::{PackageName, PathInfo, StorePath, nearer_version};
use narval_store::{Store, StoreError};

/// How many candidates are looked up for one path.
const CANDIDATES_MAX: usize = 8;

/// Paths of a store, by package and output.
pub struct DeltaBases {
    by_package: HashMap<(Box<str>, Box<str>), Vec<StorePath>>,
    /// These are better than all others.
    preferred: HashSet<StorePath>,
}

impl DeltaBases {
    /// Indexes these paths. Derivations are left out.
    pub fn of(paths: Vec<StorePath>) -> Self {
        let mut bases: HashMap<_, Vec<_>> = HashMap::new();
        for path in paths.into_iter().filter(|path| !path.is_derivation()) {
            let name = PackageName::of(path.name());
            bases.entry((name.package.into(), name.output.into())).or_default().push(path);
        }
        Self { by_package: bases, preferred: HashSet::new() }
    }

    /// Prefers some of them, whatever their versions: those of a profile's current generation, which are what a cache most
    /// likely has deltas from.
    pub fn preferring(self, preferred: HashSet<StorePath>) -> Self {
        Self { preferred, ..self }
    }

    /// The best base for a path: the same package and output, preferred ones first, of the nearest version (older ones first), and
    /// of that the path that was registered last. `None` if there is none that `fits`.
    ///
    /// # Errors
    /// If the store cannot be queried.
    pub fn best(
        &self,
        path: &StorePath,
        store: &Store,
        fits: impl Fn(&PathInfo) -> bool,
    ) -> Result<Option<PathInfo>, StoreError> {
        let name = PackageName::of(path.name());
        let Some(all) = self.by_package.get(&(name.package.into(), name.output.into())) else { return Ok(None) };
        let mut candidates: Vec<&StorePath> = all.iter().filter(|other| *other != path).collect();
        let nearer = |one: &StorePath, other: &StorePath| {
            let (first, second) = (self.preferred.contains(one), self.preferred.contains(other));
            second.cmp(&first).then_with(|| nearer_version(name.version, version(one), version(other)))
        };
        candidates.sort_by(|one, other| nearer(one, other));
        candidates.truncate(CANDIDATES_MAX);
        let candidates: Vec<StorePath> = candidates.into_iter().cloned().collect();
        let found = store.path_infos(&candidates)?.into_iter().flatten().filter(|info| fits(info));
        Ok(found.min_by(|one, other| {
            let latest = || other.registration_time.cmp(&one.registration_time);
            nearer(&one.path, &other.path).then_with(latest)
        }))
    }
}

fn version(path: &StorePath) -> &str {
    PackageName::of(path.name()).version
}
