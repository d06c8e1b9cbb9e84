//! The formats of Nix: store paths, nix32, hashes, NAR, narinfo, signatures, listings, content addresses, realisations.
//!
//! This crate does no I/O and has no unsafe code. Types hold only valid values, so parsed data need not be checked
//! again. Every parser has named limits on what it reads and holds, and its errors say what is wrong and where.
#![forbid(unsafe_code)]

pub mod cache_info;
mod closure;
pub mod compression;
pub mod content_address;
mod contents;
pub mod derivation;
pub mod hash;
pub mod keys;
pub mod listing;
pub mod nar;
pub mod narinfo;
pub mod nix32;
pub mod path_info;
pub mod realisation;
pub mod signature;
pub mod store_path;

pub use cache_info::CacheInfo;
pub use closure::ClosureWalk;
pub use compression::Compression;
pub use content_address::ContentAddress;
pub use contents::ContentsHasher;
pub use hash::{Algorithm, Hash, Hasher, NarHash, Sha256, Sha256Hasher};
pub use keys::{PublicKey, SecretKey, TrustedKeys};
pub use listing::Listing;
pub use narinfo::NarInfo;
pub use path_info::{ContentsCheck, ContentsClaim, HashedContents, PathInfo};
pub use signature::{Signature, fingerprint};
pub use store_path::{HashPart, StoreDir, StorePath, StorePathName};
