//! Computes the hash in a content address while a NAR is streamed.
//!
//! Nix: `libstore/local-store.cc addToStore` ("ca hash mismatch"), `libutil/references.cc HashModuloSink`,
//! `libutil/git.cc dump`.

use crate::hash::{Algorithm, Hash, Hasher};
use crate::nar::{Decoder, Event};
use crate::path_info::{ContentsCheck, HashedContents};
use crate::store_path::{HASH_PART_LEN, HashPart};

/// The maximum number of self-references whose positions are recorded.
const POSITIONS_MAX: usize = 1 << 20;

/// Computes the hash that a [`ContentsCheck`] requires.
#[derive(Debug)]
pub struct ContentsHasher(Kind);

#[derive(Debug)]
enum Kind {
    Nar(Box<Hasher>),
    Modulo(Box<Modulo>),
    File(Box<File>),
    Git(Box<Git>),
}

impl ContentsHasher {
    /// Starts a hasher. Returns `None` if the NAR hash suffices, or if the algorithm is not supported.
    pub fn new(check: &ContentsCheck) -> Option<Self> {
        let ContentsCheck::Hash { expected, of } = check else { return None };
        let hasher = Hasher::new(expected.algorithm())?;
        Some(Self(match of {
            HashedContents::Nar => Kind::Nar(Box::new(hasher)),
            HashedContents::NarWithout(own) => Kind::Modulo(Box::new(Modulo {
                expected: *expected,
                own: *own,
                pending: Vec::new(),
                offset: 0,
                found: Vec::new(),
                hasher,
            })),
            HashedContents::File => {
                Kind::File(Box::new(File { decoder: Decoder::new(), hasher, has_file: false, is_file: true }))
            }
            HashedContents::Git => Kind::Git(Box::new(Git::new(expected.algorithm()))),
        }))
    }

    /// Adds the next bytes of the NAR.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Kind::Nar(hasher) => hasher.update(bytes),
            Kind::Modulo(modulo) => modulo.update(bytes),
            Kind::File(file) => file.update(bytes),
            Kind::Git(git) => git.update(bytes),
        }
    }

    /// Returns the hash of the contents, or `None` if they cannot have one (a directory where a file is required).
    pub fn finish(self) -> Option<Hash> {
        match self.0 {
            Kind::Nar(hasher) => Some(hasher.finish()),
            Kind::Modulo(modulo) => Some(modulo.finish()),
            Kind::File(file) => (file.is_file && file.has_file).then(|| file.hasher.finish()),
            Kind::Git(git) => git.root,
        }
    }
}

/// Hashes the NAR with zero bytes in place of the path's own hash part. Nix 2.8 appended the positions of the
/// self-references to the hashed bytes, Nix 2.34 does not; either result is accepted.
#[derive(Debug)]
struct Modulo {
    expected: Hash,
    own: HashPart,
    /// Bytes that may be the start of the hash part.
    pending: Vec<u8>,
    /// The offset of `pending` in the NAR.
    offset: u64,
    /// At most [`POSITIONS_MAX`] + 1 positions.
    found: Vec<u64>,
    hasher: Hasher,
}

impl Modulo {
    fn update(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(rest) = self.pending.get(at..) {
            let Some(next) = find(rest, self.own.as_bytes()) else { break };
            let from = at + next;
            if self.found.len() <= POSITIONS_MAX {
                self.found.push(self.offset + from as u64);
            }
            at = from + HASH_PART_LEN;
            if let Some(own) = self.pending.get_mut(from..at) {
                own.fill(0);
            }
        }
        // The zeros cannot be the start of another match: a zero byte is not a nix32 digit.
        let done = self.pending.len().saturating_sub(HASH_PART_LEN - 1);
        self.hasher.update(self.pending.get(..done).unwrap_or_default());
        self.pending.drain(..done);
        self.offset += done as u64;
    }

    fn finish(mut self) -> Hash {
        self.hasher.update(&self.pending);
        let plain = self.hasher.clone().finish();
        if plain == self.expected || self.found.len() > POSITIONS_MAX {
            return plain;
        }
        for position in &self.found {
            self.hasher.update(format!("|{position}").as_bytes());
        }
        let with_positions = self.hasher.finish();
        if with_positions == self.expected { with_positions } else { plain }
    }
}

fn find(bytes: &[u8], wanted: &[u8; HASH_PART_LEN]) -> Option<usize> {
    let first = wanted[0];
    let mut from = 0;
    loop {
        let rest = bytes.get(from..)?;
        let at = from + rest.iter().position(|byte| *byte == first)?;
        if bytes.get(at..at + HASH_PART_LEN)? == wanted {
            return Some(at);
        }
        from = at + 1;
    }
}

/// Hashes the contents of a NAR that is a single regular file, for `text:` and for `fixed:` without `r:`.
#[derive(Debug)]
struct File {
    decoder: Decoder,
    hasher: Hasher,
    has_file: bool,
    /// Whether the NAR has been a single file so far.
    is_file: bool,
}

impl File {
    fn update(&mut self, mut bytes: &[u8]) {
        while self.is_file {
            match self.decoder.next(bytes) {
                Ok((_, None)) => return,
                Ok((used, Some(event))) => {
                    match event {
                        // The hash does not cover the executable bit (Nix `content-address.cc`: flat and text are
                        // plain).
                        Event::Regular { executable: false, .. } => self.has_file = true,
                        Event::Contents(contents) => self.hasher.update(contents),
                        Event::EndRegular => {}
                        _ => self.is_file = false,
                    }
                    bytes = bytes.get(used..).unwrap_or_default();
                }
                // Whoever unpacks the NAR reports the error.
                Err(_) => self.is_file = false,
            }
        }
    }
}

/// Computes the Git object hash of a NAR.
#[derive(Debug)]
struct Git {
    algorithm: Algorithm,
    decoder: Decoder,
    /// The directories that are open.
    open: Vec<Tree>,
    /// The name of the next entry.
    name: Vec<u8>,
    blob: Option<(Hasher, bool)>,
    root: Option<Hash>,
    failed: bool,
}

#[derive(Debug, Default)]
struct Tree {
    name: Vec<u8>,
    /// Each entry's sort key (Git sorts directories as if their names ended in `/`), and its mode, name and hash as they
    /// appear in the tree object.
    entries: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Git {
    fn new(algorithm: Algorithm) -> Self {
        let decoder = Decoder::new();
        Self { algorithm, decoder, open: Vec::new(), name: Vec::new(), blob: None, root: None, failed: false }
    }

    fn update(&mut self, mut bytes: &[u8]) {
        while !self.failed {
            let mut decoder = std::mem::take(&mut self.decoder);
            let used = match decoder.next(bytes) {
                Ok((_, None)) => None,
                Ok((used, Some(event))) => {
                    self.take(event);
                    Some(used)
                }
                Err(_) => {
                    (self.failed, self.root) = (true, None);
                    None
                }
            };
            self.decoder = decoder;
            let Some(used) = used else { return };
            bytes = bytes.get(used..).unwrap_or_default();
        }
    }

    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Entry { name } => self.name = name.to_vec(),
            Event::Directory => self.open.push(Tree { name: std::mem::take(&mut self.name), entries: Vec::new() }),
            Event::Regular { executable, size } => {
                self.blob = self.object("blob", size).map(|hasher| (hasher, executable));
            }
            Event::Contents(contents) => {
                if let Some((blob, _)) = &mut self.blob {
                    blob.update(contents);
                }
            }
            Event::EndRegular => {
                if let Some((blob, executable)) = self.blob.take() {
                    self.put(if executable { "100755" } else { "100644" }, blob.finish());
                }
            }
            Event::Symlink { target } => {
                if let Some(mut blob) = self.object("blob", target.len() as u64) {
                    blob.update(target);
                    self.put("120000", blob.finish());
                }
            }
            Event::EndDirectory => {
                let Some(mut tree) = self.open.pop() else { return };
                tree.entries.sort();
                let len: usize = tree.entries.iter().map(|(_, entry)| entry.len()).sum();
                if let Some(mut object) = self.object("tree", len as u64) {
                    tree.entries.iter().for_each(|(_, entry)| object.update(entry));
                    self.name = tree.name;
                    self.put("40000", object.finish());
                }
            }
        }
    }

    fn object(&self, kind: &str, len: u64) -> Option<Hasher> {
        let mut hasher = Hasher::new(self.algorithm)?;
        hasher.update(format!("{kind} {len}\0").as_bytes());
        Some(hasher)
    }

    fn put(&mut self, mode: &str, hash: Hash) {
        let name = std::mem::take(&mut self.name);
        match self.open.last_mut() {
            Some(tree) => {
                let entry = [mode.as_bytes(), b" ", &name, b"\0", hash.digest()].concat();
                let key = if mode == "40000" { [&name[..], b"/"].concat() } else { name };
                tree.entries.push((key, entry));
            }
            // The hash does not cover the root's mode: only a plain file or a directory is unambiguous.
            None => self.root = matches!(mode, "100644" | "40000").then_some(hash),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Sha256;

    fn modulo(own: HashPart, expected: Hash, bytes: &[u8], piece: usize) -> Hash {
        let check = ContentsCheck::Hash { expected, of: HashedContents::NarWithout(own) };
        let mut hasher = ContentsHasher::new(&check).unwrap();
        bytes.chunks(piece).for_each(|piece| hasher.update(piece));
        hasher.finish().unwrap()
    }

    #[test]
    fn the_own_hash_part_counts_as_zeros() {
        let own = HashPart::parse(b"00bgd045z0d4icpbc2yyz4gx48ak44la").unwrap();
        let bytes = [b"x00bgd", &own.as_bytes()[..], &own.as_bytes()[..], b"y", &own.as_bytes()[..31]].concat();
        let zeros = [b"x00bgd", &[0; 64][..], b"y", &own.as_bytes()[..31]].concat();
        let (plain, old) = (Sha256::of(&zeros).into(), Sha256::of(&[&zeros[..], b"|6|38"].concat()).into());
        for piece in 1..bytes.len() + 1 {
            assert_eq!(modulo(own, plain, &bytes, piece), plain, "{piece}");
            assert_eq!(modulo(own, old, &bytes, piece), old, "{piece}");
            assert_eq!(modulo(own, Sha256::of(b"").into(), &bytes, piece), plain, "{piece}");
        }
    }
}
