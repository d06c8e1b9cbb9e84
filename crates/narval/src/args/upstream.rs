//! The options for upstreams, and what they come to with a configuration file.

use std::path::PathBuf;
use std::time::Duration;

use narval_cache::upstream::UpstreamOptions;
use narval_client::{Netrc, Url};
use narval_nix::{PublicKey, TrustedKeys};

use super::client::CACHE_NIXOS_ORG_KEY;
use super::nar_cache::parse_size;
use crate::Failure;
use crate::config::{ConfigError, UpstreamSection};

/// What is kept of upstreams unless said otherwise, in bytes.
const SIZE_DEFAULT: u64 = 20 << 30;
/// The cache whose key everybody knows.
const CACHE_NIXOS_ORG: &str = "https://cache.nixos.org";

/// Options for upstreams
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Upstreams")]
pub struct UpstreamArgs {
    /// Binary cache that is asked for what this one does not have; its answers are kept. Repeatable, the first is asked first
    ///
    /// Needs --data. Keys, priorities and credentials for each: in a configuration file.
    #[arg(long, value_name = "URL")]
    upstream: Vec<Url>,
    /// Public key that upstreams sign with. Repeatable; that of cache.nixos.org is known
    #[arg(long, value_name = "KEY")]
    upstream_key: Vec<PublicKey>,
    /// Maximum size of what is kept of upstreams; the least recently used is removed first [default: 20G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    upstream_size: Option<u64>,
}

/// Upstreams, as they were decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamSettings {
    list: Vec<Upstream>,
    /// What may be kept, in bytes.
    pub size: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Upstream {
    /// What named it, for errors.
    place: String,
    url: Url,
    /// `None`: signatures are not asked for.
    keys: Option<Vec<PublicKey>>,
    priority: i64,
    netrc_file: Option<PathBuf>,
    timeout: Duration,
    stall_timeout: Duration,
}

impl UpstreamArgs {
    /// The options over a configuration file: upstreams of the command line replace those of the file.
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
    /// Those of a configuration file.
    ///
    /// # Errors
    /// An upstream without a key.
    pub fn of_file(file: &[UpstreamSection], file_name: &str, size: Option<u64>) -> Result<Self, ConfigError> {
        let list = file.iter().map(|section| Upstream::of_file(section, file_name));
        Ok(Self { list: list.collect::<Result<_, _>>()?, size: size.unwrap_or(SIZE_DEFAULT) })
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// What upstreams are opened with.
    ///
    /// # Errors
    /// A netrc file that can't be read.
    pub fn options(&self) -> Result<Vec<UpstreamOptions>, Failure> {
        let options = |upstream: &Upstream| {
            let credentials = match &upstream.netrc_file {
                None => Netrc::default(),
                Some(path) => Netrc::load(Some(path), None)
                    .map_err(|error| Failure::usage(format!("{}: netrc-file: {error}", upstream.place)))?,
            };
            let keys = upstream.keys.as_ref().map(|keys| keys.iter().cloned().collect::<TrustedKeys>());
            Ok(UpstreamOptions {
                credentials,
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
                "option --upstream {url}: give its public key with --upstream-key ('narval use' or its operator tells it)"
            )));
        }
        Ok(Self {
            place: "option --upstream".to_owned(),
            url: url.clone(),
            keys: Some(keys),
            priority: defaults.priority,
            netrc_file: None,
            timeout: defaults.timeout,
            stall_timeout: defaults.stall_timeout,
        })
    }

    fn of_file(section: &UpstreamSection, file: &str) -> Result<Self, ConfigError> {
        let url = &section.url;
        let defaults = UpstreamOptions::new(url.clone(), None);
        let place = format!("{file}:{}", section.line);
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
            place,
            url: url.clone(),
            keys,
            priority: section.priority.unwrap_or(defaults.priority),
            netrc_file: section.netrc_file.clone(),
            timeout: section.timeout.unwrap_or(defaults.timeout),
            stall_timeout: section.stall_timeout.unwrap_or(defaults.stall_timeout),
        })
    }
}

fn with_known(url: &Url, keys: &[PublicKey]) -> Vec<PublicKey> {
    let is_known = url.to_string().trim_end_matches('/') == CACHE_NIXOS_ORG;
    let known = is_known.then(|| CACHE_NIXOS_ORG_KEY.parse().ok()).flatten();
    keys.iter().cloned().chain(known).collect()
}
