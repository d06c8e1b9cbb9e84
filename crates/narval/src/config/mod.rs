//! The configuration file of `narval serve`: TOML, every key optional. `docs/configuration.md` describes the keys.
//!
//! Unknown keys and invalid values are errors: [`ServeConfig::load`] reports all of them, each on one line with the
//! file, the line, the key, the value and what is allowed. Command-line options take precedence over the file, and the
//! file over the defaults.
//!
//! ```
//! use narval::config::ServeConfig;
//!
//! let config = ServeConfig::parse("narval.toml", "priority = 20\n").unwrap();
//! assert_eq!(config.priority, Some(20));
//! let errors = ServeConfig::parse("narval.toml", "# Ours\nprioritty = 20\n").unwrap_err();
//! assert_eq!(errors.to_string(), "narval.toml:2: unknown key 'prioritty'; did you mean 'priority'?");
//! ```

mod cache;
mod error;
mod folder;
mod foreign;
mod section;
mod summary;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use narval_client::{HostPattern, Url};
use narval_http::{Limits, TrustedProxy};
use narval_keep::{Database, Place};
use narval_nix::PublicKey;

pub use cache::CacheSection;
pub use error::{ConfigError, ConfigErrors};
pub use foreign::FOREIGN;
pub use section::At;
use section::{Document, Section};
use values::Kind;
pub use values::Retention;

use crate::values::delta_choice::DeltaChoice;
use crate::values::ktls_mode::KtlsMode;
use crate::values::listen::Listen;
use crate::values::log_form::LogForm;
use crate::values::redirect_choice::RedirectChoice;

/// The maximum size of a configuration file in bytes.
pub const CONFIG_LEN_MAX: u64 = 1024 * 1024;

/// The contents of a configuration file. `None` and empty lists are keys that it does not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServeConfig {
    /// Where to listen.
    pub listen: Vec<At<Listen>>,
    /// The proxies that are believed who their clients are.
    pub trusted_proxies: Vec<At<TrustedProxy>>,
    /// Whether they speak the PROXY protocol.
    pub proxy_protocol: Option<bool>,
    /// The store to serve, like `--store`.
    pub store: Option<At<String>>,
    /// The data folder of the caches that accept uploads.
    pub data: Option<PathBuf>,
    /// The database with the index of the data folder, if that is not in the folder.
    pub database: Option<At<Database>>,
    /// With `data` in a bucket: the folder on this machine.
    pub cache_dir: Option<PathBuf>,
    /// With `data` in a bucket: the size of the disk cache, in bytes.
    pub cache_size: Option<u64>,
    /// With `data` in a bucket and `database`: where other nodes reach this one, to share disk caches.
    pub peer_url: Option<At<Url>>,
    /// With `data` in a bucket: when clients get large NARs from the object store itself.
    pub redirect: Option<RedirectChoice>,
    /// Whether other users of the machine may read the data folder.
    pub share_data: Option<bool>,
    /// Whether reading that cache needs no token.
    pub public: Option<At<bool>>,
    /// `[[upstream]]`: the caches to query for paths that the cache at `/` does not have.
    pub upstreams: Vec<UpstreamSection>,
    /// `[[cache]]`: the caches that accept uploads. The one at `/` exists even without a section.
    pub caches: Vec<CacheSection>,
    /// `[[oidc]]`: the platforms whose jobs get tokens.
    pub oidc: Vec<OidcSection>,
    /// The limit of stored upstream files, in bytes.
    pub upstream_size: Option<u64>,
    /// Secret keys to sign with.
    pub sign_keys: Vec<At<PathBuf>>,
    /// `Priority` in `nix-cache-info`.
    pub priority: Option<u32>,
    /// Whether NARs are hashed while they are sent.
    pub verify_nars: Option<bool>,
    /// Whether browsers get a page at `/`.
    pub web: Option<bool>,
    /// HTTPS.
    pub tls: TlsSection,
    /// The access log.
    pub access_log: AccessLogSection,
    /// The cache of compressed NARs.
    pub nar_cache: NarCacheSection,
    /// Limits and timeouts.
    pub limits: LimitsSection,
}

/// Whether NARs are recompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompress {
    /// Never: they stay as uploaded.
    Never,
    /// To zstd.
    Zstd,
}

impl std::str::FromStr for Recompress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Self::Never),
            "zstd" => Ok(Self::Zstd),
            _ => Err("give \"zstd\" or \"never\"".to_owned()),
        }
    }
}

/// `[[upstream]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamSection {
    /// Its line.
    pub line: usize,
    /// Its address.
    pub url: Url,
    /// The trusted keys for its paths.
    pub keys: Vec<PublicKey>,
    /// Whether a signature by one of them is required.
    pub require_signatures: Option<bool>,
    /// Lower is queried first.
    pub priority: Option<i64>,
    /// A netrc file with its login and password.
    pub netrc_file: Option<At<PathBuf>>,
    /// Other hosts to which it may lead.
    pub redirect_hosts: Vec<HostPattern>,
    /// The timeout for connecting, and for each wait for a narinfo.
    pub timeout: Option<Duration>,
    /// How long a NAR may make no progress.
    pub stall_timeout: Option<Duration>,
}

/// `[[oidc]]`: a platform whose jobs get tokens (OpenID Connect).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcSection {
    /// Its line.
    pub line: usize,
    /// Its name in logs.
    pub name: Option<String>,
    /// Its address.
    pub issuer: String,
    /// The required audience of its tokens.
    pub audience: String,
    /// The lifetime of the issued tokens.
    pub token_lifetime: Option<Duration>,
    /// Whether its tokens must have an id, with which each is exchanged once.
    pub require_jti: Option<bool>,
    /// `[[oidc.rule]]`: the first matching rule determines the permissions.
    pub rules: Vec<OidcRuleSection>,
}

/// `[[oidc.rule]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcRuleSection {
    /// Its line.
    pub line: usize,
    /// The required claims, each with patterns of which one must match.
    pub claims: Vec<(String, Vec<String>)>,
    /// Names or patterns of caches; if empty, all.
    pub caches: Vec<String>,
    /// The scopes for these caches.
    pub scopes: Vec<String>,
}

/// `[tls]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSection {
    /// `[[tls.certificate]]`: the first is for clients that request none of them by SNI.
    pub certificates: Vec<CertificateSection>,
    /// The authorities whose client certificates are accepted.
    pub client_ca: Option<At<PathBuf>>,
    /// When the kernel encrypts.
    pub ktls: Option<KtlsMode>,
    /// Whether HTTP/2 is offered.
    pub http2: Option<bool>,
}

/// `[[tls.certificate]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSection {
    /// Its line.
    pub line: usize,
    /// The certificate chain (PEM).
    pub cert: PathBuf,
    /// Its private key (PEM).
    pub key: PathBuf,
    /// An OCSP response (DER) to staple.
    pub ocsp: Option<PathBuf>,
}

/// `[access-log]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessLogSection {
    /// The file; `-` is standard output.
    pub file: Option<At<PathBuf>>,
    /// The format of a line.
    pub format: Option<LogForm>,
    /// Whether ids of requests that clients send are used.
    pub trust_request_ids: Option<bool>,
}

/// `[nar-cache]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NarCacheSection {
    /// Whether NARs are compressed at all.
    pub enabled: Option<bool>,
    /// Its folder.
    pub folder: Option<PathBuf>,
    /// Its size, in bytes.
    pub size: Option<u64>,
    /// The zstd level.
    pub level: Option<i32>,
    /// Whether deltas are sent.
    pub deltas: Option<DeltaChoice>,
}

/// `[limits]`: see [`Limits`], which the fields are named after.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitsSection {
    /// [`Limits::connections_max`].
    pub connections: Option<usize>,
    /// [`Limits::connections_per_ip_max`].
    pub connections_per_address: Option<usize>,
    /// [`Limits::queue_max`].
    pub queue: Option<usize>,
    /// [`Limits::backlog`].
    pub backlog: Option<u32>,
    /// [`Limits::head_timeout`].
    pub head_timeout: Option<Duration>,
    /// [`Limits::keep_alive_timeout`].
    pub keep_alive_timeout: Option<Duration>,
    /// [`Limits::write_stall_timeout`].
    pub stall_timeout: Option<Duration>,
    /// [`Limits::output_memory_max`], in bytes.
    pub output_memory: Option<u64>,
    /// The memory for remembered narinfos, in bytes.
    pub narinfo_memory: Option<u64>,
    /// The memory for the windows of uploads' decoders, in bytes.
    pub decode_memory: Option<u64>,
}

impl ServeConfig {
    /// Loads a file.
    ///
    /// # Errors
    /// The file cannot be read, or has errors.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        let file = path.display().to_string();
        let whole = |message: String| ConfigErrors(vec![ConfigError { file: file.clone(), line: None, message }]);
        let length = std::fs::metadata(path).map(|meta| meta.len());
        if length.is_ok_and(|length| length > CONFIG_LEN_MAX) {
            return Err(whole(format!("the file is larger than {CONFIG_LEN_MAX} bytes")));
        }
        let bytes = std::fs::read(path).map_err(|error| whole(format!("cannot read the configuration: {error}")))?;
        let text = String::from_utf8(bytes).map_err(|error| whole(format!("the file is not UTF-8 text: {error}")))?;
        Self::parse(&file, &text)
    }

    /// Parses a text. `file` is its name in messages, and paths are relative to its folder.
    ///
    /// # Errors
    /// The text has errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigErrors> {
        let config = Document::new(file, text).read(top)?;
        let wrong = cache::conflicts(file, &config.caches);
        if wrong.is_empty() { Ok(config) } else { Err(ConfigErrors(wrong)) }
    }

    /// The names of all keys, with the names of their tables: `limits.queue`.
    pub fn keys() -> BTreeSet<String> {
        Self::reference().into_keys().collect()
    }

    /// All keys, and what each accepts, in words.
    pub fn reference() -> BTreeMap<String, String> {
        let document = Document::new("", "");
        // An empty document has no errors.
        drop(document.read(top));
        document.keys()
    }
}

fn top(top: &Section<'_>) -> ServeConfig {
    ServeConfig {
        listen: top.list("listen", &Kind::parsed("HOST:PORT, :PORT, [IPV6]:PORT or the path of a unix socket")),
        trusted_proxies: top
            .list("trusted-proxies", &Kind::parsed("an IP address, a network such as 10.0.0.0/8, or unix,")),
        proxy_protocol: top.get("proxy-protocol", &Kind::boolean()),
        store: top.at("store", &Kind::text()),
        data: data(top),
        database: top.at("database", &Kind::parsed("the address of a database, postgres://USER@HOST/DATABASE,")),
        cache_dir: top.path("cache-dir").map(|at| at.value),
        cache_size: top.get("cache-size", &Kind::size()),
        peer_url: top.at("peer-url", &Kind::parsed("the address of this server for other nodes, http://HOST:PORT,")),
        redirect: top.get("redirect", &Kind::choice()),
        share_data: top.get("share-data", &Kind::boolean()),
        public: top.at("public", &Kind::boolean()),
        upstreams: top.tables("upstream", upstream).into_iter().flatten().collect(),
        caches: top.tables("cache", cache::read).into_iter().flatten().collect(),
        oidc: top.tables("oidc", oidc).into_iter().flatten().collect(),
        upstream_size: top.get("upstream-size", &Kind::size()),
        sign_keys: top.paths("sign-keys"),
        priority: top.get("priority", &Kind::integer(0..=u32::MAX)),
        verify_nars: top.get("verify-nars", &Kind::boolean()),
        web: top.get("web", &Kind::boolean()),
        tls: top.table("tls", tls),
        access_log: top.table("access-log", access_log),
        nar_cache: top.table("nar-cache", nar_cache),
        limits: top.table("limits", limits),
    }
}

/// A folder, or the address of a bucket.
fn data(top: &Section<'_>) -> Option<PathBuf> {
    let data = top.at("data", &Kind::path())?;
    let is_bucket = data.value.to_str().is_some_and(|text| Place::bucket_address(text).is_some());
    Some(if is_bucket { data.value } else { top.absolute(data).value })
}

fn upstream(section: &Section<'_>, line: usize) -> Option<UpstreamSection> {
    let timeout = || Kind::<Duration>::duration(Duration::from_millis(100)..=Duration::from_secs(3600));
    let url = section.get("url", &Kind::parsed("the address of a binary cache"));
    let url = section.required("url", line, url);
    let keys = section.list("keys", &Kind::parsed("a public key, NAME:BASE64,"));
    let require_signatures = section.get("require-signatures", &Kind::boolean());
    let priority = section.get("priority", &Kind::integer(0..=1_000_000));
    let netrc_file = section.path("netrc-file");
    let redirect_hosts =
        section.list("redirect-hosts", &Kind::parsed("a host, such as cdn.example.org or *.example.org,"));
    let redirect_hosts = redirect_hosts.into_iter().map(|at| at.value).collect();
    let (timeout, stall_timeout) = (section.get("timeout", &timeout()), section.get("stall-timeout", &timeout()));
    let keys = keys.into_iter().map(|at| at.value).collect();
    Some(UpstreamSection {
        line,
        url: url?,
        keys,
        require_signatures,
        priority,
        netrc_file,
        redirect_hosts,
        timeout,
        stall_timeout,
    })
}

fn oidc(section: &Section<'_>, line: usize) -> Option<OidcSection> {
    let lifetime = Kind::<Duration>::duration(Duration::from_secs(60)..=TIMEOUT_MAX);
    let name = section.get("name", &Kind::text());
    let issuer = section.required("issuer", line, section.get("issuer", &Kind::text()));
    let audience = section.required("audience", line, section.get("audience", &Kind::text()));
    let token_lifetime = section.get("token-lifetime", &lifetime);
    let require_jti = section.get("require-jti", &Kind::boolean());
    let rules = section.tables("rule", oidc_rule);
    Some(OidcSection { line, name, issuer: issuer?, audience: audience?, token_lifetime, require_jti, rules })
}

fn oidc_rule(section: &Section<'_>, line: usize) -> OidcRuleSection {
    let texts = |key| section.list(key, &Kind::text()).into_iter().map(|at| at.value).collect();
    OidcRuleSection {
        line,
        claims: section.map("claims", &Kind::text()),
        caches: texts("caches"),
        scopes: texts("scopes"),
    }
}

fn tls(tls: &Section<'_>) -> TlsSection {
    TlsSection {
        certificates: tls.tables("certificate", certificate).into_iter().flatten().collect(),
        client_ca: tls.path("client-ca"),
        ktls: tls.get("ktls", &Kind::choice()),
        http2: tls.get("http2", &Kind::boolean()),
    }
}

fn certificate(section: &Section<'_>, line: usize) -> Option<CertificateSection> {
    let cert = section.required("cert", line, section.path("cert"));
    let key = section.required("key", line, section.path("key"));
    let ocsp = section.path("ocsp").map(|at| at.value);
    Some(CertificateSection { line, cert: cert?.value, key: key?.value, ocsp })
}

fn access_log(section: &Section<'_>) -> AccessLogSection {
    let file = section.at("file", &Kind::path());
    // `-` is standard output, not a file name.
    let file = file.map(|at| if at.value.as_os_str() == "-" { at } else { section.absolute(at) });
    let trust_request_ids = section.get("trust-request-ids", &Kind::boolean());
    AccessLogSection { file, format: section.get("format", &Kind::choice()), trust_request_ids }
}

fn nar_cache(section: &Section<'_>) -> NarCacheSection {
    NarCacheSection {
        enabled: section.get("enabled", &Kind::boolean()),
        folder: section.path("folder").map(|at| at.value),
        size: section.get("size", &Kind::size()),
        level: section.get("level", &Kind::integer(1..=19)),
        deltas: section.get("deltas", &Kind::choice()),
    }
}

/// The maximum of a timeout.
const TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

fn limits(section: &Section<'_>) -> LimitsSection {
    let timeout = || Kind::<Duration>::duration(Duration::from_millis(100)..=TIMEOUT_MAX);
    LimitsSection {
        connections: section.get("connections", &Kind::integer(1..=1_000_000)),
        connections_per_address: section.get("connections-per-address", &Kind::integer(1..=1_000_000)),
        queue: section.get("queue", &Kind::integer(1..=1_000_000)),
        backlog: section.get("backlog", &Kind::integer(1..=65_535)),
        head_timeout: section.get("head-timeout", &timeout()),
        keep_alive_timeout: section.get("keep-alive-timeout", &timeout()),
        stall_timeout: section.get("stall-timeout", &timeout()),
        output_memory: section.get("output-memory", &Kind::size()),
        narinfo_memory: section.get("narinfo-memory", &Kind::size()),
        decode_memory: section.get("decode-memory", &Kind::size()),
    }
}

/// A size of memory.
pub fn saturated(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl LimitsSection {
    /// Overrides the engine's limits with those of the file.
    pub fn apply(&self, limits: &mut Limits) {
        fn set<T: Copy>(field: &mut T, value: Option<T>) {
            *field = value.unwrap_or(*field);
        }
        set(&mut limits.connections_max, self.connections);
        limits.connections_per_ip_max = self.connections_per_address.or(limits.connections_per_ip_max);
        set(&mut limits.queue_max, self.queue);
        set(&mut limits.backlog, self.backlog);
        set(&mut limits.head_timeout, self.head_timeout);
        set(&mut limits.keep_alive_timeout, self.keep_alive_timeout);
        set(&mut limits.write_stall_timeout, self.stall_timeout);
        set(&mut limits.output_memory_max, self.output_memory.map(saturated));
    }
}
