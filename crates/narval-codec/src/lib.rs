//! What NARs are compressed with.
//!
//! [`decode`] has a decoder for every compression of narinfos that is in use, and [`encode`] an encoder for zstd, in frames that several cores
//! can decompress. Both pass bytes on as they come and have a limit on their memory. A [`delta`] is a NAR as the difference from another one.
//! [`CODINGS`] are the content codings of an HTTP client for binary caches, with the same decoders.
//!
//! Start at [`decode::Decoder`] and [`encode::Encoding`].

#![forbid(unsafe_code)]

mod codings;
pub mod decode;
pub mod delta;
pub mod encode;

pub use codings::{CODINGS, of_coding};
