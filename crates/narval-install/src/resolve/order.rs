//! The order in which paths become valid: each after what it refers to.

use std::collections::{BTreeMap, BTreeSet};

use narval_nix::StorePath;

/// Each after what it refers to, as far as that is among them. `names`: the path of one, and what it refers to.
pub(crate) fn in_order<T>(all: Vec<T>, names: impl Fn(&T) -> (StorePath, Vec<StorePath>)) -> Vec<T> {
    let mut waiting: BTreeMap<StorePath, T> = all.into_iter().map(|one| (names(&one).0, one)).collect();
    let mut ordered = Vec::with_capacity(waiting.len());
    // Depth first, without recursion: a path is taken when its references have been.
    let mut stack: Vec<(StorePath, bool)> = waiting.keys().map(|path| (path.clone(), false)).collect();
    let mut begun = BTreeSet::new();
    while let Some((path, references_taken)) = stack.pop() {
        if references_taken {
            ordered.extend(waiting.remove(&path));
        } else if let Some(one) = waiting.get(&path).filter(|_| begun.insert(path.clone())) {
            stack.push((path, true));
            // A circle ends where it began, and the daemon refuses it.
            let references = names(one).1.into_iter().filter(|other| !begun.contains(other));
            stack.extend(references.map(|other| (other, false)));
        }
    }
    ordered
}
