//! What `narval serve` is to do: the command line over the configuration file over the defaults.

use std::path::PathBuf;
use std::time::Duration;

use narval_cache::upstream::{Upstreams, UpstreamsOptions};
use narval_cache::written::{CacheName, CacheSettings, Data, DataError, DataOptions};
use narval_http::Limits;
use narval_http::tls::TlsConfig;
use narval_nix::{SecretKey, StoreDir};
use narval_serve::{
    Config, Face, NarCacheConfig, OidcExchange, SMALL_UPLOAD_BYTES, ServerState, Service, Sources, WrittenCache,
};
use narval_store::Store;

use super::{Args, oidc};
use crate::args::access_log::LogForm;
use crate::args::listen::Listen;
use crate::args::upstream::UpstreamSettings;
use crate::commands::key;
use crate::config::{At, CacheSection, OidcSection, ServeConfig};
use crate::{Failure, server};

/// How long a client may read nothing unless said otherwise.
const STALL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(3600);

/// How often what nothing keeps is forgotten.
const COLLECT_EVERY: Duration = Duration::from_secs(60 * 60);

/// Everything that was decided.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Where to listen; none: the sockets that were handed over, else the default port.
    pub(crate) listen: Vec<Listen>,
    /// What clients may cost.
    pub(crate) limits: Limits,
    /// HTTPS.
    pub(crate) tls: Option<TlsConfig>,
    /// The format and the file of the access log.
    pub(crate) access_log: (LogForm, Option<PathBuf>),
    /// The data folder of a cache that takes uploads.
    pub(crate) data: Option<PathBuf>,
    /// The caches that are asked for what is not here.
    pub(crate) upstreams: UpstreamSettings,
    /// What the service is made of.
    pub(crate) service: ServiceSettings,
}

/// What is opened once, and shared by all services that a reload makes.
pub(crate) struct Opened {
    pub(crate) data: Option<Data>,
    pub(crate) upstreams: Option<Upstreams>,
    pub(crate) state: ServerState,
}

/// What the service is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceSettings {
    store: Option<String>,
    sign_keys: Vec<SignKey>,
    priority: u32,
    nar_cache: Option<NarCacheConfig>,
    verify_nars: bool,
    narinfo_memory: u64,
    /// Whether everybody may read; `None`: as the cache in the data folder has it.
    public: Option<bool>,
    /// What the file says of the cache.
    cache: Option<CacheSection>,
    /// The file, and the platforms in it.
    oidc: (String, Vec<OidcSection>),
}

/// A key to sign with. Two are the same if their public halves are.
#[derive(Clone, Debug)]
struct SignKey(SecretKey);

impl PartialEq for SignKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.public_key() == other.0.public_key()
    }
}

impl Eq for SignKey {}

impl Settings {
    /// Reads the configuration file, if one is named, the keys, and decides.
    ///
    /// # Errors
    /// What the file says can't be, or a key can't be read.
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
        let service = ServiceSettings {
            store: args.store.clone().or_else(|| Some(file.store.as_ref()?.value.clone())),
            sign_keys: sign_keys(args, file)?,
            priority: args.priority.or(file.priority).unwrap_or(defaults.priority),
            nar_cache: args.nar_cache.config_over(&file.nar_cache),
            verify_nars: args.verify_nars || file.verify_nars.unwrap_or(defaults.verify_nars),
            narinfo_memory: file.limits.narinfo_memory.unwrap_or(defaults.narinfo_memo_bytes),
            public: if args.private { Some(false) } else { file.public },
            cache: one_cache(&file_name, file)?,
            oidc: (file_name.clone(), file.oidc.clone()),
        };
        let data = args.data.clone().or_else(|| file.data.clone());
        let upstreams = args.upstream.over(&file.upstreams, &file_name, file.upstream_size)?;
        if data.is_none() && !upstreams.is_empty() {
            return Err(Failure::usage("option --upstream: needs --data, where its answers are kept"));
        }
        if data.is_some() {
            // Larger bodies are read piece by piece, by threads of their own; how large a NAR may be, the cache decides.
            limits.body_buffer_max = SMALL_UPLOAD_BYTES;
            limits.body_max = u64::MAX;
        }
        Ok(Self {
            listen,
            limits,
            tls: args.tls.config_over(&file.tls, Vec::new())?,
            access_log: args.access_log.over(&file.access_log),
            data,
            upstreams,
            service,
        })
    }

    /// Opens the data folder, if there is one, and the upstreams.
    ///
    /// # Errors
    /// It cannot be used.
    pub(crate) fn open(&self, unsafe_no_verify: bool) -> Result<Opened, Failure> {
        let Some(path) = &self.data else {
            return Ok(Opened { data: None, upstreams: None, state: ServerState::new() });
        };
        if unsafe_no_verify {
            tracing::warn!("uploads are not verified: for measuring only");
        }
        let failed = |error: DataError| Failure::usage(format!("option --data: {error}"));
        let options = DataOptions { collect_every: Some(COLLECT_EVERY), unsafe_no_verify, ..DataOptions::default() };
        let data = Data::open(path, options).map_err(failed)?;
        let upstreams = match self.upstreams.is_empty() {
            true => None,
            false => {
                let store_dir = match data.cache(&CacheName::default()).map_err(failed)? {
                    Some(cache) => cache.settings().store_dir.clone(),
                    None => {
                        self.live_store(Some(&data))?.map_or_else(StoreDir::default, |store| store.store_dir().clone())
                    }
                };
                let options = UpstreamsOptions {
                    folder: path.join("upstream"),
                    bytes_max: self.upstreams.size,
                    upstreams: self.upstreams.options()?,
                    store_dir,
                };
                let opened = Upstreams::open(options);
                Some(opened.map_err(|error| Failure::usage(format!("option --upstream: {error}")))?)
            }
        };
        Ok(Opened { data: Some(data), upstreams, state: ServerState::new() })
    }

    /// The live store is served beside a data folder only if it is asked for.
    fn live_store(&self, data: Option<&Data>) -> Result<Option<Store>, Failure> {
        match (&self.service.store, data) {
            (None, Some(_)) => Ok(None),
            (store, _) => server::open_store(store.as_deref()).map(Some),
        }
    }

    /// The service that these settings describe, with what was opened before.
    ///
    /// # Errors
    /// A store that can't be read here, or a NAR cache that can't be used.
    pub(crate) fn service(&self, opened: &Opened) -> Result<Service, Failure> {
        let ServiceSettings { sign_keys, priority, nar_cache, verify_nars, narinfo_memory, .. } = &self.service;
        let data = opened.data.as_ref();
        let store = self.live_store(data)?;
        let written = data.map(|data| self.written(data, store.as_ref())).transpose()?;
        let defaults = Config::new(Face::Narval);
        let config = Config {
            priority: *priority,
            sign_keys: sign_keys.iter().map(|key| key.0.clone()).collect(),
            scratch: nar_cache.as_ref().map(|cache| cache.folder.clone()).or_else(|| defaults.scratch.clone()),
            nar_cache: nar_cache.clone(),
            verify_nars: *verify_nars,
            narinfo_memo_bytes: *narinfo_memory,
            ..defaults
        };
        let sources = Sources { store, written, upstreams: opened.upstreams.clone() };
        Service::of(config, sources, &opened.state).map_err(Failure::usage)
    }

    /// The cache that is served at `/`, made if there is none yet.
    fn written(&self, data: &Data, store: Option<&Store>) -> Result<WrittenCache, Failure> {
        let failed = |error: DataError| Failure::usage(format!("option --data: {error}"));
        let name = CacheName::default();
        let cache = match data.cache(&name).map_err(failed)? {
            Some(cache) => cache,
            None => {
                let store_dir = store.map_or_else(StoreDir::default, |store| store.store_dir().clone());
                let settings = CacheSettings { store_dir, ..CacheSettings::default() };
                data.create_cache(&name, &settings).map_err(failed)?
            }
        };
        let before = cache.settings();
        let public = self.service.public.unwrap_or(before.public);
        let mut settings = CacheSettings { priority: self.service.priority, public, ..(*before).clone() };
        if let Some(section) = &self.service.cache {
            section.apply(&mut settings);
        }
        if settings != *before {
            cache.set_settings(&settings).map_err(failed)?;
        }
        if let Some(warning) = settings.warning() {
            tracing::warn!("cache '{name}': {warning}");
        }
        let (file, sections) = &self.service.oidc;
        let issuers = oidc::issuers(file, sections).map_err(Failure::usage)?;
        let oidc = (!issuers.is_empty()).then(|| OidcExchange::new(issuers, data.clone()));
        Ok(WrittenCache { data: data.clone(), cache, oidc })
    }

    /// The keys of the file that take effect at the next start only, and that differ from those of `running`.
    pub(crate) fn needs_restart(&self, running: &Self) -> Vec<&'static str> {
        let (new, old) = (&self.limits, &running.limits);
        let limits = (new.connections_max, new.connections_per_ip_max, new.queue_max, new.backlog)
            != (old.connections_max, old.connections_per_ip_max, old.queue_max, old.backlog)
            || (new.head_timeout, new.keep_alive_timeout, new.write_stall_timeout)
                != (old.head_timeout, old.keep_alive_timeout, old.write_stall_timeout);
        let differ = [
            ("listen", self.listen != running.listen),
            ("data", self.data != running.data),
            ("upstream", self.upstreams != running.upstreams),
            ("limits", limits),
            ("tls (on or off)", self.tls.is_some() != running.tls.is_some()),
            ("access-log.file (on or off)", self.access_log.1.is_some() != running.access_log.1.is_some()),
        ];
        differ.into_iter().filter_map(|(key, differs)| differs.then_some(key)).collect()
    }
}

fn one_cache(file_name: &str, file: &ServeConfig) -> Result<Option<CacheSection>, Failure> {
    match file.caches.as_slice() {
        [] => Ok(None),
        [only] => Ok(Some(only.clone())),
        [_, second, ..] => {
            let (line, name) = (second.line, &second.name);
            Err(Failure::usage(format!("{file_name}:{line}: cache: there are two with the name '{name}'")))
        }
    }
}

fn sign_keys(args: &Args, file: &ServeConfig) -> Result<Vec<SignKey>, Failure> {
    if !args.sign_key.is_empty() {
        return args.sign_key.iter().map(|path| key::read_secret_key(path).map(SignKey)).collect();
    }
    let place = |at: &At<PathBuf>| match &args.config {
        Some(path) => format!("{}:{}", path.display(), at.line),
        None => String::new(),
    };
    let read = |at: &At<PathBuf>| {
        let key = key::read_secret_key(&at.value);
        key.map(SignKey).map_err(|failure| Failure::usage(format!("{}: sign-keys: {failure}", place(at))))
    };
    file.sign_keys.iter().map(read).collect()
}
