//! Installs packages from Nix binary caches, without Nix: finds the closure of store paths, fetches and verifies each
//! NAR, unpacks it under a temporary name in the store, renames it once every check has passed, and registers all paths
//! at the end.
//!
//! Installing and copying are a source, a sink, and the walk between them in `narval-transfer`. `fetch/` has the
//! source that reads from caches, and `unpack/` the sink that writes to a local store; `narval-push` has the sinks that
//! write to caches. `resolve/` finds closures. `profile/` and `run/` use installed paths. The files beside them are the
//! operations.
//!
//! - [`install`] and [`plan`]: closures from caches into a [`Destination`]. [`copy_from_caches`], [`copy_from_store`],
//!   [`copy_between_stores`]: between other places.
//! - [`listing`], [`cat`], [`Closure`]: what a cache has, without installing it. [`verify()`] and [`repair`]: whether a
//!   store has what it should.
//! - [`Profile`]: generations of installed packages. [`run`]: programs from a store that is not in `/nix/store`.
//!   [`settings`]: the files that Nix reads.
//!
//! ```
//! use std::sync::Arc;
//!
//! use narval_client::{ClientOptions, Url};
//! use narval_install::{DeltaUse, Destination, Options, Progress, Wanted, install};
//! use narval_nix::TrustedKeys;
//! use narval_store::StoreConfig;
//!
//! # use std::io::Read;
//! # let folder = tempfile::tempdir()?;
//! # let (cache, root) = (folder.path().join("cache"), folder.path().join("root"));
//! # std::fs::create_dir(&cache)?;
//! # std::fs::write(folder.path().join("greeting"), "hello\n")?;
//! # let mut nar = Vec::new();
//! # narval_store::NarReader::open(&folder.path().join("greeting"))?.read_to_end(&mut nar)?;
//! # let (hash, size) = (narval_nix::Sha256::of(&nar).to_nix32(), nar.len());
//! # std::fs::write(cache.join("a.nar"), &nar)?;
//! # let narinfo = format!("StorePath: /nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-greeting\nURL: a.nar\nCompression: none\n\
//! #     NarHash: sha256:{hash}\nNarSize: {size}\nReferences: \n");
//! # std::fs::write(cache.join("00bgd045z0d4icpbc2yyz4gx48ak44la.narinfo"), narinfo)?;
//! let destination = Destination::new(StoreConfig::for_root(&root)?);
//! let options = Options {
//!     caches: vec![Url::from_folder(&cache)?],
//!     keys: TrustedKeys::new(),
//!     check_signatures: false, // only for caches that you trust
//!     cores: 2,
//!     durable: true,
//!     deltas: DeltaUse::Adaptive,
//!     delta_bases: Vec::new(),
//!     nar_hashes: std::collections::HashMap::new(),
//! };
//! let client = Arc::new(narval_s3::client(ClientOptions::default()));
//! let wanted = [Wanted::parse("00bgd045z0d4icpbc2yyz4gx48ak44la", destination.store_dir())?];
//! let report = install(&destination, &options, &client, &wanted, &Progress::default())?;
//! let installed = destination.store().real_path(&report.roots[0]);
//! assert_eq!(std::fs::read_to_string(installed)?, "hello\n");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod copy;
mod delta;
mod fetch;
pub mod follow;
mod inspect;
mod install;
pub mod names;
mod options;
mod profile;
pub mod releases;
mod remembered;
mod repair;
mod resolve;
pub mod run;
pub mod settings;
mod space;
mod unpack;
mod verify;

pub use copy::{copy_between_stores, copy_from_caches, copy_from_store};
pub use delta::{DeltaBases, DeltaUse};
pub use inspect::{cat, check, listing};
pub use install::{InstallItem, Report, install, plan};
pub use narval_cache::{CacheError, Wanted};
pub use narval_transfer::{Destination, Error, Progress, Snapshot, TIMELINE, human_bytes};
pub use options::Options;
pub use profile::{Added, Addition, Chosen, Element, Manifest, Origin, Profile, Removed};
pub use repair::repair;
pub use resolve::{CLOSURE_PATHS_MAX, CLOSURE_REFERENCES_MAX, Closure, LOOKUPS_MAX, Node};
pub use unpack::DOWNLOADS_MAX;
pub use verify::{Fault, Faulty, verify};
