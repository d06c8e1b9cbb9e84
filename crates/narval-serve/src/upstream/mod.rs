//! Answers from upstreams, after those of the store and of the cache that is written.

pub(crate) mod nar;
pub(crate) mod narinfo;
pub(crate) mod small;
