//! A Nix store as a binary cache: the service behind `narval serve` and `nix-serve`.

mod config;
mod corrupt;
mod error;
mod flat_nars;
mod layouts;
mod memo;
mod metrics;
mod nar_cache;
mod narinfo;
mod ready_nars;
mod routes;
mod service;
mod striped;
mod warm;

pub use config::{Config, Face, NARINFO_MEMO_BYTES_DEFAULT};
pub use nar_cache::NarCacheConfig;
pub use service::{Service, ServiceError};
pub use warm::{Warmed, warm};
