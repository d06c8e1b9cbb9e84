//! HTTP/1.1 without I/O: pure functions over byte slices (RFC 9110, RFC 9112).
//!
//! Nothing here touches a socket, a file or, except in [`date`], a clock; everything is covered by the fuzz targets in
//! `fuzz/`.

pub mod accept;
pub mod chunked;
pub mod conditional;
pub mod date;
mod error;
mod forwarded;
pub mod head;
pub(crate) mod head_parts;
pub mod multipart;
pub mod path;
pub mod range;
pub(crate) mod response_head;

pub use error::ProtoError;
