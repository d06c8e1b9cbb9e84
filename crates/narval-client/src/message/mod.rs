//! Messages of HTTP/1.1 as this client writes and reads them: addresses, requests, heads, bodies, codings.

pub(crate) mod body;
pub(crate) mod coding;
pub(crate) mod context;
pub(crate) mod head;
pub(crate) mod request;
pub mod request_id;
pub(crate) mod upload;
pub(crate) mod url;
