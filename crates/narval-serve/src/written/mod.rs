//! Answers from the writable cache.

pub(crate) mod nar;
pub(crate) mod narinfo;
pub(crate) mod small;
