//! A Nix store as a binary cache: the service behind `narval serve` and `nix-serve`.
//!
//! A [`Service`] is a [`Handler`](narval_http::Handler) that answers for one cache, from up to three [`Sources`]: a live store, a cache that
//! accepts uploads, and the upstreams of that cache. [`CacheRouter`] has several of them in one server, chosen by host and path. What has to
//! survive a change of the configuration, such as counters and verified tokens, is in the [`ServerState`]. [`warm()`] compresses
//! NARs in advance.
//!
//! ```
//! use narval_http::{Bytes, Handler, Request, StatusCode};
//! use narval_serve::{Config, Dialect, Service};
//! use narval_store::{LocalStore, Store, StoreConfig};
//!
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let config = StoreConfig::for_root(folder)?;
//! LocalStore::open(config.clone())?;
//! let service = Service::new(Config::new(Dialect::Narval), Store::new(config))?;
//!
//! // As a server would: Server::builder(service).listen(…).build()?.run()
//! let get = |path: &str| Request::parse(format!("GET {path} HTTP/1.1\r\nHost: cache\r\n\r\n"), Bytes::new());
//! assert_eq!(service.handle(get("/nix-cache-info")?).status(), StatusCode::OK);
//! assert_eq!(service.handle(get("/00bgd045z0d4icpbc2yyz4gx48ak44la.narinfo")?).status(), StatusCode::NOT_FOUND);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod api;
mod auth;
mod cache_router;
mod config;
mod error;
mod families;
mod gate;
mod metrics;
mod nar;
mod narinfo;
mod origins;
mod page;
mod piecework;
mod prepared;
mod routes;
mod service;
mod sharded;
mod state;
mod upload;
mod upstream;
mod warm;
mod watch;
mod writable;

pub use api::{ApiRequest, ask_api, openapi};
pub use auth::oidc::{OidcExchange, OidcGrant};
pub use cache_router::CacheRouter;
pub use config::{Config, Dialect, NARINFO_MEMO_BYTES_DEFAULT};
pub use nar::delta_mode::DeltaMode;
pub use nar::zstd::NarCacheConfig;
pub use routes::cache_names::is_reserved_name;
pub use service::open::ServiceError;
pub use service::{Service, Sources, WritableCache};
pub use state::ServerState;
pub use upload::receive::SMALL_UPLOAD_BYTES;
pub use upstream::neighbours::{ForNeighbours, NeighbourLimits};
pub use warm::{Warmed, WarmedDelta, warm, warm_delta};
