//! What one upstream answers.

use super::Unavailable;

/// What one upstream answers.
pub(super) enum UpstreamAnswer<T> {
    /// It has it.
    Has(T),
    /// It does not have it, or nothing that is accepted.
    Absent,
    /// It is not known whether it has it.
    Failed(Unavailable),
}
