//! Binary caches as places that store paths are taken from.
//!
//! [`decode`] has the decoders for the compressions of NARs.

#![forbid(unsafe_code)]

pub mod decode;
