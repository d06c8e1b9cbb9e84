//! Narinfos that were verified.

use std::sync::Arc;

use narval_nix::{Compression, HashPart, NarInfo};

use super::nar_name::NarName;
use crate::upstream::remote::Remote;

/// A narinfo that was verified.
pub(in crate::upstream) struct Known {
    pub(in crate::upstream) info: Arc<NarInfo>,
    pub(in crate::upstream) remote: Arc<Remote>,
    pub(in crate::upstream) name: NarName,
    /// Whether the narinfo and the name are those of the uncompressed NAR, which is fetched as a delta where that is possible.
    pub(in crate::upstream) plain: bool,
    pub(in crate::upstream) text: Arc<[u8]>,
}

impl Known {
    /// The size of the file, if it is known.
    pub(in crate::upstream) fn length(&self) -> Option<u64> {
        let is_plain = self.plain || self.info.compression == Compression::None;
        let file_size = self.info.file_size.filter(|_| !self.plain);
        file_size.or(is_plain.then_some(self.info.nar_size))
    }

    /// The same with the file that has this name: compressed or not, whatever the narinfo says now. Clients remember names.
    pub(in crate::upstream) fn named(self: Arc<Self>, name: &str) -> Option<Arc<Self>> {
        if self.name.to_string() == name {
            return Some(self);
        }
        let plain = !self.plain;
        let other = if plain { NarName::plain(&self.info) } else { NarName::of(&self.info) };
        (other.to_string() == name).then(|| {
            let Self { info, remote, text, .. } = &*self;
            Arc::new(Self { info: info.clone(), remote: remote.clone(), name: other, plain, text: text.clone() })
        })
    }
}

/// The start of a stored narinfo.
pub(in crate::upstream) const KEPT_FIRST: &str = "Upstream: ";

pub(in crate::upstream) fn kept_name(hash_part: &HashPart) -> String {
    format!("narinfo/{hash_part}")
}

/// The name under which a path is recorded whose NAR this upstream does not have, or has wrong.
pub(in crate::upstream) fn wrong_name(remote: &Remote, hash_part: &HashPart) -> String {
    format!("{hash_part} {}", remote.url())
}
