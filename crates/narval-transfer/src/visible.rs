//! Determines which of the put paths may become visible: those whose references all are visible, or become visible with
//! them.

use std::collections::{HashMap, HashSet};

use narval_nix::{PathInfo, StorePath};

use crate::order::in_order;

/// Paths that become visible one by one, each as soon as its references are.
pub(super) struct Waiting<P> {
    /// How many references each path lacks.
    lacking: HashMap<StorePath, (usize, P)>,
    referrers: HashMap<StorePath, Vec<StorePath>>,
    visible: HashSet<StorePath>,
}

impl<P> Default for Waiting<P> {
    fn default() -> Self {
        Self { lacking: HashMap::new(), referrers: HashMap::new(), visible: HashSet::new() }
    }
}

impl<P> Waiting<P> {
    /// Adds a path that was put, and returns it if it lacks no reference. `given`: all paths of the transfer.
    pub(super) fn put(&mut self, info: &PathInfo, put: P, given: &HashSet<StorePath>) -> Option<P> {
        let is_lacking =
            |path: &&StorePath| **path != info.path && given.contains(*path) && !self.visible.contains(*path);
        let lacking: Vec<_> = info.references.iter().filter(is_lacking).cloned().collect();
        if lacking.is_empty() {
            return Some(put);
        }
        self.lacking.insert(info.path.clone(), (lacking.len(), put));
        for reference in lacking {
            self.referrers.entry(reference).or_default().push(info.path.clone());
        }
        None
    }

    /// Records that a path is visible now. Returns those that no longer lack a reference.
    pub(super) fn is_visible(&mut self, path: StorePath) -> Vec<(StorePath, P)> {
        let mut ready = Vec::new();
        for referrer in self.referrers.remove(&path).unwrap_or_default() {
            let Some((count, _)) = self.lacking.get_mut(&referrer) else { continue };
            *count -= 1;
            if *count == 0
                && let Some((_, put)) = self.lacking.remove(&referrer)
            {
                ready.push((referrer, put));
            }
        }
        self.visible.insert(path);
        ready
    }
}

/// The paths that may become visible, each after its references, and the first that may not, with the reference that it
/// lacks. `bad`: paths that are missing for good.
pub(super) fn closed_subset<P>(
    put: Vec<(PathInfo, P)>,
    mut bad: HashSet<StorePath>,
) -> (Vec<P>, Option<(StorePath, StorePath)>) {
    let ordered = in_order(put, |(info, _)| (info.path.clone(), info.references.iter().cloned().collect()));
    let (mut complete, mut left_out) = (Vec::with_capacity(ordered.len()), None);
    for (info, put) in ordered {
        match info.references.iter().find(|path| bad.contains(*path)) {
            None => complete.push(put),
            Some(reference) => {
                left_out.get_or_insert_with(|| (info.path.clone(), reference.clone()));
                bad.insert(info.path);
            }
        }
    }
    (complete, left_out)
}
