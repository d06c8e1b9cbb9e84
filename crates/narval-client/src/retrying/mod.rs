//! When it fails: what is tried again, from where, and when no more.

pub(crate) mod breaker;
pub(crate) mod resume;
pub(crate) mod retry;
pub(crate) mod trouble;
