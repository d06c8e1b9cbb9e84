//! What one upstream answers, and what those are told who ask them all.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use narval_files::Waits;

/// What one upstream answers.
pub(super) enum UpstreamAnswer<T> {
    /// It has it.
    Has(T),
    /// It does not have it, or nothing that is accepted.
    Absent,
    /// It is not known whether it has it.
    Failed(Unavailable),
}

/// The result of a lookup.
#[derive(Clone, Debug)]
pub enum Lookup {
    /// Its narinfo, as served.
    Found(Arc<[u8]>),
    /// No upstream has it.
    Absent,
}

/// A NAR.
#[derive(Debug)]
pub enum NarAnswer {
    /// A stored file of this length.
    File(File, u64),
    /// It is being fetched; its length, if known.
    Growing(Waits, Option<u64>),
}

/// No upstream can be queried at the moment. It is unknown whether they have the path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no upstream is available at the moment ({reason}); try again in {} s", retry_after.as_secs())]
pub struct Unavailable {
    /// When a client should try again.
    pub retry_after: Duration,
    /// Why, for the log.
    pub reason: String,
}

impl Unavailable {
    pub(crate) fn new(retry_after_seconds: u64, reason: impl Into<String>) -> Self {
        Self { retry_after: Duration::from_secs(retry_after_seconds), reason: reason.into() }
    }
}
