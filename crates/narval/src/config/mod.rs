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
//! assert_eq!(config.priority.value, 20);
//! let errors = ServeConfig::parse("narval.toml", "# Ours\nprioritty = 20\n").unwrap_err();
//! assert_eq!(errors.to_string(), "narval.toml:2: unknown key 'prioritty'; did you mean 'priority'?");
//! ```

mod error;
mod field;
mod foreign;
mod key;
mod kind;
mod kinds;
pub(crate) mod location;
mod options;
mod section;
mod summary;
pub(crate) mod tables;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use narval_client::{Scheme, Url};
use narval_keep::{Database, Redirect, StorageLocation};

pub use error::{ConfigError, ConfigErrors, Origin};
pub(crate) use field::{Nested, table};
pub use foreign::FOREIGN;
pub use key::{At, CommandOption, KeyInfo};
pub use kinds::Retention;
pub(crate) use kinds::size;
use kinds::{boolean, choice, integer, parsed, path, path_unless, text};
pub use options::Options;
pub use section::{Loaded, ReadKey, Section, Table, needs_restart};
pub use tables::access_log::{AccessLog, BoxedLog, open as open_access_log};
pub use tables::cache::Cache;
pub use tables::destination::Destination;
pub use tables::limits::{Limits, saturated};
pub use tables::nar_cache::{NarCache, NarFolder, Warming};
pub use tables::neighbours::{Neighbours, OnlyOn};
pub use tables::oidc::{Oidc, OidcRule};
pub use tables::project::{LockFile, LockedPackage, LockedPath, ProjectFile};
pub use tables::proxies::Proxies;
pub use tables::tls::{Certificate, KtlsMode, Tls};
pub use tables::tracing::Tracing;
pub(crate) use tables::upstream::CACHE_NIXOS_ORG_KEY;
pub use tables::upstream::{Upstream, Upstreams};

use crate::values::listen::Listen;

table! {
    /// The configuration of `narval serve`.
    ServeConfig {
        /// Address to listen on: HOST:PORT, :PORT, [IPV6]:PORT or the path of a unix socket
        listen: Vec<Listen> = parsed::<Listen>("HOST:PORT, :PORT, [IPV6]:PORT or the path of a unix socket")
            .or_else("the sockets passed by systemd, else :5000").option("listen", "WHERE").with(|arg| arg.short('l')).restart(),
        /// Store to serve: `auto`, `daemon`, a folder that contains a store, or another Nix store URI
        store: Option<String> = text().or_else("$NIX_REMOTE, else this machine's store; none with a data folder").option("store", "URI"),
        /// Data folder of a cache that accepts uploads (`nix copy --to`); created if it does not exist
        ///
        /// Uploads need a token: create one with `narval token create`. Without a store, only this cache is served.
        /// The caches can also be in a bucket of an object store, `s3://BUCKET/PREFIX?region=…&endpoint=…`; see docs/scale-out.md.
        data: Option<PathBuf> = path_unless(is_bucket).option("data", "DIR|URL").restart().nix("dataPlace"),
        /// With the data in a bucket: folder on this machine for the disk cache, and for the index unless a database has it
        cache_dir: Option<PathBuf> = path().option("cache-dir", "DIR").with(|arg| arg.env("NARVAL_CACHE_DIR").hide_env_values(true)).restart().nix("stateFolder"),
        /// With the data in a bucket: maximum size of the disk cache; the least recently used NARs are removed first
        cache_size: u64 = size().or("20G").option("cache-size", "SIZE").restart(),
        /// With the data in a bucket: when clients get NARs of 8 MiB and more from the object store itself
        ///
        /// They are sent there by a redirect to an address that is valid for five minutes; see docs/scale-out.md#redirects.
        redirect: At<Redirect> = choice(&REDIRECTS).or("off").option("redirect", "WHEN"),
        /// With the data in a bucket and a database: address at which other servers over the same bucket reach this one, to share disk caches
        ///
        /// Each NAR is then kept by one of the servers that have such an address, and the others read it from there: `http://10.0.0.3:5000`;
        /// see docs/scale-out.md#sharing-disk-caches.
        peer_url: Option<At<Url>> = parsed::<Url>("the address of this server for other nodes, http://HOST:PORT,")
            .option("peer-url", "URL").with(|arg| arg.alias("peer-address").env("NARVAL_PEER_URL").hide_env_values(true)).restart().nix("webUrl"),
        /// PostgreSQL database with the index of the data folder: `postgres://USER@HOST/DATABASE`
        ///
        /// Several servers can then share the folder. The password is better given by PGPASSWORD, or by the configuration file: everybody
        /// on the machine can read command lines.
        database: Option<At<Database>> = parsed::<Database>("the address of a database, postgres://USER@HOST/DATABASE,")
            .option("database", "URL").with(|arg| arg.env("NARVAL_DATABASE").hide_env_values(true)).restart().secret().nix("database"),
        /// Whether other users of the machine may read the data folder, such as nginx
        ///
        /// Without it, what a server and the commands on its data create is 0700 (folders) and 0600 (files), new access logs included, and the
        /// server warns of an existing folder or file that allows more. With it, the umask decides; make what is there readable with
        /// `chmod -R go+rX`.
        share_data: bool = boolean().or("false").restart(),
        /// Whether caches that take uploads may be read without a token
        public: Option<At<bool>> = boolean().or_else("the data folder's setting, initially true").flag("private", "false", |arg| arg.help("Require a token for reading, too")),
        /// Secret key to sign with
        ///
        /// Create one with `narval key generate`; or a file that names a command which has the key (docs/security.md). Signatures stored with the paths are served as well.
        sign_keys: Vec<At<PathBuf>> = path().option("sign-key", "FILE").with(|arg| arg.short('k')).nix("secret"),
        /// As `sign-keys`, for caches that the API creates
        ///
        /// They get no key of their own then, which would be in the index (docs/api.md#keys).
        managed_sign_keys: Vec<At<PathBuf>> = path().nix("secret"),
        /// Priority; clients query the cache with the lowest number first (cache.nixos.org: 40)
        priority: At<u32> = integer(0..=u32::MAX).or("30").option("priority", "N"),
        /// Compressed NARs of the live store.
        nar_cache: NarCache = Nested::Table(None),
        /// Whether every NAR is hashed while it is sent
        verify_nars: bool = boolean().or("false").flag("verify-nars", "true", |arg| arg.help("Hash every NAR while it is sent, and abort the connection if it does not match the database")),
        /// Whether browsers get a page at `/` (docs/web.md)
        web: bool = boolean().or("true").flag("no-web", "false", |arg| arg.help("Do not serve the web page at /")),
        /// What clients may cost.
        limits: Limits = Nested::Table(None),
        /// HTTPS.
        tls: Tls = Nested::Table(Some("HTTPS")),
        /// The upstreams of the cache at `/`.
        upstreams: Upstreams = Nested::Here(Some("Upstreams")),
        /// The neighbours of the cache at `/`.
        neighbours: Neighbours = Nested::Here(Some("Neighbours")),
        /// Caches that take uploads; needs `data`. The cache `default` is at `/`, even without a section; others are below `/NAME`.
        cache: Vec<Cache> = Nested::Table(None),
        /// Places that jobs may copy caches to.
        destination: Vec<Destination> = Nested::Table(None),
        /// CI platforms whose jobs get tokens.
        oidc: Vec<Oidc> = Nested::Table(None),
        /// The access log.
        access_log: AccessLog = Nested::Table(Some("Access log")),
        /// What requests take, for a collector of OpenTelemetry.
        tracing: Tracing = Nested::Table(Some("Traces")),
        /// The proxies in front.
        proxies: Proxies = Nested::Here(Some("Behind a proxy")),
    }
}

/// When clients get large NARs from the object store itself.
const REDIRECTS: [(&str, &str, Redirect); 3] = [
    ("off", "Never", Redirect::Off),
    ("auto", "The first time that a NAR is requested which is not in the disk cache", Redirect::Auto),
    ("on", "Always", Redirect::On),
];

/// Parses a text as a table. `file` is its name in messages.
///
/// # Errors
/// The text has errors.
pub fn parse<T: Table>(file: &str, text: &str) -> Result<T, ConfigErrors> {
    section::Document::new(file, text, &Vec::new()).read().map(|loaded| loaded.settings)
}

/// Whether `data` is the address of a bucket, not a folder.
pub fn is_bucket(data: &str) -> bool {
    StorageLocation::bucket_address(data).is_some()
}

impl ServeConfig {
    /// Loads a file.
    ///
    /// # Errors
    /// The file cannot be read, or has errors.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        Self::read(&Options::default(), Some(path)).map(|loaded| loaded.settings)
    }

    /// Parses a text. `file` is its name in messages, and paths are relative to its folder.
    ///
    /// # Errors
    /// The text has errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigErrors> {
        Self::without_duplicates(section::Document::new(file, text, &Vec::new()).read()?).map(|loaded| loaded.settings)
    }

    /// Reads options over a file, if there is one.
    ///
    /// # Errors
    /// The file cannot be read, or something is wrong.
    pub fn read(options: &Options<Self>, file: Option<&Path>) -> Result<Loaded<Self>, ConfigErrors> {
        Self::without_duplicates(options.over(file)?)
    }

    fn without_duplicates(loaded: Loaded<Self>) -> Result<Loaded<Self>, ConfigErrors> {
        let wrong = tables::cache::conflicts(&loaded.settings.cache);
        if wrong.is_empty() { Ok(loaded) } else { Err(ConfigErrors(wrong)) }
    }

    /// The names of all keys, with the names of their tables: `limits.queue`.
    pub fn keys() -> BTreeSet<String> {
        Self::reference().into_iter().filter(|key| !key.is_table()).map(|key| key.path).collect()
    }

    /// All keys and tables, and what is known of them.
    pub fn reference() -> Vec<KeyInfo> {
        section::describe::<Self>()
    }

    /// Whether the caches that accept uploads are in a bucket.
    pub fn is_in_bucket(&self) -> bool {
        self.data.as_ref().and_then(|data| data.to_str()).is_some_and(is_bucket)
    }

    /// What contradicts each other, even if each key is valid. `has_data`: a data folder is given otherwise.
    pub fn check(&self, has_data: bool) -> Vec<ConfigError> {
        let mut wrong = Vec::new();
        if self.data.is_none() && !has_data {
            self.needs_data(&mut wrong);
        }
        let caches = self.cache.iter().flat_map(|cache| &cache.upstream);
        wrong.extend(self.upstreams.upstream.iter().chain(caches).filter_map(|upstream| upstream.options().err()));
        wrong.extend(Oidc::check(&self.oidc));
        wrong.extend(self.destination.iter().filter_map(|destination| destination.resolved().err()));
        wrong.extend(self.tls.check().err());
        wrong.extend(self.proxies.check().err());
        wrong.extend(self.neighbours.check(self.caches().first().is_some_and(|cache| !cache.upstream.is_empty())));
        let in_bucket = self.is_in_bucket() || (self.data.is_none() && has_data);
        if self.redirect.value != Redirect::Off && !in_bucket {
            wrong.push(self.redirect.origin.error("redirect", "needs --data in a bucket (s3://…)"));
        }
        if let Some(At { value: url, origin }) = &self.peer_url {
            if !in_bucket || self.database.is_none() {
                wrong.push(origin.error("peer-url", "needs --data in a bucket (s3://…), and --database"));
            } else if !matches!(url.scheme(), Scheme::Http | Scheme::Https) || url.userinfo().is_some() {
                wrong.push(origin.error("peer-url", "give http://HOST:PORT or https://HOST:PORT, without a password"));
            }
        }
        wrong.sort_by_key(|error| error.origin.line());
        wrong
    }

    /// The keys that only work with a data folder: a server without one would ignore them, and `public = false` would be read by everybody.
    fn needs_data(&self, wrong: &mut Vec<ConfigError>) {
        let mut needs = |origin: &Origin, key: &str, what: String| {
            wrong.push(origin.error(key, format!("{what}: give {}", origin.setting("data", "DIR"))));
        };
        for cache in &self.cache {
            needs(&cache.origin, "cache", format!("'{}' needs a data folder for its files", cache.name));
        }
        for upstream in &self.upstreams.upstream {
            needs(&upstream.origin, "upstream", format!("'{}' needs a data folder for its files", upstream.url));
        }
        for oidc in &self.oidc {
            needs(&oidc.origin, "oidc", format!("'{}' needs a data folder for the tokens", oidc.issuer));
        }
        for At { origin, .. } in &self.managed_sign_keys {
            needs(origin, "managed-sign-keys", "caches that the API creates need a data folder".to_owned());
        }
        for destination in &self.destination {
            needs(
                &destination.origin,
                "destination",
                format!("'{}' needs a data folder to copy from", destination.name),
            );
        }
        if let Some(public) = self.public.as_ref().filter(|public| !public.value) {
            needs(&public.origin, "public = false", "needs a data folder for the tokens that readers need".to_owned());
        }
        if let Some(database) = &self.database {
            needs(&database.origin, "database", "needs the data folder whose index it has".to_owned());
        }
    }
}
