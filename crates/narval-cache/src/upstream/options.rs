//! Options of upstreams.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use globset::{GlobBuilder, GlobMatcher};

use narval_client::{HostPattern, Netrc, Url};
use narval_nix::{StoreDir, TrustedKeys};

use super::limits::{WAITING_MAX, WAITING_OF_ONE_MAX};
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
    /// Names that it is never asked for, as far as the name of a path is known. What it says of such a path is not used either.
    pub skip: Vec<NamePattern>,
    /// Lists of store paths that it has, one a line, compressed as their names say: it is asked for those before others of its priority.
    pub store_paths: Vec<Url>,
    /// Whether neighbours may have its paths. Those without a signature by one of `keys` are not for them.
    pub offered: bool,
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
            skip: Vec::new(),
            store_paths: Vec::new(),
            offered: false,
        }
    }
}

/// The longest pattern, in bytes: a name has at most 211.
const PATTERN_LEN_MAX: usize = 512;

/// A pattern of names of store paths, without the hash part: `*`, `?`, `[…]` and `{a,b}`.
///
/// ```
/// # use narval_cache::upstream::NamePattern;
/// let pattern: NamePattern = "mycorp-*".parse().unwrap();
/// assert!(pattern.matches("mycorp-api-1.2") && !pattern.matches("hello-2.12"));
/// assert!("[".parse::<NamePattern>().is_err());
/// ```
#[derive(Clone, Debug)]
pub struct NamePattern(GlobMatcher);

impl NamePattern {
    /// Whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

impl FromStr for NamePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            |why: &str| format!("'{text}' is no pattern of names: {why}; write it as mycorp-* or {{app,lib}}-[0-9]*");
        if text.is_empty() || text.len() > PATTERN_LEN_MAX {
            return Err(wrong(&format!("it has no characters, or more than {PATTERN_LEN_MAX}")));
        }
        let glob = GlobBuilder::new(text).backslash_escape(true).build();
        glob.map(|glob| Self(glob.compile_matcher())).map_err(|error| wrong(&error.kind().to_string()))
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.glob().glob())
    }
}

impl PartialEq for NamePattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.glob() == other.0.glob()
    }
}

impl Eq for NamePattern {}

/// Limits how many threads of a server wait for upstreams ([`WAITING_MAX`]), over all caches that
/// share it, and how many for one client ([`WAITING_OF_ONE_MAX`]). Cheap to clone.
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
