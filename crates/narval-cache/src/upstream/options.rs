//! What upstreams are told.

use std::path::PathBuf;
use std::time::Duration;

use narval_client::{Netrc, Url};
use narval_nix::{StoreDir, TrustedKeys};

use super::WAITING_MAX;
use super::permits::Permits;

/// One upstream.
pub struct UpstreamOptions {
    /// Its address.
    pub url: Url,
    /// The keys whose signatures count for what comes from it; `None`: signatures are not asked for. What comes unsigned is served without a
    /// signature of ours.
    pub keys: Option<TrustedKeys>,
    /// Lower is asked first; equal ones in the order given.
    pub priority: i64,
    /// Login and password.
    pub credentials: Netrc,
    /// How long connecting may take, and each wait for a narinfo.
    pub timeout: Duration,
    /// How long a NAR may stand still.
    pub stall_timeout: Duration,
}

impl UpstreamOptions {
    /// An upstream with the defaults: priority 50, 5 s, 30 s.
    pub fn new(url: Url, keys: Option<TrustedKeys>) -> Self {
        Self {
            url,
            keys,
            priority: 50,
            credentials: Netrc::default(),
            timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(30),
        }
    }
}

/// How many threads of a server may wait for upstreams at once ([`WAITING_MAX`](super::WAITING_MAX)): over all caches that share it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Waiting(pub(super) Permits);

impl Default for Waiting {
    fn default() -> Self {
        Self(Permits::new(WAITING_MAX))
    }
}

/// All of them, and where their answers are kept.
pub struct UpstreamsOptions {
    /// The folder; made if it is not there. No other process may use it.
    pub folder: PathBuf,
    /// What it may hold, in bytes. It may be over that for a moment, by what is being fetched.
    pub bytes_max: u64,
    /// The upstreams.
    pub upstreams: Vec<UpstreamOptions>,
    /// The store directory of the paths.
    pub store_dir: StoreDir,
    /// The threads that may wait for them, shared with other caches of the server.
    pub waiting: Waiting,
}
