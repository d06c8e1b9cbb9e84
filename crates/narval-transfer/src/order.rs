//! The order in which paths become valid: each after its references.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

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

/// Finds a path and one that it refers to, which also refers to it, directly or through others. References to itself do not count.
pub fn find_cycle<'a>(
    references: &HashMap<&'a StorePath, &'a Vec<StorePath>>,
) -> Option<(&'a StorePath, &'a StorePath)> {
    let (mut done, mut below) = (HashSet::new(), HashSet::new());
    for root in references.keys().copied() {
        // Depth first, without recursion: a path with the references that are left to visit.
        let mut stack = Vec::new();
        let mut next = Some(root);
        while next.is_some() || !stack.is_empty() {
            if let Some(path) = next.take()
                && let Some(those) = references.get(path).filter(|_| !done.contains(path))
            {
                below.insert(path);
                stack.push((path, those.iter()));
            }
            let Some((path, left)) = stack.last_mut() else { break };
            match left.next() {
                Some(reference) if reference == *path => {}
                Some(reference) if below.contains(reference) => return Some((path, reference)),
                Some(reference) => next = Some(reference),
                None => {
                    below.remove(*path);
                    done.insert(*path);
                    stack.pop();
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_found() {
        let path = |number: usize| StorePath::parse(&format!("{number:032}-p{number}")).unwrap();
        let cycle = |edges: &[&[usize]]| {
            let paths: Vec<_> = (0..edges.len()).map(path).collect();
            let sets: Vec<Vec<_>> = edges.iter().map(|to| to.iter().map(|one| path(*one)).collect()).collect();
            let found = find_cycle(&paths.iter().zip(&sets).collect());
            found.map(|(a, b)| (a.name().to_owned(), b.name().to_owned()))
        };
        assert_eq!(cycle(&[&[0, 1, 2], &[2, 3, 9], &[3], &[3]]), None, "a path may refer to itself, and two to one");
        let both = cycle(&[&[1], &[0]]).unwrap();
        assert!(["p0", "p1"].contains(&both.0.as_str()) && both.0 != both.1);
        let long = cycle(&[&[1], &[2], &[3, 0], &[4], &[2]]).unwrap();
        assert!(long.0 != long.1, "{long:?}");
        let chain: Vec<Vec<usize>> = (0..100_000).map(|number| vec![number + 1]).collect();
        assert_eq!(cycle(&chain.iter().map(Vec::as_slice).collect::<Vec<_>>()), None, "no stack overflow");
    }
}
