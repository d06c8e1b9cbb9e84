//! Options of upstreams.

use std::path::PathBuf;
use std::time::Duration;

use narval_client::{HostPattern, Netrc, Url};
use narval_nix::{StoreDir, TrustedKeys};

use super::{WAITING_MAX, WAITING_OF_ONE_MAX};
use narval_files::Permits;

/// One upstream.
pub struct UpstreamOptions {
    /// Its address.
    pub url: Url,
    /// The trusted keys for its paths; `None` if signatures are not required. Unsigned paths are served without our
    /// signature.
    pub keys: Option<TrustedKeys>,
    /// Lower is preferred. Of equal ones, the one that answers first is used.
    pub priority: i64,
    /// Login and password.
    pub credentials: Netrc,
    /// Other hosts to which it may lead, by redirects and by the `URL` of narinfos.
    pub redirect_hosts: Vec<HostPattern>,
    /// The timeout for connecting, and for each wait for a narinfo.
    pub timeout: Duration,
    /// How long a NAR may make no progress if no other upstream has it.
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
            redirect_hosts: Vec::new(),
            timeout: Duration::from_secs(5),
            stall_timeout: Duration::from_secs(30),
        }
    }
}

/// Limits how many threads of a server wait for upstreams ([`WAITING_MAX`](super::WAITING_MAX)), over all caches that
/// share it, and how many for one client ([`WAITING_OF_ONE_MAX`](super::WAITING_OF_ONE_MAX)). Cheap to clone.
#[derive(Clone, Debug)]
pub struct Waiting(pub(super) Permits);

impl Default for Waiting {
    fn default() -> Self {
        Self(Permits::shared(WAITING_MAX, WAITING_OF_ONE_MAX))
    }
}

/// What clients are told about a path while upstreams that may have it do not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenDown {
    /// It is absent.
    Absent,
    /// The upstreams are unavailable.
    Unavailable,
}

/// How long clients wait for upstreams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// The time after which an upstream that has not answered counts as one that does not have the path, for this request alone.
    pub absent_after: Duration,
    /// What clients are told then.
    pub when_down: WhenDown,
    /// The lowest rate at which a NAR may come, in bytes per second: over this time if another upstream may have the rest, and over
    /// [`stall_timeout`](UpstreamOptions::stall_timeout) otherwise.
    pub nar_rate_min: u64,
}

impl Default for Deadline {
    fn default() -> Self {
        Self { absent_after: Duration::from_millis(800), when_down: WhenDown::Absent, nar_rate_min: 1024 }
    }
}

/// All upstreams, and where their files are stored.
pub struct UpstreamsOptions {
    /// The folder; created if it does not exist. No other process may use it.
    pub folder: PathBuf,
    /// Its budget in bytes. Running fetches may temporarily exceed it.
    pub bytes_max: u64,
    /// The upstreams.
    pub upstreams: Vec<UpstreamOptions>,
    /// How long clients wait for them.
    pub deadline: Deadline,
    /// The store directory of the paths.
    pub store_dir: StoreDir,
    /// The limit of waiting threads, shared with other caches of the server.
    pub waiting: Waiting,
}
