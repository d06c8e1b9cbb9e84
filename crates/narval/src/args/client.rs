//! Options of all client commands: the store, the caches, trust, and output.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;
use std::time::Duration;

use narval_client::{CONNECT_TIMEOUT, Client, ClientOptions, Credentials, Netrc, RetryPolicy, Url};
pub use narval_install::human_bytes;
use narval_install::{DeltaUse, Destination, Error, Options, Wanted};
use narval_nix::{PublicKey, TrustedKeys};
use narval_store::{Environment, StoreConfig, SubstituterSettings};

use super::own_folder;
use crate::config::CACHE_NIXOS_ORG_KEY;
use crate::ui::failure::Failure;
use crate::ui::output_args::OutputArgs;
use crate::values::time::{parse_time, parse_time_in};

/// The default number of connections to one server.
const CONNECTIONS: u16 = 64;
/// The default cache.
const CACHE_NIXOS_ORG: &str = "https://cache.nixos.org";

/// Nix's settings for caches, read once: keys, caches and credentials come from the same files.
fn settings_of_nix() -> &'static SubstituterSettings {
    static SETTINGS: LazyLock<SubstituterSettings> = LazyLock::new(SubstituterSettings::of_process);
    &SETTINGS
}

/// Options of all client commands.
#[derive(Clone, Debug, clap::Args)]
pub struct ClientArgs {
    /// The store.
    #[command(flatten)]
    pub store: StoreArgs,
    /// The caches.
    #[command(flatten)]
    pub caches: SourceCacheArgs,
    /// The output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The store to work on.
#[derive(Clone, Debug, clap::Args)]
pub struct StoreArgs {
    /// Store to use: a folder (which holds nix/store and nix/var/nix), `auto` (/nix/store, through its daemon if one runs),
    /// `daemon`, `local`, or another Nix store URI [default: ~/.local/share/narval]
    #[arg(long, value_name = "DIR", env = "NARVAL_STORE", hide_env_values = true, help_heading = "Store")]
    pub store: Option<String>,
    /// Lock timeout.
    #[command(flatten)]
    pub lock: LockArgs,
}

/// How long to wait for other processes.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct LockArgs {
    /// How long to wait for a lock or database held by another process
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_time, help_heading = "Store")]
    lock_timeout: Duration,
}

impl LockArgs {
    /// As a duration.
    pub fn timeout(self) -> Duration {
        self.lock_timeout
    }
}

impl StoreArgs {
    /// The selected store, or the user's own.
    pub fn config(&self) -> Result<StoreConfig, Failure> {
        Ok(StoreConfig { lock_timeout: self.lock.timeout(), ..self.named()? })
    }

    fn named(&self) -> Result<StoreConfig, Failure> {
        match &self.store {
            // The machine's store is where Nix's environment variables say.
            Some(uri) if matches!(uri.as_str(), "auto" | "local" | "daemon") => {
                StoreConfig::parse(uri, &Environment::of_process()).map_err(Failure::usage)
            }
            Some(uri) if !uri.contains(['/', ':', '?']) => StoreConfig::for_root(uri.as_ref()).map_err(Failure::usage),
            Some(uri) => StoreConfig::parse(uri, &Environment::default()).map_err(Failure::usage),
            None => StoreConfig::for_root(&default_root()?).map_err(Failure::usage),
        }
    }

    /// The selected store, as a destination.
    pub fn destination(&self) -> Result<Destination, Failure> {
        if self.store.is_none() {
            check_default_root()?;
        }
        Ok(Destination::new(self.config()?))
    }
}

/// Says where the default store comes from if this user cannot enter its folder: with sudo, cron and in containers, `HOME` may be another user's.
fn check_default_root() -> Result<(), Failure> {
    let root = default_root()?;
    let denied = |path: &Path| path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    if !root.ancestors().any(denied) {
        return Ok(());
    }
    let variable =
        if std::env::var_os("XDG_DATA_HOME").is_some_and(|set| !set.is_empty()) { "XDG_DATA_HOME" } else { "HOME" };
    let value = std::env::var_os(variable).unwrap_or_default();
    Err(Failure::runtime(format!(
        "cannot use '{}': Permission denied. It is the default store because {variable} is '{}': set that, or give a store with --store DIR or \
         NARVAL_STORE",
        root.display(),
        Path::new(&value).display()
    )))
}

/// `$XDG_DATA_HOME/narval`, which is `~/.local/share/narval`.
fn default_root() -> Result<PathBuf, Failure> {
    own_folder(
        "XDG_DATA_HOME",
        ".local/share",
        "narval",
        "give the store with --store DIR, or set HOME or XDG_DATA_HOME",
    )
}

/// What `--store` must be for a path that a store does not have: this machine's store or the user's own, if it has it.
pub(crate) fn other_store_with(config: &StoreConfig, wanted: &Wanted) -> Option<String> {
    let own =
        default_root().ok().and_then(|root| Some((StoreConfig::for_root(&root).ok()?, root.display().to_string())));
    let machine =
        StoreConfig::parse("auto", &Environment::of_process()).ok().map(|machine| (machine, "auto".to_owned()));
    let others = [own, machine].into_iter().flatten();
    let mut others = others.filter(|(other, _)| other.real_store_dir != config.real_store_dir && other.exists());
    let has_it = |other: StoreConfig| Destination::new(other).find(wanted).is_ok_and(|found| found.is_some());
    others.find_map(|(other, name)| has_it(other).then_some(name))
}

/// The caches to use.
#[derive(Clone, Debug, clap::Args)]
pub struct SourceCacheArgs {
    /// Binary cache: an http://, https://, s3:// or file:// URL. Repeatable; caches are queried by priority [default:
    /// those of nix.conf, otherwise cache.nixos.org]
    #[arg(
        long,
        value_name = "URL",
        env = "NARVAL_CACHES",
        hide_env_values = true,
        value_delimiter = ' ',
        help_heading = "Caches"
    )]
    pub from: Vec<String>,
    /// Public key to trust in addition to the trusted-public-keys of nix.conf, or to that of cache.nixos.org if it sets none.
    /// Repeatable
    #[arg(
        long,
        value_name = "NAME:KEY",
        env = "NARVAL_TRUSTED_KEYS",
        hide_env_values = true,
        value_delimiter = ' ',
        help_heading = "Caches"
    )]
    pub trusted_public_key: Vec<String>,
    /// Accept paths without a trusted signature. Only for caches and networks that you trust
    #[arg(long, help_heading = "Caches")]
    pub no_check_sigs: bool,
    /// Accept a release (`@NAME`) that is older than one that was seen before, and remember it as the newest
    #[arg(long, help_heading = "Caches")]
    pub allow_downgrade: bool,
    /// How requests are sent.
    #[command(flatten)]
    pub requests: RequestArgs,
    /// Use only file:// caches and paths in the store
    #[arg(long, help_heading = "Caches")]
    pub offline: bool,
    /// Maximum number of connections to one server
    #[arg(long, value_name = "N", default_value_t = CONNECTIONS, value_parser = clap::value_parser!(u16).range(1..=256), help_heading = "Caches")]
    pub connections: u16,
}

impl SourceCacheArgs {
    /// Those of the environment and of nix.conf, for a command whose options are about other caches.
    pub(crate) fn of_environment(requests: RequestArgs) -> Self {
        let words = |variable: &str| {
            std::env::var(variable).unwrap_or_default().split_whitespace().map(ToOwned::to_owned).collect()
        };
        Self {
            from: words("NARVAL_CACHES"),
            trusted_public_key: words("NARVAL_TRUSTED_KEYS"),
            no_check_sigs: false,
            allow_downgrade: false,
            requests,
            offline: false,
            connections: CONNECTIONS,
        }
    }

    /// The URLs of the caches.
    pub fn urls(&self) -> Result<Vec<Url>, Failure> {
        let urls = self.urls_if_any()?;
        Ok(if urls.is_empty() { vec![parse_cache(CACHE_NIXOS_ORG)?] } else { urls })
    }

    /// The same, and none if the settings of Nix say that there is none.
    pub(crate) fn urls_if_any(&self) -> Result<Vec<Url>, Failure> {
        if self.from.is_empty() {
            let settings = settings_of_nix();
            let listed = settings.substituters.clone().unwrap_or_else(|| vec![CACHE_NIXOS_ORG.to_owned()]);
            // Nix also has other types of store, which cannot be queried here.
            let of_nix = listed.iter().chain(&settings.extra_substituters).filter_map(|text| Url::parse(text).ok());
            return Ok(of_nix.collect());
        }
        self.from.iter().map(|text| parse_cache(text)).collect()
    }

    /// The HTTP client for them.
    pub fn client(&self) -> Result<Arc<Client>, Failure> {
        Ok(Arc::new(narval_s3::client(ClientOptions {
            offline: self.offline,
            connections_max: usize::from(self.connections),
            ..self.requests.options(&self.urls()?)?
        })))
    }

    /// The trusted keys.
    pub fn keys(&self) -> Result<TrustedKeys, Failure> {
        let settings = settings_of_nix();
        let usual = settings.trusted_public_keys.is_none().then_some(CACHE_NIXOS_ORG_KEY);
        let all = usual.into_iter().chain(self.trusted_public_key.iter().map(String::as_str));
        let parse = |text: &str| -> Result<PublicKey, Failure> {
            text.parse().map_err(|error| Failure::usage(format!("option --trusted-public-key '{text}': {error}")))
        };
        // Nix would reject its own file because of an invalid key; here the other keys are still used.
        let of_nix = settings.public_keys().filter_map(|text| text.parse().ok()).map(Ok);
        all.map(parse).chain(of_nix).collect()
    }

    /// The options of an install.
    pub fn options(&self, cores: Option<usize>, durable: bool) -> Result<Options, Failure> {
        let found = available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(Options {
            caches: self.urls()?,
            keys: self.keys()?,
            check_signatures: !self.no_check_sigs,
            cores: cores.unwrap_or(found),
            durable,
            deltas: DeltaUse::default(),
            delta_bases: Vec::new(),
            nar_hashes: HashMap::new(),
        })
    }
}

/// Whether paths are fetched as the difference to paths of the store.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct DeltaArgs {
    /// Fetch every NAR whole, even if the cache could send its difference to a path of the store
    #[arg(long, conflicts_with = "deltas", help_heading = "Caches")]
    no_deltas: bool,
    /// Ask for differences to paths of the store over fast connections, too
    ///
    /// By default, caches are only asked for them over connections so slow that they save time.
    #[arg(long, help_heading = "Caches")]
    deltas: bool,
}

impl DeltaArgs {
    /// What was chosen.
    pub const fn chosen(self) -> DeltaUse {
        match (self.no_deltas, self.deltas) {
            (true, _) => DeltaUse::Never,
            (false, true) => DeltaUse::Always,
            (false, false) => DeltaUse::Adaptive,
        }
    }
}

/// How requests to caches are sent.
#[derive(Clone, Debug, clap::Args)]
pub struct RequestArgs {
    /// File with credentials [default: $NETRC, ~/.netrc, the netrc-file of nix.conf, and /etc/nix/netrc]
    #[arg(long, value_name = "FILE", help_heading = "Caches")]
    pub netrc_file: Option<PathBuf>,
    /// Header field to send with every request to the caches, and only to them. Repeatable
    #[arg(long, value_name = "NAME: VALUE", help_heading = "Caches")]
    pub header: Vec<String>,
    /// Attempts per request, including the first. A server that has answered before is waited for 30 s, unless this is 1
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100), help_heading = "Caches")]
    pub attempts: u32,
    /// Time without data after which a request fails
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_timeout, help_heading = "Caches")]
    pub timeout: Duration,
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    parse_time_in(text, &(Duration::from_secs(1)..=Duration::from_secs(3600)))
}

impl RequestArgs {
    /// The options of an HTTP client with credentials for `urls`.
    ///
    /// # Errors
    /// A netrc file or a header field cannot be used.
    pub fn options(&self, urls: &[Url]) -> Result<ClientOptions, Failure> {
        let of_nix = settings_of_nix().netrc_file.as_deref();
        let netrc = Netrc::load(self.netrc_file.as_deref(), of_nix)
            .map_err(|error| Failure::usage(format!("netrc: {error}")))?;
        let mut credentials = Credentials::new(netrc, urls);
        for header in &self.header {
            credentials.add_header(header).map_err(Failure::usage)?;
        }
        Ok(ClientOptions {
            credentials,
            retry: RetryPolicy { attempts: self.attempts, ..RetryPolicy::default() },
            stall_timeout: self.timeout,
            connect_timeout: CONNECT_TIMEOUT.min(self.timeout),
            ssl_cert_file: settings_of_nix().ssl_cert_file.clone(),
            ..ClientOptions::default()
        })
    }
}

/// Parses the URL of a cache; a folder is allowed, too.
pub fn parse_cache(text: &str) -> Result<Url, Failure> {
    let parsed = if text.starts_with('/') || text.starts_with("./") || text.starts_with("../") {
        let absolute = std::path::absolute(text).map_err(|error| Failure::usage(format!("{text}: {error}")))?;
        Url::from_folder(&absolute)
    } else {
        Url::parse(text)
    };
    parsed.map_err(Failure::usage)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Coded(error.exit_code(), error.to_string())
    }
}

impl From<narval_cache::CacheError> for Failure {
    fn from(error: narval_cache::CacheError) -> Self {
        Error::from(error).into()
    }
}

impl From<narval_cache::WantedError> for Failure {
    fn from(error: narval_cache::WantedError) -> Self {
        Error::from(error).into()
    }
}
