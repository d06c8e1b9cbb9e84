//! Grace periods: how long NARs without a narinfo are kept.

use crate::records::paths::Cutoff;

/// How long a NAR without a narinfo is kept, in seconds: a day. Clients that have its old narinfo can still fetch it,
/// and it protects uploads whose narinfo follows last.
pub const COLLECT_GRACE: u64 = 24 * 60 * 60;

/// The minimum time that such a NAR is kept, in seconds, after it was uploaded, its narinfo was hidden, or a client was
/// told that the cache has it: ten minutes. When the disk or a quota is full, those unused for longer are removed
/// immediately.
pub const UNFINISHED_GRACE: u64 = 10 * 60;

/// The cutoff for this grace period. A client that was told that the cache has a NAR has [`UNFINISHED_GRACE`] to send its narinfo,
/// however old the NAR is.
pub(super) fn cutoff(grace: u64, now: u64) -> Cutoff {
    Cutoff { orphaned: now.saturating_sub(grace), used: now.saturating_sub(grace.min(UNFINISHED_GRACE)) }
}
