//! Requests, responses and bodies, as handlers use them.

pub(crate) mod body;
pub(crate) mod carrier;
pub(crate) mod cookie;
pub(crate) mod departure;
pub(crate) mod handler;
pub(crate) mod informational;
pub(crate) mod into_response;
pub(crate) mod invalid_header;
pub(crate) mod late;
pub(crate) mod panic_guard;
pub(crate) mod reject;
pub(crate) mod request;
pub(crate) mod responder;
pub(crate) mod response;
pub(crate) mod upgrade_error;
