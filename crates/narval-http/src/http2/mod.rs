//! HTTP/2 without I/O (RFC 9113): frames, header compression and flow control as pure functions over byte slices.

#![forbid(unsafe_code)]

pub(crate) mod flow;
pub(crate) mod frame;
pub(crate) mod head;
pub(crate) mod hpack;
pub(crate) mod response;
pub(crate) mod settings;
