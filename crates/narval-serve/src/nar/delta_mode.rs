//! Whether deltas of NARs are sent.

/// Whether deltas of NARs are sent to clients that have another version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeltaMode {
    /// Never.
    Off,
    /// Those that were made in advance.
    Kept,
    /// Those, and others that are made on request.
    #[default]
    On,
}
