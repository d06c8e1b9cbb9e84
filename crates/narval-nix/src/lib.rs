//! The formats of Nix: store paths, nix32, hashes, NAR, narinfo, signatures, listings, content addresses, realisations.
//!
//! This crate does no I/O and has no unsafe code. Types hold only valid values, so parsed data need not be checked
//! again. Every parser has named limits on what it reads and holds, and its errors say what is wrong and where.
//!
//! - [`StorePath`], [`StoreDir`], [`HashPart`]: names of paths. [`struct@Hash`], [`nix32`]: hashes in all of Nix's encodings.
//! - [`NarInfo`], [`CacheInfo`], [`Listing`]: the files of a binary cache. [`realisation`], [`derivation`]: outputs.
//! - [`release`]: names that a cache gives to paths. [`presence`]: what a cache has, as a filter.
//! - [`SecretKey`], [`PublicKey`], [`TrustedKeys`], [`Signature`]: who vouches for a path. [`ContentAddress`],
//!   [`ContentsCheck`]: paths whose name follows from their contents.
//! - [`nar`]: NARs, written and parsed piece by piece, in bounded memory. [`ClosureWalk`]: visits each path of a closure once. [`ClosureDifference`]: what two closures do not share.
//!
//! ```
//! use narval_nix::{NarInfo, SecretKey, StoreDir, TrustedKeys};
//!
//! let text = "StorePath: /nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-a\n\
//!     URL: nar/a.nar.zst\n\
//!     Compression: zstd\n\
//!     NarHash: sha256:0ip26j2h11n1kgkz36rl4akv694yz65hr72q4kv4b3lxcbi65b3p\n\
//!     NarSize: 112\n\
//!     References: \n";
//! let store_dir = StoreDir::default();
//! let mut info = NarInfo::parse(text.as_bytes(), &store_dir)?;
//! assert_eq!(info.path.to_string(), "00bgd045z0d4icpbc2yyz4gx48ak44la-a");
//!
//! let key = SecretKey::generate("cache.example.org-1")?;
//! let fingerprint = info.fingerprint(&store_dir);
//! info.signatures.push(key.sign(fingerprint.as_bytes())?);
//!
//! let trusted: TrustedKeys = [key.public_key()].into_iter().collect();
//! assert!(trusted.find_valid(fingerprint.as_bytes(), &info.signatures).is_some());
//! assert!(info.render(&store_dir).contains("\nSig: cache.example.org-1:"));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod cache_info;
mod closure;
mod closure_difference;
pub mod compression;
pub mod content_address;
mod contents;
pub mod derivation;
pub mod hash;
pub mod listing;
pub mod nar;
pub mod narinfo;
mod package;
pub mod path_info;
pub mod presence;
pub mod realisation;
pub mod release;
mod signing;
pub mod store_path;

pub use cache_info::CacheInfo;
pub use closure::ClosureWalk;
pub use closure_difference::{ClosureDifference, ClosurePath, PackageChange};
pub use compression::Compression;
pub use content_address::ContentAddress;
pub use contents::ContentsHasher;
pub use hash::nix32;
pub use hash::{Algorithm, Hash, Hasher, NarHash, Sha256, Sha256Hasher};
pub use listing::Listing;
pub use narinfo::NarInfo;
pub use package::{PackageName, compare_versions, nearer_version};
pub use path_info::{ContentsCheck, ContentsClaim, HashedContents, PathInfo};
pub use release::Release;
pub use signing::keys::{PublicKey, SecretKey, SignError, TrustedKeys};
pub use signing::signature::{Signature, fingerprint};
pub use signing::{keys, signature};
pub use store_path::{HashPart, StoreDir, StorePath, StorePathName};
