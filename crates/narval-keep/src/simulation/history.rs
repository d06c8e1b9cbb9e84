//! What the clients of the simulation were told.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

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

/// What a standby has, and what clients had been told by then.
pub(super) struct Standby {
    pub(super) at: u64,
    pub(super) pushed: HashMap<String, u64>,
    pub(super) leased: HashMap<String, u64>,
}

/// What failovers have left behind.
#[derive(Default)]
pub(super) struct Lost {
    /// When a standby took over, in milliseconds.
    pub(super) at: Vec<u64>,
    /// Paths that were changed in a lost moment: their narinfos may be those of then.
    pub(super) changed: HashSet<String>,
    /// Those that were deleted in one, and are there again: their NARs may be gone.
    pub(super) returned: HashSet<String>,
}

impl Lost {
    /// Whether something that began then was acknowledged by a server that is lost, perhaps.
    pub(super) fn began_before(&self, time: u64) -> bool {
        self.at.last().is_some_and(|at| time <= *at)
    }
}

/// A request for a release, which may be sent again.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) cache: &'static str,
    pub(super) name: &'static str,
    pub(super) key: String,
    pub(super) what: What,
}

#[derive(Debug, Clone)]
pub(super) enum What {
    Paths(Vec<usize>),
    /// The newest one of this name, for a share of machines.
    Promotion(&'static str, Option<u8>),
}

/// A release of a cache.
pub(super) type Id = (String, String, u64);

/// What the clients were told.
#[derive(Default)]
pub(super) struct Releases {
    pub(super) asked: Vec<Asked>,
    /// Records of releases that were acknowledged.
    pub(super) told: BTreeMap<Id, String>,
    /// Under which revision a request was acknowledged.
    pub(super) of_request: BTreeMap<String, u64>,
    /// Those that somebody has asked to forget.
    pub(super) forgotten: BTreeSet<Id>,
    /// The newest revision of each name, as the index had it last.
    pub(super) newest: BTreeMap<(String, String), u64>,
}
