//! Walking references: every path of a closure once.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;

/// The paths of a closure, in the order in which they were found. Whoever takes one adds what it refers to.
///
/// ```
/// use std::collections::HashMap;
/// use narval_nix::ClosureWalk;
/// let references = HashMap::from([("a", vec!["b", "c"]), ("b", vec!["c", "b"]), ("c", vec![])]);
/// let (mut walk, mut found) = (ClosureWalk::new(["a"]), Vec::new());
/// while let Some(path) = walk.next() {
///     walk.add(references[path].iter().copied());
///     found.push(path);
/// }
/// assert_eq!(found, ["a", "b", "c"]);
/// ```
#[derive(Debug, Clone)]
pub struct ClosureWalk<P> {
    queue: VecDeque<P>,
    seen: HashSet<P>,
}

impl<P: Clone + Eq + Hash> ClosureWalk<P> {
    /// A walk from these paths, or their hash parts.
    pub fn new(roots: impl IntoIterator<Item = P>) -> Self {
        let mut walk = Self { queue: VecDeque::new(), seen: HashSet::new() };
        walk.add(roots);
        walk
    }

    /// Adds what a path refers to. Paths that were added before are left out.
    pub fn add(&mut self, references: impl IntoIterator<Item = P>) {
        for path in references {
            if self.seen.insert(path.clone()) {
                self.queue.push_back(path);
            }
        }
    }

    /// How many paths were added so far, roots included.
    pub fn seen_count(&self) -> usize {
        self.seen.len()
    }
}

impl<P> Iterator for ClosureWalk<P> {
    type Item = P;

    fn next(&mut self) -> Option<P> {
        self.queue.pop_front()
    }
}
