//! The names of NARs.

use std::fmt;

use narval_nix::{Algorithm, HashPart, NarHash, NarInfo};

/// The name of a NAR below `nar/`: `<hash part>-<hash>.nar.xz`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::upstream) struct NarName {
    hash_part: HashPart,
    /// The name of its file: the same for all paths that share it.
    pub(in crate::upstream) file: String,
}

impl NarName {
    pub(in crate::upstream) fn of(info: &NarInfo) -> Self {
        let file_hash = info.file_hash.filter(|hash| hash.algorithm() == Algorithm::Sha256);
        let hash = file_hash.map_or_else(|| info.nar_hash.to_nix32(), |hash| hash.to_nix32());
        // Some compressions have no extension in Nix: their names must not collide with others.
        let extension = match (info.compression, info.compression.file_extension()) {
            (narval_nix::Compression::None, _) => String::new(),
            (other, "") => format!(".{}", other.name()),
            (_, extension) => extension.to_owned(),
        };
        Self { hash_part: info.path.hash_part(), file: format!("{hash}.nar{extension}") }
    }

    /// The name of the uncompressed NAR of a path.
    pub(in crate::upstream) fn plain(info: &NarInfo) -> Self {
        Self { hash_part: info.path.hash_part(), file: Self::plain_file(&info.nar_hash) }
    }

    /// The name of an uncompressed NAR's file.
    pub(in crate::upstream) fn plain_file(nar_hash: &NarHash) -> String {
        format!("{}.nar", nar_hash.to_nix32())
    }

    /// The hash part in a name, if it has our format.
    pub(in crate::upstream) fn hash_part(name: &str) -> Option<HashPart> {
        let (hash_part, file) = name.split_once('-')?;
        file.contains(".nar").then(|| HashPart::parse(hash_part.as_bytes()).ok()).flatten()
    }
}

impl fmt::Display for NarName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.hash_part, self.file)
    }
}
