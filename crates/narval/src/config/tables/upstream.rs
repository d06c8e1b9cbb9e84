//! `[[upstream]]`: the caches that another cache asks for paths that it does not have.

use std::path::PathBuf;
use std::time::Duration;

use narval_cache::upstream::{Deadline, NamePattern, UpstreamOptions, WhenDown};
use narval_client::{HostPattern, Netrc, Scheme, Url};
use narval_nix::{PublicKey, TrustedKeys};

use crate::config::error::ConfigError;
use crate::config::field::{Nested, table};
use crate::config::key::{At, Key};
use crate::config::kinds::{boolean, choice, duration, integer, parsed, path, size};

/// The cache with a well-known key.
const CACHE_NIXOS_ORG: &str = "https://cache.nixos.org";
/// The key of cache.nixos.org.
pub(crate) const CACHE_NIXOS_ORG_KEY: &str = "cache.nixos.org-1:6NCHdD59X431o0gWypbMrAURkbJ16ZPMQFGspcDShjY=";

fn wait() -> Key<Duration> {
    duration(Duration::from_millis(100)..=Duration::from_secs(3600))
}

/// How long clients may wait for upstreams.
fn absent_after() -> Key<Duration> {
    duration(Duration::from_millis(10)..=Duration::from_secs(60))
}

table! {
    /// The upstreams of the cache at `/`.
    Upstreams {
        /// Caches that the cache at `/` asks for paths that it does not have; needs `data`.
        upstream: Vec<Upstream> = Nested::Table(None),
        /// Maximum size of stored upstream files; the least recently used are removed first
        upstream_size: At<u64> = size().or("20G").option("upstream-size", "SIZE"),
        /// Time after which an upstream that has not answered counts as one that does not have the path, for this request alone; see
        /// docs/cache.md#several-upstreams
        upstream_absent_after: Duration = absent_after().or("800ms").option("upstream-absent-after", "TIME"),
        /// Names of paths, without the hash part, that no upstream is asked for where the name is known: `mycorp-*`; see
        /// docs/cache.md#names-that-stay-here
        upstream_skip: Vec<NamePattern> = parsed::<NamePattern>("a pattern of names, such as mycorp-*,").option("upstream-skip", "PATTERN"),
        /// Lowest rate of a download, in bytes a second: below it, the rest of a NAR is fetched from another upstream; see
        /// docs/cache.md#several-upstreams
        upstream_rate_min: At<u64> = size().or("1K").option("upstream-rate-min", "SIZE"),
        /// What clients are told about a path while upstreams that may have it do not answer; see docs/cache.md#several-upstreams
        upstream_when_down: WhenDown = choice(&[
            ("absent", "that it does not exist (404): they go on, and Nix remembers it for an hour", WhenDown::Absent),
            ("unavailable", "that the upstreams are unavailable (503): they try again, and fail at last", WhenDown::Unavailable),
        ]).or("absent").option("upstream-when-down", "ANSWER"),
    }
}

table! {
    /// A binary cache that is asked for paths that another does not have.
    Upstream {
        /// Binary cache to query for paths that this one does not have; its files are stored
        ///
        /// Needs a data folder. Keys, priorities and credentials per upstream can be set in a configuration file.
        url: Url = parsed::<Url>("the address of a binary cache").option("upstream", "URL").nix("cacheUrl"),
        /// Public key that upstreams sign with; that of cache.nixos.org is built in
        keys: Vec<PublicKey> = parsed::<PublicKey>("a public key, NAME:BASE64,").option("upstream-key", "KEY").nix("publicKey"),
        /// Whether a signature by one of the keys is required
        require_signatures: bool = boolean().or("true"),
        /// An answer of the lowest is preferred, and of equal ones, the first answer is used; see docs/cache.md#several-upstreams
        priority: i64 = integer(0..=1_000_000).or("50"),
        /// netrc file with the credentials for it; it must have an entry with a password for the host (or a `default` one)
        netrc_file: Option<At<PathBuf>> = path().nix("secret"),
        /// Other hosts to which its redirects and the URLs in its narinfos may lead: `cdn.example.org`, `*.example.org`, either with a port
        /// (`:8443`); see docs/cache.md#upstreams
        redirect_hosts: Vec<HostPattern> = parsed::<HostPattern>("a host, such as cdn.example.org or *.example.org,"),
        /// As `upstream-skip`, for this upstream
        skip: Vec<NamePattern> = parsed::<NamePattern>("a pattern of names, such as mycorp-*,"),
        /// Lists of store paths that it has, one a line, such as `https://channels.nixos.org/nixos-unstable/store-paths.xz`: of upstreams with the
        /// same `priority`, it is asked for these first; see docs/cache.md#several-upstreams
        store_paths: Vec<Url> = parsed::<Url>("the address of a list of store paths"),
        /// Timeout for connecting, and for each wait for a narinfo
        timeout: Duration = wait().or("5s"),
        /// Time after which a download that makes no progress is aborted, if no other upstream has the same file
        stall_timeout: Duration = wait().or("30s"),
    }
}

impl Upstreams {
    /// How long clients of all caches wait for their upstreams, and what they are told then.
    pub const fn deadline(&self) -> Deadline {
        let (absent_after, when_down) = (self.upstream_absent_after, self.upstream_when_down);
        Deadline { absent_after, when_down, nar_rate_min: self.upstream_rate_min.value }
    }
}

impl Upstream {
    /// The options for opening it.
    ///
    /// # Errors
    /// It has no keys, or a netrc file that cannot be read or has no entry for it.
    pub fn options(&self) -> Result<UpstreamOptions, ConfigError> {
        let keys = self.trusted();
        if keys.as_ref().is_some_and(Vec::is_empty) {
            let with = match self.origin.is_option() {
                true => ": give its public key with --upstream-key (ask its operator)",
                false => {
                    " needs its public keys: keys = [\"NAME:BASE64\"], or require-signatures = false to believe whatever it says"
                }
            };
            return Err(self.origin.error("upstream", format!("'{}'{with}", self.url)));
        }
        Ok(UpstreamOptions {
            url: self.url.clone(),
            keys: keys.map(|keys| keys.into_iter().collect::<TrustedKeys>()),
            priority: self.priority,
            credentials: self.credentials()?,
            redirect_hosts: self.redirect_hosts.clone(),
            timeout: self.timeout,
            stall_timeout: self.stall_timeout,
            skip: self.skip.clone(),
            store_paths: self.store_paths.clone(),
            // What a login is needed for is nobody else's.
            offered: self.require_signatures && self.netrc_file.is_none(),
        })
    }

    /// Its keys; `None` if signatures are not required.
    fn trusted(&self) -> Option<Vec<PublicKey>> {
        let is_known = self.url.to_string().trim_end_matches('/') == CACHE_NIXOS_ORG;
        let known = is_known.then(|| CACHE_NIXOS_ORG_KEY.parse().ok()).flatten();
        self.require_signatures.then(|| self.keys.iter().cloned().chain(known).collect())
    }

    /// Login and password from its netrc file.
    fn credentials(&self) -> Result<Netrc, ConfigError> {
        let Some(path) = &self.netrc_file else { return Ok(Netrc::default()) };
        let wrong = |reason: String| path.origin.error("upstream.netrc-file", reason);
        let netrc = Netrc::load(Some(&path.value), None).map_err(|error| wrong(error.to_string()))?;
        let (shown, host) = (path.value.display(), &self.url.origin().host);
        // A folder has no host, and a bucket's requests are signed.
        let needs_entry = matches!(self.url.scheme(), Scheme::Http | Scheme::Https);
        match netrc.login(host) {
            // Without a password the upstream would refuse every request, which would look as if it had no paths.
            None if needs_entry => Err(wrong(format!(
                "'{shown}' has no entry for '{host}': add 'machine {host} login NAME password PASSWORD'"
            ))),
            Some((_, "")) => Err(wrong(format!("the entry for '{host}' in '{shown}' has no password"))),
            _ => Ok(netrc),
        }
    }
}
