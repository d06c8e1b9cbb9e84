//! What a machine remembers: which generation is good, which one it is trying, and what it has decided about releases. A file beside the profile.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::remembered;
use narval_transfer::Error;

/// The largest file that is read.
const LEN_MAX: u64 = 1024 * 1024;

/// A generation of the profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    /// Its number.
    pub generation: u64,
    /// Where it leads: a path in the store's folder.
    pub path: PathBuf,
    /// The revision of the release. `None` if something else made the generation.
    pub revision: Option<u64>,
    /// Since when, in seconds since 1970.
    pub since: u64,
}

/// A release that did not work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The revision.
    pub revision: u64,
    /// Why.
    pub why: String,
    /// When, in seconds since 1970.
    pub at: u64,
}

/// How often the attempt to switch to a release was interrupted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Interrupted {
    pub(super) revision: u64,
    pub(super) times: u32,
}

/// All of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FollowState {
    /// The release that is followed. Decisions about another one do not count.
    pub(super) release: String,
    /// What runs, and is gone back to.
    pub(super) good: Option<Running>,
    /// Written before anything is changed, and removed when the attempt has ended in one way or the other. Whoever finds it goes back.
    #[serde(default)]
    pub(super) trying: Option<Running>,
    /// The last revision that was decided on, for good or bad.
    #[serde(default)]
    pub(super) decided: Option<u64>,
    /// The last failure, until a release is good.
    #[serde(default)]
    pub(super) failed: Option<Failed>,
    #[serde(default)]
    pub(super) interrupted: Option<Interrupted>,
}

/// Reads the file; without one, nothing is known yet.
pub(super) fn read(path: &Path) -> Result<FollowState, Error> {
    let advice = "; if the profile is as it should be, remove the file: what runs is then taken as good";
    remembered::read(path, LEN_MAX, advice)
}

/// Replaces the file. It survives a power failure from then on.
pub(super) fn write(path: &Path, state: &FollowState) -> Result<(), Error> {
    remembered::write(path, state, 0o644)
}
