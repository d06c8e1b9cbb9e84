//! Answers from the writable cache.

pub(crate) mod nar;
pub(crate) mod narinfo;
pub(crate) mod peer;
pub(crate) mod small;
