//! What one upstream says.

use super::Unavailable;

/// What one upstream answers.
pub(super) enum Said<T> {
    /// It has it.
    Has(T),
    /// It does not have it, or nothing that is accepted.
    Absent,
    /// It is not known whether it has it.
    Failed(Unavailable),
}
