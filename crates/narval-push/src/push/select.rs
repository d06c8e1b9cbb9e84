//! What a push sends, for every command that pushes: a filter, what other caches have, and whether closures are complete.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use narval_nix::{PathInfo, StorePath};

use super::filter::Filter;
use super::other_caches::OtherCaches;
use super::{PushOptions, Pushed, Target, push};
use narval_transfer::{Destination, Error, Progress};

/// What is pushed, of what there is.
#[derive(Default)]
pub struct Selection {
    /// Which paths are pushed for their own sake.
    pub filter: Filter,
    /// Whether what they refer to is left out.
    pub no_closure: bool,
    /// Caches that clients use anyway: what they have is not pushed. They are not asked for a folder, which others may read without them, nor for a
    /// cache that takes complete closures alone.
    pub other_caches: Option<OtherCaches>,
}

/// What a cache lacks of what was selected.
pub struct Missing {
    /// The paths to push.
    pub infos: Vec<PathInfo>,
    /// The number of paths that the cache has.
    pub already: usize,
    /// The number of paths that it lacks, and other caches have.
    pub elsewhere: usize,
}

impl Selection {
    /// What a command pushes that names these paths, whose closures are `infos`: what the filter takes of the closures, or with `no_closure`, of
    /// the paths themselves, and what that refers to.
    pub fn of_closure(
        &self,
        roots: &[StorePath],
        mut infos: BTreeMap<StorePath, PathInfo>,
    ) -> BTreeMap<StorePath, PathInfo> {
        let takes = |info: &PathInfo| {
            let is_candidate = !self.no_closure || roots.contains(&info.path);
            is_candidate && self.filter.takes(&info.path, info.nar_size, info.ultimate)
        };
        let mut wanted: BTreeSet<StorePath> =
            infos.values().filter(|info| takes(info)).map(|info| info.path.clone()).collect();
        let mut next: Vec<StorePath> = if self.no_closure { Vec::new() } else { wanted.iter().cloned().collect() };
        while let Some(path) = next.pop() {
            let references = infos.get(&path).into_iter().flat_map(|info| &info.references);
            next.extend(references.filter(|reference| wanted.insert((*reference).clone())).cloned());
        }
        infos.retain(|path, _| wanted.contains(path));
        infos
    }

    /// What a cache lacks of these paths, less what other caches have. Of `always`, the latter is not asked.
    ///
    /// # Errors
    /// If the cache cannot be asked.
    pub fn missing(
        &self,
        infos: &BTreeMap<StorePath, PathInfo>,
        always: &[StorePath],
        to: &Target,
        progress: &Progress,
    ) -> Result<Missing, Error> {
        let missing = to.missing(&infos.keys().collect::<Vec<_>>(), progress)?;
        let already = infos.len() - missing.len();
        let others = self.other_caches.as_ref().filter(|_| !to.takes_closures_alone());
        if others.is_none() && self.filter.signed_by.is_empty() {
            let infos = infos.values().filter(|info| missing.contains(&info.path)).cloned().collect();
            return Ok(Missing { infos, already, elsewhere: 0 });
        }
        // From what nothing refers to downwards: what a path of another cache refers to is there, too.
        let referred: HashSet<&StorePath> =
            infos.values().flat_map(|info| info.references.iter().filter(|path| **path != info.path)).collect();
        let mut level: Vec<&PathInfo> =
            infos.values().filter(|info| !referred.contains(&info.path) || always.contains(&info.path)).collect();
        let (mut lacking, mut seen) = (Vec::new(), HashSet::<&StorePath>::new());
        while !level.is_empty() {
            level.retain(|info| seen.insert(&info.path));
            let is_asked = |info: &&PathInfo| missing.contains(&info.path) && !always.contains(&info.path);
            let (queried, mut kept): (Vec<&PathInfo>, Vec<_>) = level.into_iter().partition(is_asked);
            let queried: Vec<_> = queried.into_iter().filter(|info| !self.filter.is_elsewhere(info)).collect();
            let have = others.map_or_else(|| vec![false; queried.len()], |others| others.have(&queried));
            kept.extend(std::iter::zip(queried, have).filter(|(_, have)| !have).map(|(info, _)| info));
            lacking.extend(kept.iter().copied().filter(|info| missing.contains(&info.path)).cloned());
            level = kept.iter().flat_map(|info| &info.references).filter_map(|path| infos.get(path)).collect();
            if progress.is_interrupted() {
                return Err(Error::Interrupted);
            }
        }
        Ok(Missing { elsewhere: missing.len() - lacking.len(), infos: lacking, already })
    }

    /// Pushes what [`missing`](Self::missing) finds. A cache that refuses a path because it lacks its references, which another cache has, gets
    /// these as well, and from then on all of each closure.
    ///
    /// # Errors
    /// As [`push`]. Paths that were complete before are kept, and not sent again.
    pub fn push(
        &self,
        from: &Destination,
        infos: &BTreeMap<StorePath, PathInfo>,
        always: &[StorePath],
        to: &Target,
        (options, progress): (&PushOptions, &Progress),
    ) -> Result<Pushed, Error> {
        let asks = self.other_caches.is_some() && !to.takes_closures_alone();
        if !asks && self.filter.signed_by.is_empty() {
            return push(from, infos.values().cloned().collect(), to, options, progress);
        }
        let Missing { infos: lacking, already, elsewhere } = self.missing(infos, always, to, progress)?;
        match push(from, lacking, to, options, progress) {
            Err(Error::Refused { status: 409, .. }) if asks && elsewhere > 0 => {
                to.takes_closures_alone_now();
                self.push(from, infos, always, to, (options, progress))
            }
            pushed => pushed.map(|pushed| Pushed { already: pushed.already + already, elsewhere, ..pushed }),
        }
    }
}
