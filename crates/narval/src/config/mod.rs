//! The configuration file of `narval serve`: TOML, every key optional. `docs/configuration.md` describes the keys.
//!
//! A key that is not known is an error, and so is a value that can't be: [`ServeConfig::load`] tells all of them, each on one line with
//! the file, the line, the key, the value and what is allowed. What the file leaves out, an option of the command line or the default
//! decides; options of the command line win over the file.
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
mod section;
mod summary;
mod values;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use narval_client::Url;
use narval_http::Limits;
use narval_nix::PublicKey;

pub use cache::CacheSection;
pub use error::{ConfigError, ConfigErrors};
pub use section::At;
use section::{Document, Section};
use values::Kind;
pub use values::Retention;

use crate::values::ktls_mode::KtlsMode;
use crate::values::listen::Listen;
use crate::values::log_form::LogForm;

/// The largest configuration file that is read, in bytes.
pub const CONFIG_LEN_MAX: u64 = 1024 * 1024;

/// What a configuration file says. `None` and empty lists: nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServeConfig {
    /// Where to listen.
    pub listen: Vec<At<Listen>>,
    /// The store to serve, as `--store`.
    pub store: Option<At<String>>,
    /// The data folder of a cache that takes uploads.
    pub data: Option<PathBuf>,
    /// Whether everybody may read that cache.
    pub public: Option<bool>,
    /// `[[upstream]]`: the caches that are asked for what the cache at `/` does not have.
    pub upstreams: Vec<UpstreamSection>,
    /// `[[cache]]`: the caches that take uploads. That at `/` is there without a section, too.
    pub caches: Vec<CacheSection>,
    /// `[[oidc]]`: the platforms whose jobs get tokens.
    pub oidc: Vec<OidcSection>,
    /// What may be kept of them, in bytes.
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
    /// What clients may cost.
    pub limits: LimitsSection,
}

/// To what NARs are recompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompress {
    /// To nothing: they stay as they came.
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
    /// The keys whose signatures count for what comes from it.
    pub keys: Vec<PublicKey>,
    /// Whether a signature of one of them is asked for.
    pub require_signatures: Option<bool>,
    /// Lower is asked first.
    pub priority: Option<i64>,
    /// A netrc file with its login and password.
    pub netrc_file: Option<At<PathBuf>>,
    /// How long connecting may take, and each wait for a narinfo.
    pub timeout: Option<Duration>,
    /// How long a NAR may stand still.
    pub stall_timeout: Option<Duration>,
}

/// `[[oidc]]`: a platform whose jobs get tokens (OpenID Connect).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcSection {
    /// Its line.
    pub line: usize,
    /// What logs call it.
    pub name: Option<String>,
    /// Its address.
    pub issuer: String,
    /// For whom its tokens must have been made.
    pub audience: String,
    /// How long the tokens of this cache are good for.
    pub token_lifetime: Option<Duration>,
    /// `[[oidc.rule]]`: the first that a token meets says what it gets.
    pub rules: Vec<OidcRuleSection>,
}

/// `[[oidc.rule]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcRuleSection {
    /// Its line.
    pub line: usize,
    /// The claims that a token must have, each with the patterns of which one must fit.
    pub claims: Vec<(String, Vec<String>)>,
    /// Names or patterns of caches; none: all.
    pub caches: Vec<String>,
    /// What a token may do there.
    pub scopes: Vec<String>,
}

/// `[tls]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSection {
    /// `[[tls.certificate]]`: the first is for clients that name none of them.
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
}

/// `[nar-cache]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NarCacheSection {
    /// Whether compressed NARs are made at all.
    pub enabled: Option<bool>,
    /// Its folder.
    pub folder: Option<PathBuf>,
    /// Its size, in bytes.
    pub size: Option<u64>,
    /// The level of zstd.
    pub level: Option<i32>,
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
    /// The memory that remembered narinfos may take, in bytes.
    pub narinfo_memory: Option<u64>,
}

impl ServeConfig {
    /// Reads a file.
    ///
    /// # Errors
    /// The file can't be read, or says what it may not.
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

    /// Reads a text. `file` is what messages call it, and paths are relative to its folder.
    ///
    /// # Errors
    /// It says what it may not.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigErrors> {
        let config = Document::new(file, text).read(top)?;
        let wrong = cache::conflicts(file, &config.caches);
        if wrong.is_empty() { Ok(config) } else { Err(ConfigErrors(wrong)) }
    }

    /// The names of all keys, those in tables with the table's name before them: `limits.queue`.
    pub fn keys() -> BTreeSet<String> {
        let document = Document::new("", "");
        // Nothing can be wrong with an empty document.
        drop(document.read(top));
        document.keys()
    }
}

fn top(top: &Section<'_>) -> ServeConfig {
    ServeConfig {
        listen: top.list("listen", &Kind::parsed("HOST:PORT, :PORT, [IPV6]:PORT or the path of a unix socket")),
        store: top.at("store", &Kind::text()),
        data: top.path("data").map(|at| at.value),
        public: top.get("public", &Kind::boolean()),
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

fn upstream(section: &Section<'_>, line: usize) -> Option<UpstreamSection> {
    let timeout = || Kind::<Duration>::duration(Duration::from_millis(100)..=Duration::from_secs(3600));
    let url = section.get("url", &Kind::parsed("the address of a binary cache"));
    let url = section.required("url", line, url);
    let keys = section.list("keys", &Kind::parsed("a public key, NAME:BASE64,"));
    let require_signatures = section.get("require-signatures", &Kind::boolean());
    let priority = section.get("priority", &Kind::integer(0..=1_000_000));
    let netrc_file = section.path("netrc-file");
    let (timeout, stall_timeout) = (section.get("timeout", &timeout()), section.get("stall-timeout", &timeout()));
    let keys = keys.into_iter().map(|at| at.value).collect();
    Some(UpstreamSection { line, url: url?, keys, require_signatures, priority, netrc_file, timeout, stall_timeout })
}

fn oidc(section: &Section<'_>, line: usize) -> Option<OidcSection> {
    let lifetime = Kind::<Duration>::duration(Duration::from_secs(60)..=TIMEOUT_MAX);
    let name = section.get("name", &Kind::text());
    let issuer = section.required("issuer", line, section.get("issuer", &Kind::text()));
    let audience = section.required("audience", line, section.get("audience", &Kind::text()));
    let token_lifetime = section.get("token-lifetime", &lifetime);
    let rules = section.tables("rule", oidc_rule);
    Some(OidcSection { line, name, issuer: issuer?, audience: audience?, token_lifetime, rules })
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
    // `-` is standard output, and no name of a file.
    let file = file.map(|at| if at.value.as_os_str() == "-" { at } else { section.absolute(at) });
    AccessLogSection { file, format: section.get("format", &Kind::choice()) }
}

fn nar_cache(section: &Section<'_>) -> NarCacheSection {
    NarCacheSection {
        enabled: section.get("enabled", &Kind::boolean()),
        folder: section.path("folder").map(|at| at.value),
        size: section.get("size", &Kind::size()),
        level: section.get("level", &Kind::integer(1..=19)),
    }
}

/// The longest time that a limit may be.
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
        narinfo_memory: section.get("narinfo-memory", &Kind::size()),
    }
}

impl LimitsSection {
    /// The limits of the engine, with what the file says of them.
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
    }
}
