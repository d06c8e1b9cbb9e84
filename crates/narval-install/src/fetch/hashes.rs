//! What is computed of a NAR on its way: its hash, and where a path's name is a hash of its contents, that too.

use narval_nix::hash::Sha256Hasher;
use narval_nix::{ContentsCheck, ContentsHasher, Hash, PathInfo, Sha256, StoreDir};

/// The hashes of one NAR.
pub(crate) struct Hashes {
    nar: Sha256Hasher,
    contents: Option<(Hash, ContentsHasher)>,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hashed {
    /// The hash of the NAR.
    pub(crate) nar: Sha256,
    /// The hash of the contents that the path's name wants, and the one they have; `None` if they have none.
    pub(crate) contents: Option<(Hash, Option<Hash>)>,
}

impl Hashed {
    /// Whether the contents are those that the name wants, if it wants any.
    pub(crate) fn fits_the_name(&self) -> bool {
        self.contents.is_none_or(|(expected, found)| found == Some(expected))
    }
}

impl Hashes {
    /// For a path of which this is known.
    pub(crate) fn of(info: &PathInfo, store_dir: &StoreDir) -> Self {
        let contents = info.check_by_contents(store_dir).and_then(|check| match check {
            ContentsCheck::Nar => None,
            ContentsCheck::Hash { expected, .. } => Some((expected, ContentsHasher::new(&check)?)),
        });
        Self { nar: Sha256Hasher::new(), contents }
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.nar.update(bytes);
        if let Some((_, contents)) = &mut self.contents {
            contents.update(bytes);
        }
    }

    pub(crate) fn finish(self) -> Hashed {
        let contents = self.contents.map(|(expected, hasher)| (expected, hasher.finish()));
        Hashed { nar: self.nar.finish(), contents }
    }
}
