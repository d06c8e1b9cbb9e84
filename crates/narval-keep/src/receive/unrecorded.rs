//! The NARs that this process has stored and not recorded yet: what it knows of them. [`store_first`](super::store_first) says why there are any.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::receipt::StoredFirst;
use super::receipt_key::ReceiptKey;
use crate::NarTarget;
use narval_client::clock;

/// After this time, a process records what no commit has recorded.
pub(crate) const RECORD_AFTER: Duration = Duration::from_secs(10 * 60);

/// How often a process says that it is alive.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(60 * 60);

/// A process that has stored nothing for this long is no writer any more.
pub(crate) const IDLE_FOR: Duration = RENEW_EVERY;

/// The most unrecorded NARs of one cache. Then all of them are recorded.
const UNRECORDED_MAX: usize = 4096;

/// The unrecorded NARs of one cache.
#[derive(Default)]
pub(crate) struct Unrecorded(pub(crate) Mutex<State>);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) writer: Option<Writing>,
    /// By the names of their objects.
    pub(crate) waiting: HashMap<String, Waiting>,
    /// Those that are being stored.
    pub(crate) storing: usize,
}

/// This process as a writer.
pub(crate) struct Writing {
    pub(crate) number: i64,
    pub(crate) key: ReceiptKey,
    pub(crate) renewed: Instant,
    pub(crate) used: Instant,
}

pub(crate) struct Waiting {
    pub(crate) stored: StoredFirst,
    pub(crate) receipt: String,
    pub(crate) since: Instant,
}

impl Unrecorded {
    /// The bytes of all of them.
    pub(crate) fn bytes(&self) -> u64 {
        clock::lock(&self.0).waiting.values().map(|waiting| waiting.stored.nar.file_size).sum()
    }

    /// Whether an upload is among them.
    pub(crate) fn has(&self, target: &NarTarget) -> bool {
        self.find(target).is_some()
    }

    /// The one of an upload, with its receipt.
    pub(crate) fn find(&self, target: &NarTarget) -> Option<(StoredFirst, String)> {
        let state = clock::lock(&self.0);
        let found = match target {
            NarTarget::File(name) => state.waiting.get(&name.to_string()),
            NarTarget::Nar { nar_hash, .. } => {
                // In any encoding, and always the same one.
                let of_it = state.waiting.values().filter(|waiting| waiting.stored.nar.nar_hash == *nar_hash);
                of_it.min_by_key(|waiting| waiting.stored.nar.file_hash)
            }
        };
        found.map(|waiting| (waiting.stored.clone(), waiting.receipt.clone()))
    }

    pub(crate) fn has_room(&self, more: usize) -> bool {
        clock::lock(&self.0).waiting.len() + more <= UNRECORDED_MAX
    }

    pub(crate) fn forget<'a>(&self, names: impl IntoIterator<Item = &'a String>) {
        let mut state = clock::lock(&self.0);
        for name in names {
            state.waiting.remove(name);
        }
    }

    /// Those that have waited for so long.
    pub(crate) fn due(&self, after: Duration) -> Vec<(String, StoredFirst)> {
        let now = clock::instant();
        let state = clock::lock(&self.0);
        let is_due = |waiting: &&Waiting| now.saturating_duration_since(waiting.since) >= after;
        // In one order, so that a simulation always does the same.
        let due = state.waiting.values().filter(is_due);
        let mut due: Vec<_> = due.map(|waiting| (waiting.stored.name().to_string(), waiting.stored.clone())).collect();
        due.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        due
    }
}
