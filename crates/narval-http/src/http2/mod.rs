//! HTTP/2 without I/O (RFC 9113): frames, header compression, flow control, and a connection as a state machine.
//!
//! A connection ([`conn`]) is the counterpart of HTTP/1's: requests become the same heads, and the same handlers answer
//! them.

#![forbid(unsafe_code)]

pub(crate) mod conn;
pub(crate) mod flow;
pub(crate) mod frame;
pub(crate) mod head;
pub(crate) mod hpack;
pub(crate) mod response;
pub(crate) mod settings;
