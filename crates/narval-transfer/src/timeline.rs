//! The log of what happens when.

/// The target of the spans that make a timeline: `path` around all that a path needs, `fetch`, `decompress`, `hash`, `write`, and `wait for a core`.
pub const TIMELINE: &str = "narval::timeline";
