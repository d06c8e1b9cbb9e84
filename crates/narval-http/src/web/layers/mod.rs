//! Ready-made middlewares.

pub(crate) mod auth;
pub(crate) mod body_limit;
pub(crate) mod rate_limit;
pub(crate) mod same_origin;
pub(crate) mod security_headers;
pub(crate) mod timeout;
pub(crate) mod trace;
