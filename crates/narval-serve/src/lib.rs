//! A Nix store as a binary cache: the service behind `narval serve` and `nix-serve`.

mod auth;
mod background;
mod caches;
mod config;
mod error;
mod gate;
mod metrics;
mod nar;
mod narinfo;
mod page;
mod prepared;
mod routes;
mod service;
mod sharded;
mod state;
mod upload;
mod upstream;
mod warm;
mod written;

pub use auth::oidc::{OidcExchange, OidcGrant};
pub use caches::{Caches, is_reserved_name};
pub use config::{Config, Face, NARINFO_MEMO_BYTES_DEFAULT};
pub use nar::zstd::NarCacheConfig;
pub use service::{Service, ServiceError, Sources, WrittenCache};
pub use state::ServerState;
pub use upload::SMALL_UPLOAD_BYTES;
pub use warm::{Warmed, warm};
