//! The configuration of a service.

use std::path::PathBuf;

use narval_keep::Redirect;
use narval_nix::SecretKey;

use crate::nar::delta_mode::DeltaMode;
use crate::nar::zstd::NarCacheConfig;

/// Which of the two dialects of the service is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Bit-compatible with nix-serve and nix-serve-ng, their faults excepted.
    NixServe,
    /// The richer answers: `FileHash` and `FileSize`, `CA`, stored signatures beside our own, listings, realisations,
    /// ETags, zstd, health and metrics.
    Narval,
}

/// How to serve a store.
#[derive(Debug)]
pub struct Config {
    /// Which dialect to show.
    pub dialect: Dialect,
    /// `Priority` in `nix-cache-info`: clients ask the cache with the lowest number first.
    pub priority: u32,
    /// `WantMassQuery` in `nix-cache-info`: whether clients ask for many paths at once.
    pub want_mass_query: bool,
    /// The keys to sign with. Under [`Dialect::NixServe`] the first one's signature is the only one shown.
    pub sign_keys: Vec<SecretKey>,
    /// The path that all URLs are below, without a trailing slash.
    pub prefix: Option<String>,
    /// Memory for remembered narinfos, in bytes: see [`NARINFO_MEMO_BYTES_DEFAULT`].
    pub narinfo_memo_bytes: u64,
    /// Where compressed NARs are kept. `None`: NARs are sent uncompressed. Only for [`Dialect::Narval`].
    pub nar_cache: Option<NarCacheConfig>,
    /// Folder for unnamed files into which NARs of many small files are packed while the process runs: 512 MiB at most, and no more than
    /// the NAR cache may hold, if there is one. `None`, or with [`verify_nars`](Self::verify_nars): nothing is packed.
    pub scratch: Option<PathBuf>,
    /// Whether to hash every NAR while it is sent, and to abort before the end if it does not match the database.
    pub verify_nars: bool,
    /// Whether browsers get a page at `/`. Only for [`Dialect::Narval`].
    pub page: bool,
    /// What the page says about the cache, besides what it knows: plain text.
    pub description: Option<String>,
    /// Whether clients get large NARs of a cache in a bucket from the object store itself.
    pub redirect: Redirect,
}

/// The default memory for remembered narinfos, in bytes. One takes 1 to 1.5 KB and a known absence 100 bytes, so this holds about
/// 25,000 paths; 100,000 paths need 140 MB.
pub const NARINFO_MEMO_BYTES_DEFAULT: u64 = 32 * 1024 * 1024;

impl Config {
    /// Whether clients that have another version of a path may get the difference.
    pub(crate) fn sends_deltas(&self) -> bool {
        let cache = self.nar_cache.as_ref();
        self.dialect == Dialect::Narval && cache.is_some_and(|cache| cache.deltas != DeltaMode::Off)
    }

    /// The defaults of a dialect: priority 30, mass queries, no keys, scratch files in `/var/tmp`.
    pub fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            priority: 30,
            want_mass_query: true,
            sign_keys: Vec::new(),
            prefix: None,
            narinfo_memo_bytes: NARINFO_MEMO_BYTES_DEFAULT,
            nar_cache: None,
            scratch: Some(PathBuf::from("/var/tmp")),
            verify_nars: false,
            page: true,
            description: None,
            redirect: Redirect::Off,
        }
    }
}
