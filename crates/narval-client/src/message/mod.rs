//! Messages of HTTP/1.1 as this client reads them: heads, codings, and the identifiers of requests and traces.

pub(crate) mod coding;
pub(crate) mod context;
pub(crate) mod head;
pub mod request_id;
