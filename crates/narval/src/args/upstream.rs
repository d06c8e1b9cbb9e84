//! The options for upstreams, combined with a configuration file.

use std::path::PathBuf;
use std::time::Duration;

use narval_cache::upstream::UpstreamOptions;
use narval_client::{HostPattern, Netrc, Scheme, Url};
use narval_nix::{PublicKey, TrustedKeys};

use super::client::CACHE_NIXOS_ORG_KEY;
use crate::Failure;
use crate::config::{At, ConfigError, UpstreamSection};
use crate::values::size::parse_size;

/// The default limit of stored upstream files, in bytes.
const SIZE_DEFAULT: u64 = 20 << 30;
/// The cache with a well-known key.
const CACHE_NIXOS_ORG: &str = "https://cache.nixos.org";

/// Options for upstreams
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Upstreams")]
pub struct UpstreamArgs {
    /// Binary cache to query for paths that this one does not have; its files are stored. Repeatable, in order of
    /// priority
    ///
    /// Needs --data. Keys, priorities and credentials per upstream can be set in a configuration file.
    #[arg(long, value_name = "URL")]
    upstream: Vec<Url>,
    /// Public key that upstreams sign with. Repeatable; that of cache.nixos.org is built in
    #[arg(long, value_name = "KEY")]
    upstream_key: Vec<PublicKey>,
    /// Maximum size of stored upstream files; the least recently used are removed first [default: 20G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    upstream_size: Option<u64>,
}

/// The effective settings of upstreams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamSettings {
    list: Vec<Upstream>,
    /// The limit of stored files, in bytes.
    pub size: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Upstream {
    url: Url,
    /// `None` if signatures are not required.
    keys: Option<Vec<PublicKey>>,
    priority: i64,
    netrc_file: Option<NetrcFile>,
    redirect_hosts: Vec<HostPattern>,
    timeout: Duration,
    stall_timeout: Duration,
}

/// A netrc file, and its place in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NetrcFile {
    path: At<PathBuf>,
    named_in: String,
}

impl UpstreamArgs {
    /// The options over a configuration file: upstreams on the command line replace those of the file.
    ///
    /// # Errors
    /// An upstream without a key.
    pub fn over(
        &self,
        file: &[UpstreamSection],
        file_name: &str,
        file_size: Option<u64>,
    ) -> Result<UpstreamSettings, Failure> {
        let size = self.upstream_size.or(file_size);
        if self.upstream.is_empty() {
            return UpstreamSettings::of_file(file, file_name, size).map_err(Failure::usage);
        }
        let list = self.upstream.iter().map(|url| Upstream::of_option(url, &self.upstream_key));
        Ok(UpstreamSettings { list: list.collect::<Result<_, _>>()?, size: size.unwrap_or(SIZE_DEFAULT) })
    }
}

impl UpstreamSettings {
    /// The upstreams of a configuration file.
    ///
    /// # Errors
    /// An upstream without a key.
    pub fn of_file(file: &[UpstreamSection], file_name: &str, size: Option<u64>) -> Result<Self, ConfigError> {
        let list = file.iter().map(|section| Upstream::of_file(section, file_name));
        Ok(Self { list: list.collect::<Result<_, _>>()?, size: size.unwrap_or(SIZE_DEFAULT) })
    }

    /// Whether there are no upstreams.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Checks the credentials of all upstreams.
    ///
    /// # Errors
    /// A netrc file that cannot be read, or has no entry for its upstream.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.list.iter().try_for_each(|upstream| upstream.credentials().map(drop))
    }

    /// The options for opening the upstreams.
    ///
    /// # Errors
    /// See [`check`](Self::check).
    pub fn options(&self) -> Result<Vec<UpstreamOptions>, Failure> {
        let options = |upstream: &Upstream| {
            let credentials = upstream.credentials().map_err(Failure::usage)?;
            let keys = upstream.keys.as_ref().map(|keys| keys.iter().cloned().collect::<TrustedKeys>());
            Ok(UpstreamOptions {
                credentials,
                redirect_hosts: upstream.redirect_hosts.clone(),
                priority: upstream.priority,
                timeout: upstream.timeout,
                stall_timeout: upstream.stall_timeout,
                ..UpstreamOptions::new(upstream.url.clone(), keys)
            })
        };
        self.list.iter().map(options).collect()
    }
}

impl Upstream {
    fn of_option(url: &Url, keys: &[PublicKey]) -> Result<Self, Failure> {
        let defaults = UpstreamOptions::new(url.clone(), None);
        let keys = with_known(url, keys);
        if keys.is_empty() {
            return Err(Failure::usage(format!(
                "option --upstream {url}: give its public key with --upstream-key (ask its operator)"
            )));
        }
        Ok(Self {
            url: url.clone(),
            keys: Some(keys),
            priority: defaults.priority,
            netrc_file: None,
            redirect_hosts: Vec::new(),
            timeout: defaults.timeout,
            stall_timeout: defaults.stall_timeout,
        })
    }

    fn of_file(section: &UpstreamSection, file: &str) -> Result<Self, ConfigError> {
        let url = &section.url;
        let defaults = UpstreamOptions::new(url.clone(), None);
        let signed = section.require_signatures.unwrap_or(true);
        let keys = signed.then(|| with_known(url, &section.keys));
        if keys.as_ref().is_some_and(Vec::is_empty) {
            let message = format!(
                "upstream: '{url}' needs its public keys: keys = [\"NAME:BASE64\"], or require-signatures = false to believe \
                 whatever it says"
            );
            return Err(ConfigError { file: file.to_owned(), line: Some(section.line), message });
        }
        Ok(Self {
            url: url.clone(),
            keys,
            priority: section.priority.unwrap_or(defaults.priority),
            netrc_file: section.netrc_file.clone().map(|path| NetrcFile { path, named_in: file.to_owned() }),
            redirect_hosts: section.redirect_hosts.clone(),
            timeout: section.timeout.unwrap_or(defaults.timeout),
            stall_timeout: section.stall_timeout.unwrap_or(defaults.stall_timeout),
        })
    }
}

impl Upstream {
    /// Login and password from its netrc file.
    fn credentials(&self) -> Result<Netrc, ConfigError> {
        let Some(NetrcFile { path, named_in }) = &self.netrc_file else { return Ok(Netrc::default()) };
        let wrong = |reason: String| ConfigError {
            file: named_in.clone(),
            line: Some(path.line),
            message: format!("upstream.netrc-file: {reason}"),
        };
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

fn with_known(url: &Url, keys: &[PublicKey]) -> Vec<PublicKey> {
    let is_known = url.to_string().trim_end_matches('/') == CACHE_NIXOS_ORG;
    let known = is_known.then(|| CACHE_NIXOS_ORG_KEY.parse().ok()).flatten();
    keys.iter().cloned().chain(known).collect()
}
