//! What the clients of the simulation were told.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::failover::Lost;
use super::releases::Releases;

/// What was promised to clients, by hash part, with that of its cache before it ([`CACHES`](super::CACHES)). Times are in milliseconds.
#[derive(Default)]
pub(super) struct History {
    /// Paths, and the objects of their NARs.
    pub(super) visible: BTreeMap<String, String>,
    /// The names that paths have, and what they mean.
    pub(super) named: BTreeMap<String, String>,
    /// When the last push that succeeded has begun.
    pub(super) pushed: HashMap<String, u64>,
    /// Until when a path was promised to stay.
    pub(super) leased: HashMap<String, u64>,
    /// When it was removed.
    pub(super) removed: HashMap<String, u64>,
    /// All that clients have asked to commit.
    pub(super) ever: HashSet<String>,
    pub(super) deleted: HashMap<String, u64>,
    /// Those whose NAR once seemed to be lost.
    pub(super) lost: HashSet<String>,
    pub(super) releases: Releases,
    pub(super) failovers: Lost,
    /// Paths, and narinfos for them: clients may bring them to any node, at any time.
    pub(super) narinfos: Vec<(usize, Vec<u8>)>,
    /// When NARs were last removed by somebody else than a collection, and which there were.
    pub(super) discarded: u64,
    pub(super) discards: HashSet<(i64, String)>,
    /// Objects that have lost their rows: `fsck` removes them.
    pub(super) strays: HashSet<String>,
}
