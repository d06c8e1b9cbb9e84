//! Determines what keeps each path: a pure function of a snapshot.

use std::collections::HashMap;

use narval_nix::HashPart;

use crate::written::index::Snapshot;

/// Why a path is kept by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// A pin with this name.
    Pin(String),
    /// A client was told that it exists; until then, in seconds since 1970.
    Lease(u64),
    /// It was pushed or requested at that time.
    Used(u64),
}

/// Why a path is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    /// What keeps the first path of the chain.
    pub hold: Hold,
    /// Base names: the first is kept by itself, each refers to the next, and the last is the requested one.
    pub chain: Vec<String>,
    /// Whether that is sufficient; otherwise the next collection removes it.
    pub kept: bool,
}

/// The result of [`mark`] for each path of a snapshot, in the same order.
pub(super) struct Marks {
    /// The effective time of its last use; `u64::MAX` if it is kept for other reasons.
    pub(super) times: Vec<u64>,
    /// The origin of that time: the path itself, or one that refers to it.
    pub(super) from: Vec<usize>,
    /// What keeps the path itself.
    holds: Vec<Hold>,
    by_part: HashMap<HashPart, usize>,
    /// Paths used since this time are kept.
    cutoff: u64,
}

/// Computes for each path the latest use of itself or of any path that leads to it. References are at least as recent
/// as their referrers, so for any limit, the paths above it are closed under references.
pub(super) fn mark(snapshot: &Snapshot, now: u64, cutoff: u64) -> Marks {
    let paths = &snapshot.paths;
    let by_part: HashMap<HashPart, usize> = paths.iter().enumerate().map(|(at, path)| (path.hash_part, at)).collect();
    let mut holds: Vec<Hold> = paths.iter().map(|path| Hold::Used(path.used)).collect();
    let mut hold = |part: &HashPart, new: Hold| {
        if let Some(hold) = by_part.get(part).and_then(|at| holds.get_mut(*at)) {
            *hold = new;
        }
    };
    snapshot.leases.iter().filter(|(_, until)| *until > now).for_each(|(part, until)| hold(part, Hold::Lease(*until)));
    let valid = |until: &Option<u64>| until.is_none_or(|until| until > now);
    snapshot
        .pins
        .iter()
        .filter(|pin| valid(&pin.until))
        .for_each(|pin| hold(&pin.hash_part, Hold::Pin(pin.name.clone())));
    let time_of = |hold: &Hold| match hold {
        Hold::Used(time) => *time,
        Hold::Pin(_) | Hold::Lease(_) => u64::MAX,
    };
    let mut order: Vec<usize> = (0..paths.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(holds.get(*at).map_or(0, time_of)));
    let (mut times, mut from) = (vec![0; paths.len()], vec![usize::MAX; paths.len()]);
    for root in order {
        let time = holds.get(root).map_or(0, time_of);
        let mut open = vec![(root, root)];
        while let Some((at, origin)) = open.pop() {
            // Earlier ones were used later.
            let Some(slot) = from.get_mut(at).filter(|slot| **slot == usize::MAX) else { continue };
            *slot = origin;
            if let Some(slot) = times.get_mut(at) {
                *slot = time;
            }
            let references = paths.get(at).map(|path| path.references.as_slice()).unwrap_or_default();
            open.extend(references.iter().filter_map(|part| by_part.get(part)).map(|next| (*next, at)));
        }
    }
    Marks { times, from, holds, by_part, cutoff }
}

impl Marks {
    /// Raises the limit until at most this many bytes of NARs remain. Pinned and leased paths are kept.
    pub(super) fn shrink_to(&mut self, snapshot: &Snapshot, size_max: u64) {
        let mut order: Vec<usize> = (0..snapshot.paths.len()).filter(|at| self.is_kept(*at)).collect();
        order.sort_by_key(|at| std::cmp::Reverse(self.times.get(*at).copied()));
        let (mut seen, mut bytes) = (std::collections::HashSet::new(), 0_u64);
        for path in order.into_iter().map(|at| (snapshot.paths.get(at), self.times.get(at).copied())) {
            let (Some(path), Some(time)) = path else { continue };
            if seen.insert(path.nar) {
                bytes = bytes.saturating_add(path.file_size).saturating_add(path.listing_size);
            }
            if bytes > size_max && time < u64::MAX {
                // Also removes everything with the same time.
                self.cutoff = self.cutoff.max(time.saturating_add(1));
                return;
            }
        }
    }

    pub(super) fn is_kept(&self, at: usize) -> bool {
        self.times.get(at).is_some_and(|time| *time >= self.cutoff)
    }

    /// The paths that are not kept, each before its references.
    pub(super) fn forgotten(&self, snapshot: &Snapshot) -> Vec<usize> {
        let dead: Vec<usize> = (0..snapshot.paths.len()).filter(|at| !self.is_kept(*at)).collect();
        let next = |at: usize| {
            let references = snapshot.paths.get(at).map(|path| path.references.as_slice()).unwrap_or_default();
            references.iter().filter_map(|part| self.by_part.get(part)).copied().filter(move |to| *to != at)
        };
        let mut referrers: HashMap<usize, usize> = HashMap::new();
        dead.iter().flat_map(|at| next(*at)).for_each(|to| *referrers.entry(to).or_default() += 1);
        let mut ready: Vec<usize> = dead.iter().copied().filter(|at| !referrers.contains_key(at)).collect();
        let mut order = Vec::with_capacity(dead.len());
        while let Some(at) = ready.pop() {
            order.push(at);
            for to in next(at).filter(|to| !self.is_kept(*to)) {
                if let Some(count) = referrers.get_mut(&to) {
                    *count -= 1;
                    if *count == 0 {
                        ready.push(to);
                    }
                }
            }
        }
        // Cycles, which builds cannot create but an index might contain, are skipped.
        order
    }

    /// Why a path is kept, or has been kept so far.
    pub(super) fn why(&self, snapshot: &Snapshot, part: &HashPart) -> Option<Why> {
        let last = *self.by_part.get(part)?;
        let (mut at, mut chain) = (last, Vec::new());
        loop {
            chain.push(snapshot.paths.get(at)?.path.clone());
            let from = *self.from.get(at)?;
            if from == at || chain.len() > snapshot.paths.len() {
                break;
            }
            at = from;
        }
        chain.reverse();
        Some(Why { hold: self.holds.get(at)?.clone(), chain, kept: self.is_kept(last) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::written::index::{PinRecord, SnapshotPath};
    use proptest::prelude::*;

    fn part(number: usize) -> HashPart {
        HashPart::parse(format!("{number:032}").as_bytes()).unwrap()
    }

    fn snapshot(paths: &[(u64, Vec<usize>)]) -> Snapshot {
        let path = |(at, (used, references)): (usize, &(u64, Vec<usize>))| SnapshotPath {
            hash_part: part(at),
            path: at.to_string(),
            used: *used,
            nar: at as i64,
            file_size: 10,
            listing_size: 0,
            references: references.iter().map(|at| part(*at)).collect(),
        };
        let paths = paths.iter().enumerate().map(path).collect();
        Snapshot { paths, leases: Vec::new(), pins: Vec::new() }
    }

    #[test]
    fn closures_are_held_by_their_roots() {
        // 0 refers to 1, 1 to 2; 3 refers to 2.
        let mut snapshot = snapshot(&[(50, vec![1]), (10, vec![2]), (5, vec![]), (20, vec![2])]);
        let marks = mark(&snapshot, 100, 30);
        assert_eq!(marks.times, [50, 50, 50, 20]);
        assert_eq!(marks.forgotten(&snapshot), [3]);
        let why = marks.why(&snapshot, &part(2)).unwrap();
        assert_eq!((why.hold, why.chain, why.kept), (Hold::Used(50), vec!["0".into(), "1".into(), "2".into()], true));
        let marks = mark(&snapshot, 100, 60);
        let order = marks.forgotten(&snapshot);
        let place = |at: usize| order.iter().position(|found| *found == at).unwrap();
        assert!(order.len() == 4 && place(0) < place(1) && place(1) < place(2) && place(3) < place(2));
        snapshot.pins.push(PinRecord {
            name: "p".into(),
            hash_part: part(1),
            path: "1".into(),
            created: 0,
            until: None,
            keep: None,
        });
        snapshot.leases = vec![(part(3), 101), (part(0), 99)];
        let marks = mark(&snapshot, 100, 60);
        assert_eq!(marks.forgotten(&snapshot), [0]);
        assert_eq!(marks.why(&snapshot, &part(1)).unwrap().hold, Hold::Pin("p".into()));
        assert_eq!(marks.why(&snapshot, &part(3)).unwrap().hold, Hold::Lease(101));
        assert_eq!(marks.why(&snapshot, &part(9)), None);
    }

    #[test]
    fn the_least_recently_used_go_first() {
        let snapshot = snapshot(&[(50, vec![1]), (10, vec![]), (40, vec![]), (30, vec![])]);
        let mut marks = mark(&snapshot, 100, 0);
        marks.shrink_to(&snapshot, 30);
        assert_eq!(marks.forgotten(&snapshot), [3]);
        marks.shrink_to(&snapshot, 25);
        assert_eq!(marks.forgotten(&snapshot).len(), 2);
    }

    /// ncps#470: a NAR of two paths was counted twice.
    #[test]
    fn ncps_470_shared_nars_are_counted_once() {
        let mut snapshot = snapshot(&[(50, vec![]), (40, vec![]), (30, vec![])]);
        snapshot.paths[1].nar = 0;
        let mut marks = mark(&snapshot, 100, 0);
        marks.shrink_to(&snapshot, 20);
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
            marks.shrink_to(&snapshot, size);
            let forgotten = marks.forgotten(&snapshot);
            prop_assert_eq!(forgotten.len(), (0..paths.len()).filter(|at| !marks.is_kept(*at)).count());
            prop_assert!((paths.len() - forgotten.len()) as u64 * 10 <= size);
            for (at, (used, references)) in paths.iter().enumerate() {
                for to in references {
                    prop_assert!(!marks.is_kept(at) || marks.is_kept(*to));
                    let place = |at: usize| forgotten.iter().position(|found| *found == at);
                    if let (Some(at), Some(to)) = (place(at), place(*to)) {
                        prop_assert!(at < to);
                    }
                }
                prop_assert!(size < 120 || *used < cutoff || marks.is_kept(at));
            }
        }
    }
}
