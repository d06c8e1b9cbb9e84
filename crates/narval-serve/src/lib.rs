//! A Nix store as a binary cache: the service behind `narval serve` and `nix-serve`.

mod config;
mod error;
mod metrics;
mod nar;
mod narinfo;
mod prepared;
mod routes;
mod service;
mod sharded;
mod warm;

pub use config::{Config, Face, NARINFO_MEMO_BYTES_DEFAULT};
pub use nar::zstd::NarCacheConfig;
pub use service::{Service, ServiceError};
pub use warm::{Warmed, warm};
