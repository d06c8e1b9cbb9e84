//! Nix stores on disk: the database and the daemon, build logs, and store paths as NARs in both directions.
//!
//! - [`StoreConfig`]: selects a store, from a URI and the environment.
//! - [`Store`]: valid paths and their metadata, from the [`database`](Database) or the [`daemon`](Daemon).
//! - [`LocalStore`]: writes a real Nix store without Nix; [`Unpack`]: unpacks a NAR to disk.
//! - [`Source`] and [`Sink`]: where store paths come from and where they go.
//! - [`NarLayout`], [`NarStream`], [`NarReader`]: the files of a path as a NAR, from any offset.
//!
//! ```
//! use std::io::Read;
//!
//! use narval_nix::Sha256;
//! use narval_store::{LocalStore, NarReader, Store, StoreConfig};
//!
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! // A store in a folder; StoreConfig::parse("auto", …) is the one of this machine.
//! let config = StoreConfig::for_root(folder)?;
//! LocalStore::open(config.clone())?;
//! let store = Store::new(config);
//! assert_eq!(store.store_dir().to_string(), "/nix/store");
//! assert!(store.all_valid_paths()?.is_empty());
//!
//! // A file as a NAR: what `nix-store --dump` prints.
//! std::fs::write(folder.join("greeting"), "hello\n")?;
//! let mut nar = Vec::new();
//! NarReader::open(&folder.join("greeting"))?.read_to_end(&mut nar)?;
//! assert!(nar.starts_with(b"\x0d\0\0\0\0\0\0\0nix-archive-1"));
//! println!("sha256:{}", Sha256::of(&nar).to_nix32());
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod config;
mod daemon;
mod database;
mod error;
mod hashes;
mod local;
mod logs;
mod nar;
mod realisation;
mod remove;
mod settings;
mod signatures;
mod source;
mod store;
mod transfer;
mod unpack;

pub use config::{Access, ConfigError, Environment, StoreConfig};
#[doc(hidden)]
pub use daemon::read_anything;
pub use daemon::{Collected, Daemon, DaemonError, TemporaryRoots, Trust, WireError};
pub use database::{Database, ListedPath, Registered, Stamp};
pub use error::StoreError;
pub use hashes::{Hashed, Hashes, hash_of};
pub use local::{
    Garbage, GarbageCollector, GarbageOptions, Incoming, LeftOut, LocalRoots, LocalStore, LocalStoreError, PathLock,
    Prepared, Root, Unregistered, describe, disk_usage, find_garbage, lock_file,
};
pub use logs::{BuildLog, LogCompression};
pub use nar::{
    FilePart, NarEntry, NarIoError, NarLayout, NarNode, NarReader, NarStream, PackedNar, ReadAhead, Step,
    WHOLE_FILE_MIN, open_beneath, open_in_folder,
};
pub use realisation::Realisation;
pub use settings::{GarbageSettings, SubstituterSettings, system_nix_folder, user_nix_conf};
pub use store::Store;
pub use transfer::{InOrderError, NarInput, NarOptions, Sink, Source, TransferError, VerifiedNar, Visible};
pub use unpack::{PATH_LEN_MAX, Unpack, UnpackError, Unpacked};
