//! Files of a folder over HTTP: a [`Handler`](crate::Handler) for static sites.
//!
//! ```no_run
//! use narval_http::files::{Site, SiteOptions};
//!
//! let site = Site::open("public", SiteOptions::default())?;
//! // A handler like any other: Server::builder(site) …
//! # let _ = site;
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! `folder` opens names beneath the root; `resource` is a file of the site with all its encodings; `cache` keeps
//! resources for a moment; `answer` makes responses from them without accessing the disk. `precompress` makes
//! encodings and deltas in advance; `dictionary` is what browsers and the server say about previous versions.

mod answer;
mod cache;
mod dictionary;
mod family;
mod folder;
mod listing;
mod mime;
mod options;
mod precompress;
mod resource;
mod site;

pub use mime::is_compressible;
pub use options::{CacheRule, PathGlob, RuleError, SiteOptions};
pub use precompress::{PREVIOUS_MAX, PrecompressOptions, Precompressed, precompress};
pub use site::Site;
