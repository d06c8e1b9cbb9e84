//! The hashes of a NAR, computed as it passes: its own and, for a path that is named by its contents, that of the contents.

use narval_nix::hash::Sha256Hasher;
use narval_nix::{ContentsCheck, ContentsHasher, Hash, PathInfo, Sha256, StoreDir};

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
    /// The hash of the contents that the path's name demands, and the one they have: `None` if they have none, which is so
    /// for a directory where a single file is demanded. `None` as a whole if the path is not named by its contents.
    pub contents: Option<(Hash, Option<Hash>)>,
}

impl Hashed {
    /// Whether the contents are those that the path's name demands, if it demands any.
    pub fn fits_the_name(&self) -> bool {
        self.contents.is_none_or(|(expected, found)| found == Some(expected))
    }
}

impl Hashes {
    /// Hashes for this path.
    pub fn of(info: &PathInfo, store_dir: &StoreDir) -> Self {
        let contents = info.check_by_contents(store_dir).and_then(|check| match check {
            ContentsCheck::Nar => None,
            ContentsCheck::Hash { expected, .. } => Some((expected, ContentsHasher::new(&check)?)),
        });
        Self { nar: Sha256Hasher::new(), contents }
    }

    /// Takes the next bytes of the NAR.
    pub fn update(&mut self, bytes: &[u8]) {
        self.nar.update(bytes);
        if let Some((_, contents)) = &mut self.contents {
            contents.update(bytes);
        }
    }

    /// The hashes of all that was taken.
    pub fn finish(self) -> Hashed {
        let contents = self.contents.map(|(expected, hasher)| (expected, hasher.finish()));
        Hashed { nar: self.nar.finish(), contents }
    }
}
