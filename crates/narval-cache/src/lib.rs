//! Reading Nix binary caches.
//!
//! A [`BinaryCache`] is one of them, reached over HTTP, as a folder (`file://`) or as a bucket (`s3://`); [`BinaryCaches`] are those of one run, ordered by
//! priority. [`BinaryCaches::find`] queries the best first, the next one too if that takes long, and none that keeps failing. Its results have
//! passed the trust rule: a signature by a trusted key, or a content-addressed path. [`CacheFile`] reads the files of a cache, wherever they
//! are. [`CacheFolder`] is a cache in a folder that [`FolderSink`] writes to. [`upstream`] has caches whose answers a server keeps.
//! The HTTP client for them is `narval_s3::client`.
//!
//! ```
//! use std::sync::Arc;
//!
//! use narval_cache::{BinaryCaches, Wanted};
//! use narval_client::{ClientOptions, Url};
//! use narval_nix::StoreDir;
//!
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! # let narinfo = "StorePath: /nix/store/00bgd045z0d4icpbc2yyz4gx48ak44la-a\nURL: nar/a.nar\nNarSize: 120\n\
//! #     NarHash: sha256:1b8m03r63zqhnjf7l5wnldhh7c134ap5vpj0850ymkq1iyzicy5s\nReferences: \n";
//! # std::fs::write(folder.join("00bgd045z0d4icpbc2yyz4gx48ak44la.narinfo"), narinfo)?;
//! let store_dir = StoreDir::default();
//! let client = Arc::new(narval_s3::client(ClientOptions::default()));
//! let check_signatures = false;
//! let urls = [Url::from_folder(folder)?];
//! let caches = BinaryCaches::open(&urls, &client, &store_dir, Default::default(), check_signatures)?;
//! let found = caches.find(&Wanted::parse("00bgd045z0d4icpbc2yyz4gx48ak44la", &store_dir)?)?;
//! assert_eq!(found.info.path.to_string(), "00bgd045z0d4icpbc2yyz4gx48ak44la-a");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

// Tests share files with the integration tests.
#[cfg(test)]
extern crate self as narval_cache;

mod advice;
mod cache;
mod error;
mod file;
mod folder;
mod folder_sink;
mod lookup;
pub mod upstream;
mod wanted;

pub use advice::{published_keys, signature_advice};
pub use cache::{BATCH_MAX, BinaryCache};
pub use error::CacheError;
pub use file::{CacheFile, open_small_once, read_from, read_small, read_small_once};
pub use folder::{CacheFolder, CacheFolderError, IncomingFile, WrittenFile};
pub use folder_sink::FolderSink;
pub use lookup::{BinaryCaches, HEDGE_AFTER, TrustedNarInfo};
pub use wanted::{Wanted, WantedError};
