//! Which store paths the contents of a NAR mention.
//!
//! What a NAR refers to is declared by its narinfo, which comes later; so what is looked for is not known yet. But a store path
//! is written as `<32 nix32 characters>-<name>`: each dash with 32 such characters before it is one that may be meant. Dashes
//! are rare, and are found by `memchr`: the scan costs little beside SHA-256. Hash parts without a name after them are missed,
//! which Nix's own scan would find; what finds nothing says nothing, and it is only reported.

use std::collections::BTreeSet;

use narval_nix::store_path::HASH_PART_LEN;
use narval_nix::{HashPart, nix32};

/// The most hash parts that are remembered of one NAR: what a hostile one may cost in memory. More are not looked at.
pub(crate) const FOUND_MAX: usize = 8192;

/// Looks through bytes that come in pieces.
#[derive(Default)]
pub(crate) struct Scan {
    found: BTreeSet<HashPart>,
    /// The last bytes of what came before.
    tail: Vec<u8>,
}

impl Scan {
    /// Takes the next piece.
    pub(crate) fn update(&mut self, piece: &[u8]) {
        for at in memchr::memchr_iter(b'-', piece) {
            if let Some(before) = at.checked_sub(HASH_PART_LEN).and_then(|from| piece.get(from..at)) {
                self.take(before);
            } else if let Some(from) = (self.tail.len() + at).checked_sub(HASH_PART_LEN)
                && let (Some(old), Some(new)) = (self.tail.get(from..), piece.get(..at))
            {
                self.take(&[old, new].concat());
            }
        }
        let keep = piece.get(piece.len().saturating_sub(HASH_PART_LEN)..).unwrap_or_default();
        let surplus = (self.tail.len() + keep.len()).saturating_sub(HASH_PART_LEN);
        self.tail.drain(..surplus.min(self.tail.len()));
        self.tail.extend_from_slice(keep);
    }

    #[inline]
    fn take(&mut self, text: &[u8]) {
        // Most candidates have a character that is no digit of nix32: what is wrong with them is not worth an error's words.
        if nix32::has_digits_only(text)
            && let Ok(part) = HashPart::parse(text)
            && (self.found.len() < FOUND_MAX || self.found.contains(&part))
        {
            self.found.insert(part);
        }
    }

    /// What was found, sorted.
    pub(crate) fn finish(self) -> Vec<HashPart> {
        self.found.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const A: &str = "00bgd045z0d4icpbc2yyz4gx48ak44la";
    const B: &str = "7gx4kiv5m0i7d7qkixq2cwzbr10lvxwc";

    fn scan(pieces: &[&[u8]]) -> Vec<String> {
        let mut scan = Scan::default();
        pieces.iter().for_each(|piece| scan.update(piece));
        scan.finish().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn finds_store_paths() {
        let text = format!("RPATH=/nix/store/{B}-glibc-2.27/lib:/nix/store/{A}-a\0{A}-a {}-x", "e".repeat(32));
        assert_eq!(scan(&[text.as_bytes()]), [A, B]);
        assert!(scan(&[A.as_bytes()]).is_empty() && scan(&[&A.as_bytes()[1..], b"-a"]).is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut scan = Scan::default();
        for number in 0..FOUND_MAX + 100 {
            scan.update(format!("{number:032}-x").as_bytes());
        }
        assert_eq!(scan.finish().len(), FOUND_MAX);
    }

    proptest! {
        /// However the bytes are cut, the same is found.
        #[test]
        fn across_pieces(before in "[a-z/-]{0,40}", after in "[a-z-]{0,40}", cuts in prop::collection::vec(0..150_usize, 0..8)) {
            let text = format!("{before}{A}-{after}{B}-");
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            let (mut pieces, mut from) = (Vec::new(), 0);
            for cut in cuts.into_iter().chain([text.len()]) {
                pieces.push(&text.as_bytes()[from..cut]);
                from = cut;
            }
            prop_assert_eq!(scan(&pieces), scan(&[text.as_bytes()]));
            prop_assert!(scan(&pieces).contains(&A.to_owned()));
        }
    }
}
