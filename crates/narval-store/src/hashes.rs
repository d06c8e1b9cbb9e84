//! Computes the hashes of a NAR while it is streamed: the NAR hash, and for a content-addressed path that of the
//! contents.

use std::io::{self, ErrorKind, Read};

use narval_nix::hash::Sha256Hasher;
use narval_nix::{ContentsCheck, ContentsHasher, Hash, PathInfo, Sha256, StoreDir};

/// Bytes that are read at once.
const BUFFER_LEN: usize = 256 * 1024;

/// The SHA-256 of all that is read.
///
/// # Errors
/// Those of the reader.
pub fn hash_of(reader: &mut dyn Read) -> io::Result<Sha256> {
    let (mut hasher, mut buffer) = (Sha256Hasher::new(), vec![0; BUFFER_LEN]);
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(len) => hasher.update(buffer.get(..len).unwrap_or_default()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Computes the hashes of one NAR.
#[derive(Debug)]
pub struct Hashes {
    nar: Sha256Hasher,
    contents: Option<(Hash, ContentsHasher)>,
}

/// The hashes of one NAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed {
    /// The hash of the NAR.
    pub nar: Sha256,
    /// For a content-addressed path, the expected hash of the contents and the actual one. The latter is `None` if
    /// there is no such hash, for example of a directory where a single file is required.
    pub contents: Option<(Hash, Option<Hash>)>,
}

impl Hashed {
    /// Whether the contents match the path's content address, if it has one.
    pub fn fits_the_name(&self) -> bool {
        self.contents.is_none_or(|(expected, found)| found == Some(expected))
    }
}

impl Hashes {
    /// Starts hashing for this path.
    pub fn of(info: &PathInfo, store_dir: &StoreDir) -> Self {
        let contents = info.check_by_contents(store_dir).and_then(|check| match check {
            ContentsCheck::Nar => None,
            ContentsCheck::Hash { expected, .. } => Some((expected, ContentsHasher::new(&check)?)),
        });
        Self { nar: Sha256Hasher::new(), contents }
    }

    /// Adds the next bytes of the NAR.
    pub fn update(&mut self, bytes: &[u8]) {
        self.nar.update(bytes);
        if let Some((_, contents)) = &mut self.contents {
            contents.update(bytes);
        }
    }

    /// Returns the hashes.
    pub fn finish(self) -> Hashed {
        let contents = self.contents.map(|(expected, hasher)| (expected, hasher.finish()));
        Hashed { nar: self.nar.finish(), contents }
    }
}
