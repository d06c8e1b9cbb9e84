//! Finds the store paths that the contents of a NAR mention.
//!
//! The references of a NAR are declared by its narinfo, which arrives later, so they are not known yet. But a store
//! path is written as `<32 nix32 characters>-<name>`: each dash after 32 such characters is a candidate. Dashes are
//! rare and found with `memchr`, so the scan is cheap compared with SHA-256. Unlike Nix's own scan, it misses hash
//! parts that are not followed by a name; so findings are only reported, and their absence means nothing.

use std::collections::BTreeSet;

use narval_nix::store_path::HASH_PART_LEN;
use narval_nix::{HashPart, nix32};

/// The maximum number of hash parts recorded per NAR, which limits the memory for a hostile one. More are ignored.
pub(crate) const FOUND_MAX: usize = 8192;

/// Scans bytes that arrive in pieces.
#[derive(Default)]
pub(crate) struct Scan {
    found: BTreeSet<HashPart>,
    /// The last bytes of the previous piece.
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
        // Most candidates contain a character that is not a nix32 digit: check that without building an error message.
        if nix32::has_digits_only(text)
            && let Ok(part) = HashPart::parse(text)
            && (self.found.len() < FOUND_MAX || self.found.contains(&part))
        {
            self.found.insert(part);
        }
    }

    /// The found hash parts, sorted.
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
        /// The result does not depend on how the bytes are split.
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
