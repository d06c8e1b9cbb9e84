//! The settings of `narval serve`: the command line over the configuration file over the defaults.

use std::path::PathBuf;
use std::time::Duration;

use narval_client::{Scheme, Url};
use narval_codec::decode::{DECODE_MEMORY, DECODE_MEMORY_MIN};
use narval_http::Limits;
use narval_http::tls::TlsConfig;
use narval_keep::{CacheName, CacheSettings, Database, Place, Redirect};
use narval_nix::{SecretKey, StoreDir};
use narval_serve::{Config, DeltaMode, Face, NarCacheConfig, SMALL_UPLOAD_BYTES};

use super::Args;
use crate::Failure;
use crate::args::data::{parse_database, place_of};
use crate::args::proxies::ProxySettings;
use crate::args::secret_key::read_secret_key;
use crate::args::upstream::UpstreamSettings;
use crate::config::{At, CacheSection, ConfigErrors, NarCacheSection, OidcSection, ServeConfig, saturated};
use crate::values::delta_choice::DeltaChoice;
use crate::values::listen::Listen;
use crate::values::log_form::LogForm;

/// The default size of the disk cache of a bucket, in bytes.
const CACHE_SIZE_DEFAULT: u64 = 20 << 30;

/// The default time that a client may read nothing.
const STALL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(3600);

/// The effective settings.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Where to listen; if empty, on the inherited sockets, else on the default port.
    pub(crate) listen: Vec<Listen>,
    /// Limits and timeouts.
    pub(crate) limits: Limits,
    /// HTTPS.
    pub(crate) tls: Option<TlsConfig>,
    /// The format and the file of the access log.
    pub(crate) access_log: (LogForm, Option<PathBuf>),
    pub(crate) trust_request_ids: bool,
    pub(crate) proxies: ProxySettings,
    /// The data folder of the caches that accept uploads.
    pub(crate) data: Option<PathBuf>,
    /// With a bucket: the folder on this machine.
    pub(crate) cache_dir: Option<PathBuf>,
    /// With a bucket: the size of the disk cache, in bytes.
    pub(crate) cache_size: u64,
    /// For the windows of uploads' decoders, in bytes.
    pub(crate) decode_memory: u64,
    /// Whether other users of the machine may read the data folder.
    pub(crate) share_data: bool,
    /// With a bucket and a database: where other nodes reach this one.
    pub(crate) peer_url: Option<Url>,
    /// The database with its index, if that is not in the folder.
    pub(crate) database: Option<Database>,
    /// Settings shared by the caches.
    pub(crate) wide: ServerWide,
    /// The caches; the first is the one at `/`.
    pub(crate) caches: Vec<CacheToServe>,
}

/// Settings shared by the services of all caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerWide {
    /// The live store, which is served at `/`.
    pub(crate) store: Option<String>,
    pub(crate) nar_cache: Option<NarCacheConfig>,
    pub(crate) verify_nars: bool,
    /// Whether browsers get a page.
    pub(crate) web: bool,
    /// Per cache.
    pub(crate) narinfo_memory: u64,
    /// Whether clients get large NARs from the object store itself.
    pub(crate) redirect: Redirect,
    /// The file name, and the platforms in the file.
    pub(crate) oidc: (String, Vec<OidcSection>),
}

/// The settings of one cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheToServe {
    pub(crate) name: CacheName,
    pub(crate) hosts: Vec<String>,
    pub(crate) host_only: bool,
    sign_keys: Vec<SignKey>,
    pub(crate) priority: u32,
    /// Whether reading needs no token; `None` keeps the setting in the data folder.
    public: Option<bool>,
    /// The caches to query for missing paths.
    pub(crate) upstreams: UpstreamSettings,
    /// The file name, and the cache's section in the file.
    section: Option<(String, CacheSection)>,
}

/// A key to sign with. Two are equal if their public keys are.
#[derive(Clone, Debug)]
struct SignKey(SecretKey);

impl PartialEq for SignKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.public_key() == other.0.public_key()
    }
}

impl Eq for SignKey {}

impl Settings {
    /// Reads the configuration file, if there is one, and the keys, and determines the settings.
    ///
    /// # Errors
    /// The file has errors, or a key cannot be read.
    pub(crate) fn read(args: &Args) -> Result<Self, Failure> {
        let file = match &args.config {
            Some(path) => ServeConfig::load(path).map_err(Failure::usage)?,
            None => ServeConfig::default(),
        };
        Self::decide(args, &file)
    }

    fn decide(args: &Args, file: &ServeConfig) -> Result<Self, Failure> {
        let mut limits = Limits { write_stall_timeout: STALL_TIMEOUT_DEFAULT, ..Limits::default() };
        file.limits.apply(&mut limits);
        limits.output_memory_max = args.output_memory.map_or(limits.output_memory_max, saturated);
        if let Some(seconds) = args.stall_timeout {
            limits.write_stall_timeout = Duration::from_secs(seconds);
        }
        let listen = if args.listen.is_empty() {
            file.listen.iter().map(|at| at.value.clone()).collect()
        } else {
            args.listen.clone()
        };
        let defaults = Config::new(Face::Narval);
        let file_name = args.config.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
        let wide = ServerWide {
            store: args.store.clone().or_else(|| Some(file.store.as_ref()?.value.clone())),
            nar_cache: nar_cache(args, file)?,
            verify_nars: args.verify_nars || file.verify_nars.unwrap_or(defaults.verify_nars),
            web: !args.no_web && file.web.unwrap_or(defaults.page),
            narinfo_memory: file.limits.narinfo_memory.unwrap_or(defaults.narinfo_memo_bytes),
            redirect: args.redirect.or(file.redirect).unwrap_or_default().into(),
            oidc: (file_name.clone(), file.oidc.clone()),
        };
        let data = args.data.clone().or_else(|| file.data.clone());
        let database = args.database.as_deref().map(parse_database).transpose()?;
        if database.is_some() && data.is_none() {
            return Err(Failure::usage("option --database: needs --data, whose index it has"));
        }
        let database = database.or_else(|| Some(file.database.as_ref()?.value.clone()));
        let cache_dir = args.cache_dir.clone().or_else(|| file.cache_dir.clone());
        let cache_size = args.cache_size.or(file.cache_size).unwrap_or(CACHE_SIZE_DEFAULT);
        let decode_memory = file.limits.decode_memory.unwrap_or(DECODE_MEMORY);
        if decode_memory < DECODE_MEMORY_MIN {
            let least = DECODE_MEMORY_MIN >> 20;
            return Err(Failure::usage(format!(
                "{file_name}: limits.decode-memory: give at least \"{least}M\", so that the largest window fits"
            )));
        }
        let caches = caches(args, file, &file_name)?;
        if data.is_some() {
            // Larger bodies are read piece by piece, on separate threads; the cache limits the size of a NAR.
            limits.body_buffer_max = SMALL_UPLOAD_BYTES;
            limits.body_max = u64::MAX;
        } else {
            let wrong = file.needs_data(&file_name);
            if !wrong.is_empty() {
                return Err(Failure::usage(ConfigErrors(wrong)));
            }
            if caches.iter().any(|cache| !cache.upstreams.is_empty()) {
                return Err(Failure::usage("option --upstream: needs --data, where its files are stored"));
            }
        }
        let settings = Self {
            listen,
            limits,
            tls: args.tls.config_over(&file.tls, Vec::new())?,
            access_log: args.access_log.over(&file.access_log),
            trust_request_ids: args.access_log.trusts_request_ids(&file.access_log),
            proxies: proxies(args, file)?,
            data,
            cache_dir,
            cache_size,
            decode_memory,
            share_data: file.share_data == Some(true),
            peer_url: args.peer_url.clone().or_else(|| Some(file.peer_url.as_ref()?.value.clone())),
            database,
            wide,
            caches,
        };
        if settings.wide.redirect != Redirect::Off && !settings.is_in_bucket() {
            return Err(Failure::usage("option --redirect: needs --data in a bucket (s3://…)"));
        }
        if let Some(url) = &settings.peer_url {
            if !settings.is_in_bucket() || settings.database.is_none() {
                return Err(Failure::usage("option --peer-url: needs --data in a bucket (s3://…), and --database"));
            }
            if !matches!(url.scheme(), Scheme::Http | Scheme::Https) || url.userinfo().is_some() {
                return Err(Failure::usage(
                    "option --peer-url: give http://HOST:PORT or https://HOST:PORT, without a password",
                ));
            }
        }
        Ok(settings)
    }

    /// Where the caches that accept uploads are.
    ///
    /// # Errors
    /// The address of a bucket is wrong, or it has no folder on this machine.
    pub(crate) fn place(&self) -> Result<Option<Place>, Failure> {
        let place = |data: &PathBuf| place_of(data, self.cache_dir.clone(), Some(self.cache_size));
        self.data.as_ref().map(place).transpose()
    }

    /// Whether they are in a bucket.
    pub(crate) fn is_in_bucket(&self) -> bool {
        self.data.as_ref().and_then(|data| data.to_str()).is_some_and(|data| Place::bucket_address(data).is_some())
    }

    /// The keys of the file that differ from `running`, but only take effect after a restart.
    pub(crate) fn needs_restart(&self, running: &Self) -> Vec<&'static str> {
        let (new, old) = (&self.limits, &running.limits);
        let limits = (new.connections_max, new.connections_per_ip_max, new.queue_max, new.backlog)
            != (old.connections_max, old.connections_per_ip_max, old.queue_max, old.backlog)
            || (new.head_timeout, new.keep_alive_timeout, new.write_stall_timeout)
                != (old.head_timeout, old.keep_alive_timeout, old.write_stall_timeout)
            || new.output_memory_max != old.output_memory_max;
        let differ = [
            ("listen", self.listen != running.listen),
            ("data", self.data != running.data),
            ("database", self.database != running.database),
            ("cache-dir", self.cache_dir != running.cache_dir),
            ("cache-size", self.cache_size != running.cache_size),
            ("peer-url", self.peer_url != running.peer_url),
            ("limits", limits),
            ("tls (on or off)", self.tls.is_some() != running.tls.is_some()),
            ("access-log.trust-request-ids", self.trust_request_ids != running.trust_request_ids),
            ("trusted-proxies", self.proxies.trusted != running.proxies.trusted),
            ("proxy-protocol", self.proxies.proxy_protocol != running.proxies.proxy_protocol),
            ("access-log.file (on or off)", self.access_log.1.is_some() != running.access_log.1.is_some()),
        ];
        differ.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
    }
}

impl ServerWide {
    /// The part of it that affects a cache: the live store is only served at `/`, and its NARs are compressed. Deltas are made
    /// for every cache.
    pub(crate) fn of(&self, cache: &CacheName) -> Self {
        if *cache == CacheName::default() {
            return self.clone();
        }
        let nar_cache = self.nar_cache.clone().filter(|cache| cache.deltas != DeltaMode::Off);
        Self { store: None, nar_cache, verify_nars: false, ..self.clone() }
    }
}

fn proxies(args: &Args, file: &ServeConfig) -> Result<ProxySettings, Failure> {
    let trusted = file.trusted_proxies.iter().map(|at| at.value).collect();
    let proxies = args.proxies.over(&ProxySettings { trusted, proxy_protocol: file.proxy_protocol == Some(true) });
    if proxies.proxy_protocol && proxies.trusted.is_empty() {
        return Err(Failure::usage("key proxy-protocol: needs trusted-proxies, which send it"));
    }
    Ok(proxies)
}

fn nar_cache(args: &Args, file: &ServeConfig) -> Result<Option<NarCacheConfig>, Failure> {
    let section = NarCacheSection { deltas: args.deltas.or(file.nar_cache.deltas), ..file.nar_cache.clone() };
    let cache = args.nar_cache.config_over(&section);
    match args.deltas {
        Some(asked) if asked != DeltaChoice::Off && cache.is_none() => {
            Err(Failure::usage("option --deltas: needs a folder for compressed NARs: give --nar-cache DIR"))
        }
        _ => Ok(cache),
    }
}

/// The caches to serve. Top-level keys of the file and options are for the one at `/`; the others have sections.
fn caches(args: &Args, file: &ServeConfig, file_name: &str) -> Result<Vec<CacheToServe>, Failure> {
    let defaults = Config::new(Face::Narval);
    let default_name = CacheName::default();
    let section = file.caches.iter().find(|section| section.name == default_name);
    let own_upstreams = section.map(|section| section.upstreams.as_slice()).unwrap_or_default();
    let upstreams: Vec<_> = file.upstreams.iter().chain(own_upstreams).cloned().collect();
    let size = section.and_then(|section| section.upstream_size).or(file.upstream_size);
    let keys_of_file = section.and_then(|section| section.sign_keys.as_ref()).unwrap_or(&file.sign_keys);
    let public = |section: Option<&CacheSection>| match args.private {
        true => Some(false),
        false => section.and_then(|section| section.public).or(file.public.as_ref().map(|at| at.value)),
    };
    let priority = |section: Option<&CacheSection>| section.and_then(|section| section.priority).or(file.priority);
    let place = |section: Option<&CacheSection>| section.map(|section| (file_name.to_owned(), section.clone()));
    let mut caches = vec![CacheToServe {
        name: default_name.clone(),
        hosts: section.map(hosts).unwrap_or_default(),
        host_only: false,
        sign_keys: match args.sign_key.as_slice() {
            [] => sign_keys(file_name, keys_of_file)?,
            paths => paths.iter().map(|path| read_secret_key(path).map(SignKey)).collect::<Result<_, _>>()?,
        },
        priority: args.priority.or(priority(section)).unwrap_or(defaults.priority),
        public: public(section),
        upstreams: args.upstream.over(&upstreams, file_name, size)?,
        section: place(section),
    }];
    for section in file.caches.iter().filter(|section| section.name != default_name) {
        let size = section.upstream_size.or(file.upstream_size);
        caches.push(CacheToServe {
            name: section.name.clone(),
            hosts: hosts(section),
            host_only: section.host_only,
            // The keys of the cache at `/` only sign its own uploads.
            sign_keys: sign_keys(file_name, section.sign_keys.as_deref().unwrap_or_default())?,
            priority: priority(Some(section)).unwrap_or(defaults.priority),
            public: public(Some(section)),
            upstreams: UpstreamSettings::of_file(&section.upstreams, file_name, size).map_err(Failure::usage)?,
            section: place(Some(section)),
        });
    }
    Ok(caches)
}

fn hosts(section: &CacheSection) -> Vec<String> {
    section.hosts.iter().map(|at| at.value.clone()).collect()
}

fn sign_keys(file_name: &str, keys: &[At<PathBuf>]) -> Result<Vec<SignKey>, Failure> {
    let read = |at: &At<PathBuf>| {
        let key = read_secret_key(&at.value);
        key.map(SignKey).map_err(|failure| Failure::usage(format!("{file_name}:{}: sign-keys: {failure}", at.line)))
    };
    keys.iter().map(read).collect()
}

impl CacheToServe {
    /// The keys that it signs with.
    pub(crate) fn secret_keys(&self) -> impl Iterator<Item = &SecretKey> {
        self.sign_keys.iter().map(|key| &key.0)
    }

    pub(crate) fn want_mass_query(&self) -> bool {
        self.section.as_ref().and_then(|(_, section)| section.want_mass_query).unwrap_or(true)
    }

    /// What the page says about it.
    pub(crate) fn description(&self) -> Option<&str> {
        self.section.as_ref().and_then(|(_, section)| section.description.as_deref())
    }

    /// Its store directory in the file.
    pub(crate) fn store_dir(&self) -> Option<&StoreDir> {
        self.section.as_ref().and_then(|(_, section)| section.store_dir.as_ref())
    }

    /// Whether a service with these settings answers like one with `other`.
    pub(crate) fn answers_as(&self, other: &Self) -> bool {
        let answers = |told: &Self| (told.priority, told.want_mass_query(), told.description().map(str::to_owned));
        self.sign_keys == other.sign_keys && answers(self) == answers(other)
    }

    /// The settings of the cache in the data folder, overridden by these.
    ///
    /// # Errors
    /// The cache's paths have another store directory.
    pub(crate) fn settings(&self, before: &CacheSettings) -> Result<CacheSettings, Failure> {
        let mut settings = CacheSettings {
            priority: self.priority,
            public: self.public.unwrap_or(before.public),
            public_keys: self.secret_keys().map(SecretKey::public_key).collect(),
            ..before.clone()
        };
        if let Some((file, section)) = &self.section {
            if let Some(store_dir) = section.store_dir.as_ref().filter(|dir| **dir != before.store_dir) {
                return Err(Failure::usage(format!(
                    "{file}:{}: cache.store-dir: the paths of the cache '{}' are in '{}', not in '{store_dir}': give it another name",
                    section.line, self.name, before.store_dir
                )));
            }
            section.apply(&mut settings);
        }
        Ok(settings)
    }
}
