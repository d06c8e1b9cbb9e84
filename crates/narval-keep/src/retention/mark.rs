//! Determines what keeps each path: a pure function of a snapshot.
//!
//! Besides the snapshot, it needs 12 bytes for each path, and 4 for each that is removed.

use std::cmp::Reverse;
use std::collections::HashSet;

use crate::index::Snapshot;

/// Why a path is kept by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// A pin with this name.
    Pin(String),
    /// A lease until this time, in seconds since 1970: a client was told that the path exists.
    Lease(u64),
    /// It was pushed or requested at this time.
    Used(u64),
}

/// Why a path is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    /// What keeps the first path of the chain.
    pub hold: Hold,
    /// Base names: the first is kept by itself, each refers to the next, and the last is the requested one.
    pub chain: Vec<String>,
    /// Whether that is sufficient. Otherwise, the next collection removes the path.
    pub kept: bool,
}

/// The time of paths that are kept whenever they were used last.
const HELD: u32 = u32::MAX;

/// No path.
const NONE: u32 = u32::MAX;

/// The result of [`mark`] for each path of a snapshot, in the same order.
pub(super) struct Marks {
    /// The effective time of its last use; [`HELD`] if it is kept for other reasons.
    times: Vec<u32>,
    /// Paths used since this time are kept.
    cutoff: u64,
}

/// Computes for each path the latest use of itself or of any path that leads to it. References are at least as recent
/// as their referrers, so for any limit, the paths above it are closed under references.
pub(super) fn mark(snapshot: &Snapshot, now: u64, cutoff: u64) -> Marks {
    let mut times = own_times(snapshot, now);
    walk(snapshot, &mut times, |_, _| {});
    Marks { times, cutoff }
}

/// The time of each path by itself.
fn own_times(snapshot: &Snapshot, now: u64) -> Vec<u32> {
    let mut times: Vec<u32> = snapshot.used.iter().map(|used| (*used).min(HELD - 1)).collect();
    let leased = snapshot.leases.iter().filter(|(_, until)| *until > now).map(|(path, _)| *path);
    let pinned = snapshot.pins.iter().filter(|(_, pin)| pin.is_in_force(now));
    for path in leased.chain(pinned.map(|(path, _)| *path)) {
        if let Some(time) = times.get_mut(path as usize) {
            *time = HELD;
        }
    }
    times
}

/// Passes the time of each path on to its references, the latest first. Calls `found` with each path and the one before it
/// on the way from where its time comes.
fn walk(snapshot: &Snapshot, times: &mut [u32], mut found: impl FnMut(u32, u32)) {
    let mut order: Vec<u32> = (0..).take(snapshot.len()).collect();
    order.sort_unstable_by_key(|path| Reverse(times.get(*path as usize).copied()));
    let mut seen = Bits::new(snapshot.len());
    let mut open = Vec::new();
    for root in order {
        // Earlier ones were used later.
        if !seen.insert(root) {
            continue;
        }
        found(root, root);
        let time = times.get(root as usize).copied().unwrap_or(0);
        open.push(root);
        while let Some(path) = open.pop() {
            for next in snapshot.references(path) {
                if seen.insert(*next) {
                    found(*next, path);
                    if let Some(slot) = times.get_mut(*next as usize) {
                        *slot = time;
                    }
                    open.push(*next);
                }
            }
        }
    }
}

impl Marks {
    /// Raises the cutoff until at most `size_max` bytes of NARs remain. Pinned and leased paths are kept. `sizes` has the id, the NAR
    /// and the size of that NAR of each path, by id.
    pub(super) fn shrink_to(&mut self, snapshot: &Snapshot, sizes: &[(i64, i64, u64)], size_max: u64) {
        let mut order: Vec<u32> = (0..).take(snapshot.len()).filter(|path| self.is_kept(*path)).collect();
        order.sort_by_key(|path| Reverse(self.time(*path)));
        let (mut seen, mut bytes) = (HashSet::new(), 0_u64);
        for path in order {
            let id = snapshot.ids.get(path as usize);
            let at = id.and_then(|id| sizes.binary_search_by_key(id, |(id, ..)| *id).ok());
            // A path that was removed meanwhile has no size.
            let Some((_, nar, size)) = at.and_then(|at| sizes.get(at)) else { continue };
            if seen.insert(*nar) {
                bytes = bytes.saturating_add(*size);
            }
            let time = self.time(path);
            if bytes > size_max && time < HELD {
                // Also removes everything with the same time.
                self.cutoff = self.cutoff.max(u64::from(time) + 1);
                return;
            }
        }
    }

    /// When a path or one of its referrers was last used.
    pub(super) fn time(&self, path: u32) -> u32 {
        self.times.get(path as usize).copied().unwrap_or(HELD)
    }

    pub(super) fn is_kept(&self, path: u32) -> bool {
        let time = self.time(path);
        time == HELD || u64::from(time) >= self.cutoff
    }

    /// The paths that are not kept, each before its references.
    pub(super) fn forgotten(&self, snapshot: &Snapshot) -> Vec<u32> {
        let dead = || (0..).take(snapshot.len()).filter(|path| !self.is_kept(*path));
        let mut referrers = vec![0_u32; snapshot.len()];
        for to in dead().flat_map(|path| snapshot.references(path)) {
            if let Some(count) = referrers.get_mut(*to as usize) {
                *count += 1;
            }
        }
        // The list is its own queue: it begins with the paths that have no referrers.
        let mut order: Vec<u32> = dead().filter(|path| referrers.get(*path as usize) == Some(&0)).collect();
        let mut next = 0;
        while let Some(path) = order.get(next).copied() {
            next += 1;
            for to in snapshot.references(path) {
                if let Some(count) = referrers.get_mut(*to as usize).filter(|_| !self.is_kept(*to)) {
                    *count -= 1;
                    if *count == 0 {
                        order.push(*to);
                    }
                }
            }
        }
        // Cycles, which builds cannot create but an index might contain, are skipped.
        order
    }
}

/// The number of paths that these lead to, and the bytes of their NARs. `sizes` is as for [`Marks::shrink_to`].
pub(super) fn closure_size(
    snapshot: &Snapshot,
    sizes: &[(i64, i64, u64)],
    roots: impl IntoIterator<Item = u32>,
) -> (u64, u64) {
    let (mut seen, mut open) = (HashSet::new(), Vec::from_iter(roots));
    let (mut nars, mut bytes) = (HashSet::new(), 0_u64);
    while let Some(path) = open.pop() {
        if !seen.insert(path) {
            continue;
        }
        open.extend(snapshot.references(path));
        let id = snapshot.ids.get(path as usize);
        let at = id.and_then(|id| sizes.binary_search_by_key(id, |(id, ..)| *id).ok());
        if let Some((_, nar, size)) = at.and_then(|at| sizes.get(at))
            && nars.insert(*nar)
        {
            bytes = bytes.saturating_add(*size);
        }
    }
    (seen.len() as u64, bytes)
}

/// The paths from one that is kept by itself to the wanted one, and what keeps the first.
pub(super) fn chain(snapshot: &Snapshot, now: u64) -> Option<(Hold, Vec<u32>)> {
    let (mut times, mut from) = (own_times(snapshot, now), vec![NONE; snapshot.len()]);
    walk(snapshot, &mut times, |path, origin| {
        if let Some(slot) = from.get_mut(path as usize) {
            *slot = origin;
        }
    });
    let mut path = snapshot.wanted?;
    let mut chain = vec![path];
    while let Some(origin) = from.get(path as usize).copied().filter(|origin| *origin != path && *origin != NONE) {
        path = origin;
        chain.push(path);
    }
    chain.reverse();
    let pin = snapshot.pins.iter().rfind(|(of, pin)| *of == path && pin.is_in_force(now));
    let lease = snapshot.leases.iter().find(|(of, until)| *of == path && *until > now);
    let hold = match (pin, lease) {
        (Some((_, pin)), _) => Hold::Pin(pin.name.clone()),
        (None, Some((_, until))) => Hold::Lease(*until),
        (None, None) => Hold::Used(u64::from(snapshot.used.get(path as usize).copied()?)),
    };
    Some((hold, chain))
}

/// A set of numbers, one bit each.
struct Bits(Vec<u64>);

impl Bits {
    fn new(len: usize) -> Self {
        Self(vec![0; len / 64 + 1])
    }

    /// Returns `false` if it is there already.
    fn insert(&mut self, number: u32) -> bool {
        let bit = 1_u64 << (number % 64);
        let Some(word) = self.0.get_mut(number as usize / 64) else { return false };
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::SnapshotBuilder;
    use crate::records::pins::{Pin, PinFor};
    use narval_nix::HashPart;
    use proptest::prelude::*;

    fn part(number: usize) -> HashPart {
        HashPart::parse(format!("{number:032}").as_bytes()).unwrap()
    }

    type Paths = [(u64, Vec<usize>)];

    fn builder(paths: &Paths) -> SnapshotBuilder {
        let mut builder = SnapshotBuilder::new();
        for (at, (used, _)) in paths.iter().enumerate() {
            assert!(builder.path(at as i64, &part(at), *used));
        }
        builder.end_paths();
        for (at, (_, references)) in paths.iter().enumerate() {
            let text: String = references.iter().map(|to| part(*to).to_string()).collect();
            assert!(builder.references(at as i64, text.as_bytes()));
        }
        builder
    }

    fn snapshot(paths: &Paths) -> Snapshot {
        builder(paths).finish(None)
    }

    /// Each path has a NAR of ten bytes.
    fn sizes(paths: usize) -> Vec<(i64, i64, u64)> {
        (0..paths as i64).map(|at| (at, at, 10)).collect()
    }

    #[test]
    fn closures_are_held_by_their_roots() {
        // 0 refers to 1, 1 to 2; 3 refers to 2.
        let paths = [(50, vec![1]), (10, vec![2]), (5, vec![]), (20, vec![2])];
        let marks = mark(&snapshot(&paths), 100, 30);
        assert_eq!(marks.times, [50, 50, 50, 20]);
        assert_eq!(marks.forgotten(&snapshot(&paths)), [3]);
        assert_eq!(chain(&builder(&paths).finish(Some(&part(2))), 100), Some((Hold::Used(50), vec![0, 1, 2])));
        let marks = mark(&snapshot(&paths), 100, 60);
        let order = marks.forgotten(&snapshot(&paths));
        let place = |at: u32| order.iter().position(|found| *found == at).unwrap();
        assert!(order.len() == 4 && place(0) < place(1) && place(1) < place(2) && place(3) < place(2));
        let held = |wanted: usize| {
            let mut builder = builder(&paths);
            let (name, path, holds) = ("p".into(), format!("{}-1", part(1)), PinFor::default());
            builder.pin(Pin { name, path, created: 0, holds });
            builder.lease(&part(3), 101);
            builder.lease(&part(0), 99);
            builder.finish(Some(&part(wanted)))
        };
        assert_eq!(mark(&held(0), 100, 60).forgotten(&held(0)), [0]);
        assert_eq!(chain(&held(1), 100).unwrap().0, Hold::Pin("p".into()));
        assert_eq!(chain(&held(3), 100).unwrap().0, Hold::Lease(101));
        assert_eq!(chain(&held(9), 100), None);
    }

    #[test]
    fn the_least_recently_used_are_removed_first() {
        let snapshot = snapshot(&[(50, vec![1]), (10, vec![]), (40, vec![]), (30, vec![])]);
        let mut marks = mark(&snapshot, 100, 0);
        marks.shrink_to(&snapshot, &sizes(4), 30);
        assert_eq!(marks.forgotten(&snapshot), [3]);
        marks.shrink_to(&snapshot, &sizes(4), 25);
        assert_eq!(marks.forgotten(&snapshot).len(), 2);
    }

    /// ncps#470: a NAR of two paths was counted twice.
    #[test]
    fn ncps_470_shared_nars_are_counted_once() {
        let snapshot = snapshot(&[(50, vec![]), (40, vec![]), (30, vec![])]);
        let mut marks = mark(&snapshot, 100, 0);
        marks.shrink_to(&snapshot, &[(0, 0, 10), (1, 0, 10), (2, 2, 10)], 20);
        assert!(marks.forgotten(&snapshot).is_empty());
    }

    proptest! {
        /// What is kept is closed under references, whatever the limit; what is forgotten goes referrers first.
        #[test]
        fn closed(paths in prop::collection::vec((0..20_u64, prop::collection::vec(0..12_usize, 0..4)), 1..12), cutoff in 0..22_u64, size in 0..130_u64) {
            // References lead to paths that were there before.
            let paths: Vec<(u64, Vec<usize>)> = paths.into_iter().enumerate()
                .map(|(at, (used, references))| (used, references.into_iter().filter(|to| *to < at).collect()))
                .collect();
            let snapshot = snapshot(&paths);
            let mut marks = mark(&snapshot, 100, cutoff);
            marks.shrink_to(&snapshot, &sizes(paths.len()), size);
            let forgotten = marks.forgotten(&snapshot);
            let is_kept = |at: usize| marks.is_kept(at as u32);
            prop_assert_eq!(forgotten.len(), (0..paths.len()).filter(|at| !is_kept(*at)).count());
            prop_assert!((paths.len() - forgotten.len()) as u64 * 10 <= size);
            for (at, (used, references)) in paths.iter().enumerate() {
                for to in references {
                    prop_assert!(!is_kept(at) || is_kept(*to));
                    let place = |at: usize| forgotten.iter().position(|found| *found as usize == at);
                    if let (Some(at), Some(to)) = (place(at), place(*to)) {
                        prop_assert!(at < to);
                    }
                }
                prop_assert!(size < 120 || *used < cutoff || is_kept(at));
            }
        }
    }
}
