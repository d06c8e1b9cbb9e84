//! How data is opened, and where jobs may copy it.

use std::time::Duration;

use narval_client::Url;

use crate::location::{Database, StorageLocation};

/// Options for opening a data folder.
#[derive(Debug, Clone, Default)]
pub struct DataOptions {
    /// Whether the folder must exist; otherwise it is created.
    pub must_exist: bool,
    /// Where the index is, if not in the folder.
    pub database: Option<Database>,
    /// With a bucket and a database: the address at which other servers over the same bucket reach this one, to share disk caches.
    pub peer_url: Option<Url>,
    /// How often to collect garbage; for servers, which also recompress if configured. The first time is after one such
    /// period.
    pub collect_every: Option<Duration>,
    /// Memory for the windows of uploads' decoders, in bytes; by default [`DECODE_MEMORY`](narval_codec::decode::DECODE_MEMORY).
    pub decode_memory: Option<u64>,
    /// Only for measurements: uncompressed NARs are neither verified nor synced, so any uploader could forge paths.
    #[doc(hidden)]
    pub unsafe_no_verify: bool,
}

/// A place that jobs may copy caches to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// A plain binary cache for each cache, below this address: `file:///folder` or `s3://bucket`.
    Export(Url),
    /// The data of other servers.
    Migrate {
        /// Where it is.
        place: StorageLocation,
        /// Where its index is, if not there.
        database: Option<Database>,
    },
}
