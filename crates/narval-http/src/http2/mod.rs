//! HTTP/2 (RFC 9113).

#![forbid(unsafe_code)]

#[cfg_attr(not(test), expect(dead_code, unused_imports, reason = "the connection that uses it follows"))]
pub(crate) mod hpack;
