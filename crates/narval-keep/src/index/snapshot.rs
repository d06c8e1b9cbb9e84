//! A cache as a collection sees it: what refers to what, and when it was used.
//!
//! There may be tens of millions of paths. They are numbered in the order of their rows, and all that is kept of a path is its row's
//! id, the time of its last use, and the numbers of its references: 20 bytes and 4 for each reference. While it is built, 20 bytes
//! for each hash part and a table of numbers by hash part come on top of it. Names are looked up later, of the few that are removed.

use std::hash::{BuildHasher, RandomState};

use narval_nix::HashPart;

use crate::records::pins::Pin;

/// The bits of a hash part, which has 5 in each character.
type Packed = [u8; 20];

/// No path.
const NONE: u32 = u32::MAX;

/// A consistent snapshot of a cache. Paths are numbered from 0.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// The row of each path, ascending.
    pub(crate) ids: Vec<i64>,
    /// When each was last used, in seconds since 1970.
    pub(crate) used: Vec<u32>,
    pub(crate) pins: Vec<(u32, Pin)>,
    /// Until when clients rely on paths.
    pub(crate) leases: Vec<(u32, u64)>,
    /// The path that was asked for.
    pub(crate) wanted: Option<u32>,
    /// Where the references of each path end in `references`.
    ends: Vec<u32>,
    references: Vec<u32>,
}

impl Snapshot {
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The numbers of the paths that a path refers to, without itself.
    pub(crate) fn references(&self, path: u32) -> &[u32] {
        let path = path as usize;
        let end = |at: usize| self.ends.get(at).map_or(0, |end| *end as usize);
        let begin = path.checked_sub(1).map_or(0, end);
        self.references.get(begin..end(path)).unwrap_or_default()
    }
}

/// Takes rows as they come from the database: first all paths by their ids, then their references by the ids of their referrers, then
/// leases and pins.
pub(crate) struct SnapshotBuilder {
    snapshot: Snapshot,
    parts: Vec<Packed>,
    /// Numbers of paths, by hashes of their hash parts.
    table: Vec<u32>,
    hasher: RandomState,
    /// The path whose references are coming.
    referrer: usize,
}

impl SnapshotBuilder {
    pub(crate) fn new() -> Self {
        let (snapshot, hasher) = (Snapshot::default(), RandomState::new());
        Self { snapshot, parts: Vec::new(), table: Vec::new(), hasher, referrer: 0 }
    }

    /// A path. Its id is greater than those before. Returns `false` if there are too many.
    #[must_use]
    pub(crate) fn path(&mut self, id: i64, part: &HashPart, used: u64) -> bool {
        self.snapshot.ids.push(id);
        self.snapshot.used.push(u32::try_from(used).unwrap_or(u32::MAX));
        self.parts.push(packed(part.as_bytes()));
        self.parts.len() < NONE as usize
    }

    /// There are no more paths.
    pub(crate) fn end_paths(&mut self) {
        // At most two thirds full.
        self.table = vec![NONE; (self.parts.len() + self.parts.len() / 2 + 1).next_power_of_two()];
        for (number, part) in self.parts.iter().enumerate() {
            let mut at = self.place(part);
            while self.table.get(at).is_some_and(|other| *other != NONE) {
                at = (at + 1) & (self.table.len() - 1);
            }
            if let (Some(slot), Ok(number)) = (self.table.get_mut(at), u32::try_from(number)) {
                *slot = number;
            }
        }
        self.snapshot.ends.reserve_exact(self.parts.len());
    }

    /// References of the path with this id: their hash parts, one after another. Ids do not fall. Those of other caches are skipped.
    /// Returns `false` if there are too many.
    #[must_use]
    pub(crate) fn references(&mut self, referrer: i64, parts: &[u8]) -> bool {
        while self.snapshot.ids.get(self.referrer).is_some_and(|id| *id < referrer) {
            self.end_referrer();
        }
        if self.snapshot.ids.get(self.referrer) != Some(&referrer) {
            return true;
        }
        for part in parts.chunks_exact(narval_nix::store_path::HASH_PART_LEN) {
            let part: &[u8; 32] = part.try_into().unwrap_or(&[0; 32]);
            let number = self.find(&packed(part));
            // One of an upstream has no number.
            if number != NONE && number as usize != self.referrer {
                self.snapshot.references.push(number);
            }
        }
        self.snapshot.references.len() < NONE as usize
    }

    fn end_referrer(&mut self) {
        self.snapshot.ends.push(u32::try_from(self.snapshot.references.len()).unwrap_or(u32::MAX));
        self.referrer += 1;
    }

    pub(crate) fn lease(&mut self, part: &HashPart, until: u64) {
        let number = self.find(&packed(part.as_bytes()));
        if number != NONE {
            self.snapshot.leases.push((number, until));
        }
    }

    pub(crate) fn pin(&mut self, pin: Pin) {
        let number = pin.hash_part().map_or(NONE, |part| self.find(&packed(part.as_bytes())));
        if number != NONE {
            self.snapshot.pins.push((number, pin));
        }
    }

    /// The snapshot, with the number of a path.
    pub(crate) fn finish(mut self, wanted: Option<&HashPart>) -> Snapshot {
        while self.referrer < self.snapshot.len() {
            self.end_referrer();
        }
        let number = wanted.map(|part| self.find(&packed(part.as_bytes())));
        self.snapshot.wanted = number.filter(|number| *number != NONE);
        self.snapshot
    }

    fn place(&self, part: &Packed) -> usize {
        // The table's length is a power of two.
        self.hasher.hash_one(part) as usize & (self.table.len() - 1)
    }

    fn find(&self, part: &Packed) -> u32 {
        let mut at = self.place(part);
        loop {
            match self.table.get(at) {
                None | Some(&NONE) => return NONE,
                Some(number) if self.parts.get(*number as usize) == Some(part) => return *number,
                Some(_) => at = (at + 1) & (self.table.len() - 1),
            }
        }
    }
}

/// Packs the characters of a hash part. Other texts may look alike: tables contain hash parts only.
fn packed(part: &[u8; 32]) -> Packed {
    let mut packed = [0; 20];
    for (from, to) in part.chunks_exact(8).zip(packed.chunks_exact_mut(5)) {
        let bits = from.iter().fold(0_u64, |bits, byte| bits << 5 | u64::from(value(*byte)));
        to.copy_from_slice(bits.to_be_bytes().last_chunk::<5>().unwrap_or(&[0; 5]));
    }
    packed
}

/// The value of a nix32 character.
const fn value(byte: u8) -> u8 {
    const VALUES: [u8; 256] = {
        let (mut values, mut at) = ([0; 256], 0);
        let alphabet = b"0123456789abcdfghijklmnpqrsvwxyz";
        while at < alphabet.len() {
            values[alphabet[at] as usize] = at as u8;
            at += 1;
        }
        values
    };
    VALUES[byte as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(number: usize) -> HashPart {
        HashPart::from_digest(&std::array::from_fn(|at| (number * 31 + at * (number + 7)) as u8))
    }

    #[test]
    fn hash_parts_are_packed_without_loss() {
        let parts: Vec<HashPart> = (0..5000)
            .map(|number: u32| {
                HashPart::from_digest(
                    narval_nix::Sha256::of(&number.to_le_bytes()).as_bytes()[..20].try_into().unwrap(),
                )
            })
            .collect();
        let mut all: Vec<Packed> = parts.iter().map(|part| packed(part.as_bytes())).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), parts.len());
        assert_eq!(packed(b"zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz"), [255; 20]);
        assert_eq!(packed(b"00000000000000000000000000000001")[19], 1);
    }

    proptest! {
        #[test]
        fn references_are_those_that_were_given(paths in prop::collection::vec(prop::collection::vec(0..40_usize, 0..6), 0..30)) {
            let mut builder = SnapshotBuilder::new();
            for at in 0..paths.len() {
                // Ids have gaps: rows of other caches.
                prop_assert!(builder.path(at as i64 * 3, &part(at), at as u64));
            }
            builder.end_paths();
            for (at, references) in paths.iter().enumerate() {
                let text: String = references.iter().map(|to| part(*to).to_string()).collect();
                prop_assert!(builder.references(at as i64 * 3, text.as_bytes()));
                prop_assert!(builder.references(at as i64 * 3 + 1, text.as_bytes()));
            }
            let snapshot = builder.finish(Some(&part(1)));
            prop_assert_eq!(snapshot.wanted, (paths.len() > 1).then_some(1));
            for (at, references) in paths.iter().enumerate() {
                let there = references.iter().filter(|to| **to < paths.len() && **to != at);
                let expected: Vec<u32> = there.map(|to| *to as u32).collect();
                prop_assert_eq!(snapshot.references(at as u32), &expected[..]);
            }
        }
    }
}
