//! Buckets: binary caches in an object store with the S3 API (`s3://bucket/prefix?region=…&endpoint=…`).
//!
//! The layout is that of every binary cache, so that Nix (`nix copy --from s3://…`), a CDN and Narval read the same
//! bucket. [`BucketSigner`] makes the HTTP client send signed requests for `s3` addresses; with it, a bucket is read
//! like any other cache. [`put_object`] stores a file, in parts if it is large. The parameters are Nix's (`nix
//! help-stores`, "S3 Binary Cache Store"); credentials are found in the same way as AWS's tools do ([`credentials`]).

#![forbid(unsafe_code)]

mod address;
mod checksums;
mod client;
pub mod credentials;
mod error_response;
mod list;
mod objects;
mod put;
mod put_error;
mod signer;
mod writer;
mod xml;

pub use address::{AddressingStyle, BucketAddress, BucketError, Checksums};
#[cfg(any(test, feature = "simulation"))]
pub use client::ENVIRONMENT;
pub use client::client;
pub use list::{Object, find_listed};
#[cfg(any(test, feature = "simulation"))]
pub use objects::Simulated;
pub use objects::{Objects, is_failing};
pub use put::{PART_LEN_MIN, SINGLE_PUT_LEN_MAX, put_object};
pub use put_error::PutError;
pub use signer::BucketSigner;
pub use writer::ObjectWriter;
