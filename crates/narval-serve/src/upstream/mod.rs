//! Answers from upstreams, after those of the store and of the writable cache.

pub(crate) mod nar;
pub(crate) mod neighbours;
pub(crate) mod small;
pub(crate) mod traces;
