//! The caches of a server: their settings, and the services that answer for them.

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use narval_cache::upstream::{Deadline, UpstreamOptions, Upstreams, UpstreamsOptions, Waiting};
use narval_keep::{Cache, CacheName, CacheSettings, Data, DataError, DataOptions};
use narval_nix::{SecretKey, StoreDir};
use narval_serve::{
    CacheRouter, Config, Dialect, OidcExchange, ServerState, Service, Sources, WritableCache, is_reserved_name,
};
use narval_store::Store;

use super::settings::{CacheConfig, ServerWide, Settings};
use crate::config::Oidc;
use crate::server;
use crate::ui::failure::Failure;

/// How often the retention rules are applied.
const COLLECT_EVERY: std::time::Duration = std::time::Duration::from_secs(60 * 60);

/// The most entries of a data folder whose modes are looked at.
const ENTRIES_MAX: usize = 1024;

/// What the data folder says about what is served.
#[derive(Default)]
pub(super) struct Managed {
    /// Caches that were created by the API for administration.
    caches: Vec<(CacheName, Arc<CacheSettings>)>,
    /// The keys that caches sign with.
    keys: HashMap<CacheName, Vec<SecretKey>>,
}

impl PartialEq for Managed {
    fn eq(&self, other: &Self) -> bool {
        let names = |keys: &HashMap<CacheName, Vec<SecretKey>>| -> BTreeMap<CacheName, Vec<String>> {
            keys.iter()
                .map(|(cache, keys)| (cache.clone(), keys.iter().map(|key| key.public_key().to_string()).collect()))
                .collect()
        };
        self.caches == other.caches && names(&self.keys) == names(&other.keys)
    }
}

/// Resources that are opened once, and shared by all services across reloads.
pub(crate) struct Opened {
    pub(crate) state: ServerState,
    pub(super) data: Option<Data>,
    /// The upstreams of all caches that ever had some: their folders stay locked.
    upstreams: HashMap<CacheName, (Upstreams, StoreDir)>,
    waiting: Waiting,
}

/// The services of all caches, and their settings.
pub(crate) struct Services {
    wide: ServerWide,
    exchange: Option<OidcExchange>,
    served: Vec<Served>,
}

/// A cache that is served.
struct Served {
    config: CacheConfig,
    /// The effective value, with the data folder's settings.
    public: bool,
    service: Service,
    /// Whether the service was created for these settings, not reused.
    is_new: bool,
    /// Settings to write to the data folder when the service takes effect: the old ones and the new ones.
    settings: Option<(Cache, Arc<CacheSettings>, CacheSettings)>,
    /// The same for the upstreams.
    upstreams: Option<(Upstreams, Vec<UpstreamOptions>, Deadline, u64)>,
}

impl Opened {
    /// Opens the data folder, if there is one.
    ///
    /// # Errors
    /// It cannot be used.
    pub(crate) fn new(settings: &Settings, unsafe_no_verify: bool) -> Result<Self, Failure> {
        if unsafe_no_verify {
            tracing::warn!("uploads are not verified: only for measurements");
        }
        let options = DataOptions {
            collect_every: Some(COLLECT_EVERY),
            database: settings.config.database.as_ref().map(|at| at.value.clone()),
            peer_url: settings.config.peer_url.as_ref().map(|at| at.value.clone()),
            decode_memory: Some(settings.config.limits.decode_memory),
            unsafe_no_verify,
            ..DataOptions::default()
        };
        let data = settings.place()?.map(|place| Data::open(place, options).map_err(failed)).transpose()?;
        if let Some(data) = data.as_ref().filter(|_| !settings.config.share_data) {
            warn_if_shared(data.folder());
        }
        let opened = Self { state: ServerState::new(), data, upstreams: HashMap::new(), waiting: Waiting::default() };
        opened.set_offers(settings)?;
        Ok(opened)
    }

    /// The caches of the data folder that are served without being in the file, and the keys of all, as any process has changed them.
    ///
    /// # Errors
    /// The index cannot be read.
    pub(super) fn managed(&self) -> Result<Managed, Failure> {
        let Some(data) = &self.data else { return Ok(Managed::default()) };
        let caches = data.refreshed().map_err(failed)?;
        let managed = caches.iter().map(|cache| (cache.name().clone(), cache.settings()));
        let caches = managed.filter(|(name, settings)| settings.managed && !is_reserved_name(name.as_str())).collect();
        Ok(Managed { caches, keys: data.signing_keys().map_err(Failure::runtime)? })
    }

    /// Changes what requests may have done: where jobs may copy caches to, and whether caches get keys in the index.
    ///
    /// # Errors
    /// A destination is not complete.
    pub(super) fn set_offers(&self, settings: &Settings) -> Result<(), Failure> {
        if let Some(data) = &self.data {
            data.set_destinations(settings.destinations()?);
            data.set_makes_keys(settings.config.managed_sign_keys.is_empty());
        }
        Ok(())
    }

    /// Changes the memory for the windows of uploads' decoders.
    pub(crate) fn set_decode_memory(&self, bytes: u64) {
        if let Some(data) = &self.data {
            data.window_memory().set_total(bytes);
        }
    }

    /// The upstreams of the cache at `/`, and the store directory of its paths.
    #[cfg(feature = "neighbours")]
    pub(super) fn upstreams_at_root(&self) -> Option<(Upstreams, StoreDir)> {
        self.upstreams.get(&CacheName::default()).cloned()
    }

    /// The upstreams of a cache: those that are open already, or opened now.
    fn upstreams(&mut self, config: &CacheConfig, store_dir: &StoreDir) -> Result<Option<Upstreams>, Failure> {
        let Some(data) = self.data.as_ref().filter(|_| !config.cache.upstream.is_empty()) else { return Ok(None) };
        if let Some((open, _)) = self.upstreams.get(&config.cache.name) {
            return Ok(Some(open.clone()));
        }
        let folder = data.folder().join("upstreams").join(config.cache.name.as_str());
        let (upstreams, bytes_max) = config.upstream_options()?;
        let opened = Upstreams::open(UpstreamsOptions {
            folder,
            bytes_max,
            upstreams,
            deadline: config.deadline,
            store_dir: store_dir.clone(),
            waiting: self.waiting.clone(),
        });
        let opened = opened.map_err(|error| Failure::usage(format!("option --upstream: {error}")))?;
        self.upstreams.insert(config.cache.name.clone(), (opened.clone(), store_dir.clone()));
        Ok(Some(opened))
    }
}

/// Says so if other users of this machine can read what is in the caches, and the hashes of tokens: the folder, or what is in it.
fn warn_if_shared(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mode = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.mode() & 0o777);
    let wide = std::iter::once(folder.to_owned()).chain(entries.take(ENTRIES_MAX)).find(|path| mode(path) & 0o077 != 0);
    if let Some(wide) = wide {
        let (wide, mode, folder) = (wide.display(), mode(&wide), folder.display());
        tracing::warn!(
            "other users may read '{wide}' (mode {mode:o}), also private caches: 'chmod -R go= {folder}', or set share-data = true"
        );
    }
}

fn failed(error: DataError) -> Failure {
    Failure::usage(format!("option --data: {error}"))
}

impl Services {
    /// Creates the services for these settings. Unchanged services of `before` are reused. Nothing takes effect yet.
    ///
    /// # Errors
    /// A store, a cache, an upstream or a NAR cache that cannot be used as configured.
    pub(crate) fn prepare(settings: &Settings, opened: &mut Opened, before: Option<&Self>) -> Result<Self, Failure> {
        let wide = settings.wide.clone();
        let exchange = match before {
            Some(before) if before.wide.oidc == wide.oidc => before.exchange.clone(),
            _ => exchange(&wide, opened.data.as_ref())?,
        };
        let mut served = Vec::new();
        let followed = opened.managed()?;
        let managed = followed.caches.into_iter().map(|(name, _)| name);
        let managed = managed.filter(|name| settings.caches.iter().all(|config| config.cache.name != *name));
        let managed = managed.map(|name| CacheConfig::managed(&name, &settings.config));
        for config in settings.caches.iter().cloned().map(Ok).chain(managed) {
            let config: CacheConfig = config?;
            let keys = followed.keys.get(&config.cache.name);
            let config = &config.with_keys(keys);
            let last = before.and_then(|before| {
                let served = before.served.iter().find(|served| served.config.cache.name == config.cache.name)?;
                Some((served, before.wide.of(&config.cache.name) == wide.of(&config.cache.name)))
            });
            served.push(Served::prepare(config, &wide, exchange.as_ref(), opened, last)?);
        }
        Ok(Self { wide, exchange, served })
    }

    /// Applies the settings for signing and retention, and returns the services to answer from now on.
    ///
    /// # Errors
    /// The settings of a cache cannot be written. Those of the others are unchanged.
    pub(crate) fn take_effect(&mut self) -> Result<CacheRouter, Failure> {
        for (at, served) in self.served.iter().enumerate() {
            let Some((cache, before, settings)) = &served.settings else { continue };
            if settings == &**before {
                continue;
            }
            if let Err(error) = cache.set_settings(settings) {
                let done = self.served.iter().take(at).filter_map(|served| served.settings.as_ref());
                for (cache, before, _) in done {
                    if let Err(error) = cache.set_settings(before) {
                        tracing::error!("cache '{}': {error}", cache.name());
                    }
                }
                return Err(failed(error));
            }
        }
        for served in &mut self.served {
            if let Some((cache, _, settings)) = &served.settings
                && let Some(warning) = settings.warning()
            {
                tracing::warn!("cache '{}': {warning}", cache.name());
            }
            if let Some((upstreams, options, deadline, size)) = served.upstreams.take() {
                upstreams.replace(options, deadline, size);
            }
            if served.is_new {
                served.service.take_effect();
            }
        }
        self.caches()
    }

    fn caches(&self) -> Result<CacheRouter, Failure> {
        let mut served = self.served.iter();
        // The first is the one at `/`.
        let root = served.next().ok_or_else(|| Failure::usage("there is no cache to serve"))?;
        let at_hosts = |caches: CacheRouter, served: &Served| {
            served
                .config
                .cache
                .host
                .iter()
                .fold(caches, |caches, host| caches.at_host(&host.value, served.service.clone()))
        };
        let mut caches = at_hosts(CacheRouter::new(root.service.clone()), root);
        for served in served {
            if !served.config.cache.host_only {
                caches = caches.at_path(&served.config.cache.name, served.service.clone());
            }
            caches = at_hosts(caches, served);
        }
        Ok(caches)
    }

    /// The number of files that the services keep open, besides those being sent.
    pub(crate) fn kept_files_max(&self) -> usize {
        self.served.iter().map(|served| served.service.kept_files_max()).sum()
    }

    /// Whether any cache has upstreams.
    pub(crate) fn have_upstreams(&self) -> bool {
        self.served.iter().any(|served| !served.config.cache.upstream.is_empty())
    }

    /// The caches added and removed since `before`, for the log.
    pub(crate) fn differences(&self, before: &Self) -> Vec<String> {
        let has =
            |services: &Self, name: &CacheName| services.served.iter().any(|served| served.config.cache.name == *name);
        let missing = |from: &Self, to: &Self, word: &str| -> Vec<String> {
            let names = from.served.iter().map(|served| &served.config.cache.name).filter(|name| !has(to, name));
            names.map(|name| format!("cache '{name}' {word}")).collect()
        };
        [missing(self, before, "added"), missing(before, self, "no longer served")].concat()
    }
}

/// The token exchange for the platforms in the file, if there are any.
fn exchange(wide: &ServerWide, data: Option<&Data>) -> Result<Option<OidcExchange>, Failure> {
    let issuers = wide.oidc.iter().map(Oidc::issuer).collect::<Result<Vec<_>, _>>().map_err(Failure::usage)?;
    let data = data.filter(|_| !issuers.is_empty());
    let sign_in = wide.oidc.iter().find_map(Oidc::sign_in);
    Ok(data.map(|data| OidcExchange::new(issuers, sign_in, data.clone())))
}

impl Served {
    /// `last` is the service of the cache so far, and whether the shared settings are unchanged.
    fn prepare(
        config: &CacheConfig,
        wide: &ServerWide,
        exchange: Option<&OidcExchange>,
        opened: &mut Opened,
        last: Option<(&Self, bool)>,
    ) -> Result<Self, Failure> {
        let (name, store_dir) = (&config.cache.name, config.cache.store_dir.as_ref().map(|at| &at.value));
        let data = opened.data.clone();
        // The live store is served at `/`; with a data folder, only if it is requested.
        let wants_store = config.cache.is_root() && (wide.store.is_some() || data.is_none());
        let open_store = || server::open_store(wide.store.as_deref());
        let Some(data) = data else {
            if let Some((last, true)) = last.filter(|(last, _)| last.config == *config) {
                return Ok(last.again(config, None, None));
            }
            let store = Some(open_store()?);
            let sources = Sources { store, ..Sources::default() };
            let service = Service::of(service_config(config, wide), sources, &opened.state).map_err(Failure::usage)?;
            return Ok(Self {
                config: config.clone(),
                public: true,
                service,
                is_new: true,
                settings: None,
                upstreams: None,
            });
        };
        let mut store = None;
        let mut cache = data.cache(name).map_err(failed)?;
        if cache.is_none() && wants_store && store_dir.is_none() {
            store = Some(open_store()?);
        }
        let cache = match cache.take() {
            Some(cache) => cache,
            None => {
                let live = store.as_ref().map(|store: &Store| store.store_dir().clone());
                let store_dir = store_dir.cloned().or(live).unwrap_or_default();
                let settings = CacheSettings { store_dir, ..CacheSettings::default() };
                data.create_cache(name, &settings).map_err(failed)?
            }
        };
        let before = cache.settings();
        let settings = config.settings(&before)?;
        let public = settings.public;
        let upstreams = opened.upstreams(config, &settings.store_dir)?;
        let of_upstreams = |CacheConfig { cache, deadline, skip, .. }: &CacheConfig| {
            (cache.upstream.clone(), cache.upstream_size, *deadline, skip.clone())
        };
        let last_upstreams = last.as_ref().map(|(last, _)| of_upstreams(&last.config));
        let replaced = match &upstreams {
            Some(upstreams) if last_upstreams != Some(of_upstreams(config)) => {
                let (options, size) = config.upstream_options()?;
                Some((upstreams.clone(), options, config.deadline, size))
            }
            _ => None,
        };
        let written = Some((cache.clone(), before, settings));
        if let Some((last, true)) = last.filter(|(last, _)| last.is_the_same(config, public)) {
            return Ok(last.again(config, written, replaced));
        }
        if wants_store && store.is_none() {
            store = Some(open_store()?);
        }
        let writable_cache = WritableCache { data, cache, public, oidc: exchange.cloned() };
        let sources = Sources { store, writable: Some(writable_cache), upstreams };
        let service = Service::of(service_config(config, wide), sources, &opened.state).map_err(Failure::usage)?;
        Ok(Self { config: config.clone(), public, service, is_new: true, settings: written, upstreams: replaced })
    }

    /// Whether the service can be reused: only settings that it does not store itself may change.
    fn is_the_same(&self, config: &CacheConfig, public: bool) -> bool {
        self.public == public
            && self.config.answers_as(config)
            && self.config.cache.upstream.is_empty() == config.cache.upstream.is_empty()
    }

    /// The same service with other settings.
    fn again(
        &self,
        config: &CacheConfig,
        settings: Option<(Cache, Arc<CacheSettings>, CacheSettings)>,
        upstreams: Option<(Upstreams, Vec<UpstreamOptions>, Deadline, u64)>,
    ) -> Self {
        let service = self.service.clone();
        Self { config: config.clone(), public: self.public, service, is_new: false, settings, upstreams }
    }
}

fn service_config(config: &CacheConfig, wide: &ServerWide) -> Config {
    let defaults = Config::new(Dialect::Narval);
    let nar_cache = wide.nar_cache.as_ref();
    Config {
        priority: config.cache.priority.unwrap_or(defaults.priority),
        want_mass_query: config.cache.want_mass_query.unwrap_or(true),
        sign_keys: config.secret_keys().cloned().collect::<Vec<SecretKey>>(),
        scratch: nar_cache.map(|cache| cache.folder.clone()).or_else(|| defaults.scratch.clone()),
        nar_cache: nar_cache.cloned(),
        verify_nars: wide.verify_nars,
        page: wide.web,
        description: config.cache.description.clone(),
        redirect: wide.redirect,
        narinfo_memo_bytes: wide.narinfo_memory,
        ..defaults
    }
}
