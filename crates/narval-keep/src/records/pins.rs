//! Pins.

use narval_nix::HashPart;
use narval_nix::store_path::HASH_PART_LEN;
use serde::{Deserialize, Serialize};

/// How long a pin holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PinFor {
    /// How many of the newest pins of this name are kept. `None` keeps all.
    pub keep: Option<u32>,
    /// When it ends, in seconds since 1970. `None`: never.
    pub until: Option<u64>,
}

/// A pin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// Its name. Several pins of one name are its revisions.
    pub name: String,
    /// Base name of the path that it keeps, with its closure.
    pub path: String,
    /// When it was created, in seconds since 1970.
    pub created: u64,
    /// How long it is valid.
    #[serde(flatten)]
    pub holds: PinFor,
}

impl Pin {
    /// The hash part of its path, which the index has only of paths.
    pub(crate) fn hash_part(&self) -> Option<HashPart> {
        self.path.get(..HASH_PART_LEN)?.parse().ok()
    }

    pub(crate) fn is_in_force(&self, now: u64) -> bool {
        self.holds.until.is_none_or(|until| until > now)
    }
}
