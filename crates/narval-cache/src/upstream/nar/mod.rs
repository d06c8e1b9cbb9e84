//! NARs from upstreams: which files hold one, and how they are fetched.

pub(in crate::upstream) mod fetch;
pub(in crate::upstream) mod nars;
mod near;
pub(in crate::upstream) mod places;
pub(in crate::upstream) mod plain;
mod rate;
pub(in crate::upstream) mod source;
