use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use narval_nix::nix32;

use narval_client::clock;

/// What changes of this process are marked with: it counts those itself.
pub(super) struct Node {
    pub(super) id: String,
    /// Another name after a change of which nobody knows whether it took effect: it is noticed as others' are.
    pub(super) generation: AtomicU64,
    /// The time of the database in milliseconds since 1970, less [`clock::elapsed`] at that moment.
    offset_ms: AtomicI64,
    /// Whether it rebuilds the index.
    pub(super) is_rebuild: bool,
}

impl Node {
    pub(super) fn new(is_rebuild: bool) -> Result<Self, getrandom::Error> {
        let mut id = [0; 10];
        getrandom::fill(&mut id)?;
        Ok(Self { id: nix32::encode(&id), generation: AtomicU64::new(0), offset_ms: AtomicI64::new(0), is_rebuild })
    }

    /// The database has said that it was this time, in milliseconds since 1970, when so much time had passed here.
    pub(super) fn set_time(&self, time_ms: i64, elapsed: Duration) {
        self.offset_ms.store(time_ms.saturating_sub(millis(elapsed)), Ordering::Relaxed);
    }

    /// The time of the database, in seconds since 1970.
    pub(super) fn now(&self) -> u64 {
        let now_ms = self.offset_ms.load(Ordering::Relaxed).saturating_add(millis(clock::elapsed()));
        u64::try_from(now_ms / 1000).unwrap_or(0)
    }

    pub(super) fn name(&self) -> String {
        format!("{}.{}", self.id, self.generation.load(Ordering::Acquire))
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
