//! The order in which paths become valid: each after its references.

use std::collections::{BTreeMap, BTreeSet};

use narval_nix::StorePath;

/// Sorts the items such that each follows those of its references that are among them. `names` returns an item's path
/// and references.
pub(crate) fn in_order<T>(all: Vec<T>, names: impl Fn(&T) -> (StorePath, Vec<StorePath>)) -> Vec<T> {
    let mut waiting: BTreeMap<StorePath, T> = all.into_iter().map(|one| (names(&one).0, one)).collect();
    let mut ordered = Vec::with_capacity(waiting.len());
    // Depth first, without recursion: a path is appended after its references.
    let mut stack: Vec<(StorePath, bool)> = waiting.keys().map(|path| (path.clone(), false)).collect();
    let mut begun = BTreeSet::new();
    while let Some((path, references_taken)) = stack.pop() {
        if references_taken {
            ordered.extend(waiting.remove(&path));
        } else if let Some(one) = waiting.get(&path).filter(|_| begun.insert(path.clone())) {
            stack.push((path, true));
            // A cycle is broken where it started, and the daemon rejects it.
            let references = names(one).1.into_iter().filter(|other| !begun.contains(other));
            stack.extend(references.map(|other| (other, false)));
        }
    }
    ordered
}
