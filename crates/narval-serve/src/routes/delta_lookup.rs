//! `POST /batch-lookup-v1?want=deltas`: for pairs of a path and a base that the client has, which deltas are ready, with their
//! sizes, and which can be made. See `docs/batch-protocol.md`.
//!
//! Both are looked up as narinfos of this cache: what a request may not read there, is not there.

use std::fmt::Write;

use narval_nix::{HashPart, NarHash};

use super::narinfo::Narinfos;
use crate::error::ServeError;
use crate::nar::deltas::{Deltas, Prospect};
use crate::narinfo::memo::Answer;

/// The most pairs in one request. Each costs two lookups, which a worker does before it answers.
pub(super) const PAIRS_MAX: usize = 4096;
/// Two hash parts, `sha256:` and a hash in nix32, each with what separates it from the next.
pub(super) const PAIR_BYTES: usize = 33 + 33 + 60;

/// A path, and a base for its delta that the client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    path: HashPart,
    base: HashPart,
    base_hash: NarHash,
}

/// The pair on a line: `<hash part> <hash part of the base> <NarHash of the base>`.
pub(super) fn pair(line: &[u8]) -> Option<Pair> {
    let mut words = line.split(|byte| *byte == b' ');
    let path = HashPart::parse(words.next()?).ok()?;
    let base = HashPart::parse(words.next()?).ok()?;
    let base_hash = NarHash::from_nix32(words.next()?.strip_prefix(b"sha256:")?).ok()?;
    words.next().is_none().then_some(Pair { path, base, base_hash })
}

/// The answer: a line per pair, in their order, and the line `end`.
pub(super) fn text(narinfos: &Narinfos, deltas: Option<&Deltas>, pairs: &[Pair]) -> Result<String, ServeError> {
    let mut text = String::new();
    for pair in pairs {
        let prospect = match deltas {
            Some(deltas) => prospect(narinfos, deltas, pair)?,
            None => Prospect::None,
        };
        let Pair { path, base, .. } = pair;
        // Writing to a string does not fail.
        let _ = match prospect {
            Prospect::Ready(len) => writeln!(text, "{path} {base} {len}"),
            Prospect::Possible => writeln!(text, "{path} {base} possible"),
            Prospect::None => writeln!(text, "{path} {base} absent"),
        };
    }
    let _ = writeln!(text, "end {}", pairs.len());
    Ok(text)
}

fn prospect(narinfos: &Narinfos, deltas: &Deltas, pair: &Pair) -> Result<Prospect, ServeError> {
    let Some((base_hash, base_size)) = nar(&narinfos.look_up_here(pair.base)?) else { return Ok(Prospect::None) };
    if base_hash != pair.base_hash {
        return Ok(Prospect::None);
    }
    let Some((hash, size)) = nar(&narinfos.look_up_here(pair.path)?) else { return Ok(Prospect::None) };
    Ok(deltas.prospect((base_hash, base_size), (hash, size)))
}

/// The hash and size of the NAR of a narinfo. One in another form than ours counts as absent.
fn nar(answer: &Answer) -> Option<(NarHash, u64)> {
    let Answer::Present(present) = answer else { return None };
    let value = |key: &[u8]| present.text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key));
    let hash = str::from_utf8(value(b"NarHash: ")?).ok()?.parse().ok()?;
    Some((hash, str::from_utf8(value(b"NarSize: ")?).ok()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_three_words() {
        let (path, base) = ("00bgd045z0d4icpbc2yyz4gx48ak44la", "10bgd045z0d4icpbc2yyz4gx48ak44la");
        let hash = NarHash::of(b"base");
        let line = format!("{path} {base} {hash}");
        assert_eq!(line.len() + 1, PAIR_BYTES);
        let found = pair(line.as_bytes()).unwrap();
        assert_eq!((found.path.as_str(), found.base.as_str(), found.base_hash), (path, base, hash));
        for wrong in ["", path, &line[..66], &line[..100], &format!("{line} x"), &line.replace(' ', "  ")] {
            assert_eq!(pair(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
