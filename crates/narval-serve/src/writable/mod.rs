//! Answers from the writable cache.

pub(crate) mod nar;
pub(crate) mod peer;
pub(crate) mod small;
