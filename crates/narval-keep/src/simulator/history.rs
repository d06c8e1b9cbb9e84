//! What the clients of the simulation were told.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// What was promised to clients, by hash part, with that of its cache before it ([`CACHES`](super::state::CACHES)). Times are in milliseconds.
#[derive(Default)]
pub(crate) struct History {
    /// Paths, and the objects of their NARs.
    pub(crate) visible: BTreeMap<String, String>,
    /// The names that paths have, and what they mean.
    pub(crate) named: BTreeMap<String, String>,
    /// When the last push that succeeded has begun.
    pub(crate) pushed: HashMap<String, u64>,
    /// Until when a path was promised to stay.
    pub(crate) leased: HashMap<String, u64>,
    /// When it was removed.
    pub(crate) removed: HashMap<String, u64>,
    /// All that clients have asked to commit.
    pub(crate) ever: HashSet<String>,
    pub(crate) deleted: HashMap<String, u64>,
    /// Those whose NAR once seemed to be lost.
    pub(crate) lost: HashSet<String>,
    pub(crate) releases: Releases,
    pub(crate) failovers: Lost,
    /// Paths, and narinfos for them: clients may bring them to any node, at any time.
    pub(crate) narinfos: Vec<(usize, Vec<u8>)>,
    /// When NARs were last removed by somebody else than a collection, and which there were.
    pub(crate) discarded: u64,
    pub(crate) discards: HashSet<(i64, String)>,
    /// Objects that have lost their rows: `fsck` removes them.
    pub(crate) strays: HashSet<String>,
}

/// What a standby has, and what clients had been told by then.
pub(crate) struct Standby {
    pub(crate) at: u64,
    pub(crate) pushed: HashMap<String, u64>,
    pub(crate) leased: HashMap<String, u64>,
}

/// What failovers have left behind.
#[derive(Default)]
pub(crate) struct Lost {
    /// When a standby took over, in milliseconds.
    pub(crate) at: Vec<u64>,
    /// Paths that were changed in a lost moment: their narinfos may be those of then.
    pub(crate) changed: HashSet<String>,
    /// Those that were deleted in one, and are there again: their NARs may be gone.
    pub(crate) returned: HashSet<String>,
}

impl Lost {
    /// Whether something that began then was acknowledged by a server that is lost, perhaps.
    pub(crate) fn began_before(&self, time: u64) -> bool {
        self.at.last().is_some_and(|at| time <= *at)
    }
}

/// A request for a release, which may be sent again.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) cache: &'static str,
    pub(crate) name: &'static str,
    pub(crate) key: String,
    pub(crate) what: What,
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    Paths(Vec<usize>),
    /// The newest one of this name, for a share of machines.
    Promotion(&'static str, Option<u8>),
}

/// A release of a cache.
pub(crate) type Id = (String, String, u64);

/// What the clients were told.
#[derive(Default)]
pub(crate) struct Releases {
    pub(crate) asked: Vec<Asked>,
    /// Records of releases that were acknowledged.
    pub(crate) told: BTreeMap<Id, String>,
    /// Under which revision a request was acknowledged.
    pub(crate) of_request: BTreeMap<String, u64>,
    /// Those that somebody has asked to forget.
    pub(crate) forgotten: BTreeSet<Id>,
    /// The newest revision of each name, as the index had it last.
    pub(crate) newest: BTreeMap<(String, String), u64>,
}
