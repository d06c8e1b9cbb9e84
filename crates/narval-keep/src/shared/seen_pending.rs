//! What this process knows of the pending entries of the index.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

/// What this process knows of each pending entry.
#[derive(Default)]
pub(crate) struct SeenPending(pub(crate) Mutex<HashMap<i64, Seen>>);

#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) first: Instant,
    /// Whether this process has carried it out.
    pub(crate) is_done: bool,
}
