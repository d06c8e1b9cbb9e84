//! What neighbours have given and got.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts NARs that pass between neighbours.
#[derive(Debug, Default)]
pub struct NeighbourCounts {
    offered: AtomicU64,
    refused: AtomicU64,
    given: AtomicU64,
    given_bytes: AtomicU64,
    taken: AtomicU64,
    taken_bytes: AtomicU64,
    failed: AtomicU64,
}

/// What NARs have passed between neighbours since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NeighbourStats {
    /// How many neighbours there are now.
    pub neighbours: u64,
    /// Questions for a NAR that were answered with yes.
    pub offered: u64,
    /// NARs that were not sent, because too many were being sent.
    pub refused: u64,
    /// NARs that were sent, or begun to be.
    pub given: u64,
    /// Their bytes.
    pub given_bytes: u64,
    /// NARs that came from neighbours, and were right.
    pub taken: u64,
    /// Their bytes.
    pub taken_bytes: u64,
    /// Those that did not come to their end, or were wrong.
    pub failed: u64,
}

impl NeighbourCounts {
    pub(in crate::upstream) fn offered(&self) {
        self.offered.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a NAR that is not sent, because too many are.
    pub fn refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a NAR that is sent.
    pub fn gives(&self) {
        self.given.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts bytes of it.
    pub fn gave(&self, bytes: u64) {
        self.given_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(in crate::upstream) fn took(&self, bytes: u64) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.taken_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(in crate::upstream) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::upstream) fn stats(&self, neighbours: usize) -> NeighbourStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NeighbourStats {
            neighbours: neighbours as u64,
            offered: get(&self.offered),
            refused: get(&self.refused),
            given: get(&self.given),
            given_bytes: get(&self.given_bytes),
            taken: get(&self.taken),
            taken_bytes: get(&self.taken_bytes),
            failed: get(&self.failed),
        }
    }
}
