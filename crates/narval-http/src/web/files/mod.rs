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
//! resources for a moment; `answer` makes responses from them without accessing the disk. `dictionary` is what browsers
//! and the server say about previous versions. Who makes encodings and deltas in advance names them by [`sidecar_ending`]
//! and [`delta_ending`].

mod answer;
mod cache;
mod dictionary;
mod family;
mod folder;
mod listing;
mod mime;
mod options;
mod resource;
mod site;

pub use dictionary::delta_ending;
pub use family::family;
pub use mime::{content_type, is_compressible};
pub use options::{CacheRule, PathGlob, RuleError, SiteOptions};
pub use resource::sidecar_ending;
pub use site::Site;
