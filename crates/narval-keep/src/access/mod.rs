//! Who may do what, and the log of who did what.

pub(crate) mod audit;
pub(crate) mod grant;
pub(crate) mod used;
