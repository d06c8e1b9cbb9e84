//! Small NARs, which are sent together: a server over a bucket records all of one request in one transaction.

use std::collections::{HashMap, HashSet};

use narval_nix::{NarHash, NarInfo};
use parking_lot::Mutex;

/// NARs of at most this size in bytes are small. Larger ones are worth a request of their own, and are sent at the same time.
pub(super) const SMALL_LEN_MAX: u64 = 512 * 1024;
/// Bytes of NARs in one request: less than the 8 MiB that the protocol allows, with a line for each.
const BODY_LEN_MAX: usize = 7 * 1024 * 1024;
/// The maximum number of NARs in one request.
const NARS_MAX: usize = 1024;

/// The small NARs of a push.
#[derive(Default)]
pub(super) struct SmallNars(Mutex<State>);

#[derive(Default)]
struct State {
    waiting: Batch,
    /// All that were added: paths may have the same NAR.
    added: HashSet<NarHash>,
    /// What the narinfos of those that were sent have to say of their files.
    lines: HashMap<NarHash, Vec<u8>>,
}

/// NARs of one request.
#[derive(Default)]
pub(super) struct Batch {
    body: Vec<u8>,
    nars: Vec<(String, NarHash)>,
}

impl SmallNars {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock())
    }

    /// Adds a file. Returns a batch if that is to be sent now.
    pub(super) fn add(&self, nar_hash: NarHash, name: String, file: &[u8]) -> Option<Batch> {
        self.with(|state| {
            if !state.added.insert(nar_hash) {
                return None;
            }
            let is_full = state.waiting.body.len() + file.len() > BODY_LEN_MAX || state.waiting.nars.len() == NARS_MAX;
            let full = is_full.then(|| std::mem::take(&mut state.waiting));
            state.waiting.body.extend_from_slice(format!("{name} {}\n", file.len()).as_bytes());
            state.waiting.body.extend_from_slice(file);
            state.waiting.nars.push((name, nar_hash));
            full
        })
    }

    /// Those that were not sent yet, if there are any.
    pub(super) fn rest(&self) -> Option<Batch> {
        Some(self.with(|state| std::mem::take(&mut state.waiting))).filter(|batch| !batch.nars.is_empty())
    }

    /// Notes the answer to a batch; `None` if it is not one.
    pub(super) fn sent(&self, batch: &Batch, mut answer: &[u8]) -> Option<()> {
        let mut lines = Vec::with_capacity(batch.nars.len());
        for (name, nar_hash) in &batch.nars {
            let (word, number, rest) = line(answer)?;
            let (piece, rest) = rest.split_at_checked(number)?;
            if word != name {
                return None;
            }
            lines.push((*nar_hash, piece.to_vec()));
            answer = rest;
        }
        let (word, number, rest) = line(answer)?;
        if (word, number) != ("end", batch.nars.len()) || !rest.is_empty() {
            return None;
        }
        self.with(|state| state.lines.extend(lines));
        Some(())
    }

    /// What the narinfo of a small NAR has to say of its file.
    pub(super) fn lines(&self, narinfo: &NarInfo) -> Option<Vec<u8>> {
        self.with(|state| state.lines.get(&narinfo.nar_hash).cloned())
    }
}

impl Batch {
    /// The body of the request.
    pub(super) fn body(&self) -> Vec<u8> {
        [&self.body, format!("end {}\n", self.nars.len()).as_bytes()].concat()
    }
}

/// A line of a word and a number, and what follows it.
fn line(bytes: &[u8]) -> Option<(&str, usize, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = bytes.split_at_checked(end)?;
    let (word, number) = str::from_utf8(line).ok()?.split_once(' ')?;
    Some((word, number.parse().ok()?, rest.get(1..)?))
}

#[cfg(test)]
mod tests {
    use narval_nix::Sha256;

    use super::*;

    #[test]
    fn small_nars_are_sent_together() {
        let small = SmallNars::default();
        let hash = |name: &str| Sha256::of(name.as_bytes());
        assert!(small.rest().is_none());
        assert!(small.add(hash("a"), "a.nar".to_owned(), b"xy").is_none());
        assert!(small.add(hash("b"), "b.nar".to_owned(), b"").is_none());
        assert!(small.add(hash("a"), "a.nar".to_owned(), b"xy").is_none(), "it is there");
        let batch = small.add(hash("c"), "c.nar".to_owned(), &vec![b'c'; BODY_LEN_MAX]).unwrap();
        assert_eq!(batch.body(), b"a.nar 2\nxyb.nar 0\nend 2\n");
        assert_eq!(small.rest().unwrap().nars, [("c.nar".to_owned(), hash("c"))]);
        for wrong in [&b""[..], b"a.nar 1\nxb.nar 1\ny", b"b.nar 1\nxa.nar 1\nyend 2\n", b"a.nar 1\nxend 1\n"] {
            assert!(small.sent(&batch, wrong).is_none());
        }
        small.sent(&batch, b"a.nar 1\nxb.nar 1\nyend 2\n").unwrap();
        small.with(|state| {
            assert_eq!((&state.lines[&hash("a")][..], &state.lines[&hash("b")][..]), (&b"x"[..], &b"y"[..]))
        });
    }
}
