//! What `narval serve` makes of its configuration: the keys are read, and each cache has its own settings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use narval_cache::upstream::{Deadline, NamePattern, UpstreamOptions};
use narval_http::Limits;
use narval_http::tls::TlsConfig;
use narval_keep::{CacheName, CacheSettings, Destination, Redirect, StorageLocation};
use narval_nix::SecretKey;
use narval_serve::{DeltaMode, NarCacheConfig, SMALL_UPLOAD_BYTES};

use super::args::Args;
use crate::args::secret_key::read_secret_key;
use crate::config::location::place_of;
use crate::config::{At, Cache, ConfigErrors, Loaded, Oidc, ReadKey, ServeConfig, Upstreams};
use crate::ui::failure::Failure;

/// The effective settings.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The options over the file over the defaults.
    pub(crate) config: ServeConfig,
    /// The keys that have a value.
    pub(crate) keys: Vec<ReadKey>,
    /// Limits and timeouts.
    pub(crate) limits: Limits,
    /// HTTPS.
    pub(crate) tls: Option<TlsConfig>,
    /// Settings shared by the caches.
    pub(crate) wide: ServerWide,
    /// The caches; the first is the one at `/`.
    pub(crate) caches: Vec<CacheConfig>,
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
    /// The platforms whose jobs get tokens.
    pub(crate) oidc: Vec<Oidc>,
}

/// The settings of one cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CacheConfig {
    /// Its section, with what it has from the top of the file.
    pub(crate) cache: Cache,
    /// How long clients wait for its upstreams.
    pub(crate) deadline: Deadline,
    /// Names that none of them is asked for.
    pub(crate) skip: Vec<NamePattern>,
    sign_keys: Vec<SignKey>,
}

/// A key to sign with. A command that was read again is another one: what it does may have changed, with the same public key.
#[derive(Clone, Debug)]
struct SignKey(SecretKey);

impl PartialEq for SignKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_same(&other.0)
    }
}

impl Eq for SignKey {}

impl Settings {
    /// Reads the configuration file, if there is one, and the keys, and determines the settings.
    ///
    /// # Errors
    /// An option or the file has errors, or a key cannot be read.
    pub(crate) fn read(args: &Args) -> Result<Self, Failure> {
        let loaded = ServeConfig::read(&args.settings, args.config.as_deref()).map_err(Failure::usage)?;
        let Loaded { settings: config, keys } = loaded;
        let wrong = config.check(false);
        if !wrong.is_empty() {
            return Err(Failure::usage(ConfigErrors(wrong)));
        }
        let mut limits = config.limits.of_engine();
        if config.data.is_some() {
            // Larger bodies are read piece by piece, on separate threads; the cache limits the size of a NAR.
            limits.body_buffer_max = SMALL_UPLOAD_BYTES;
            limits.body_max = u64::MAX;
        }
        let wide = ServerWide {
            store: config.store.clone(),
            nar_cache: config.nar_cache.config().map_err(Failure::usage)?,
            verify_nars: config.verify_nars,
            web: config.web,
            narinfo_memory: config.limits.narinfo_memory,
            redirect: config.redirect.value,
            oidc: config.oidc.clone(),
        };
        let to_serve = |cache| CacheConfig::new(cache, &config.upstreams);
        let caches = config.caches().into_iter().map(to_serve).collect::<Result<_, _>>()?;
        let tls = config.tls.config(Vec::new()).map_err(Failure::usage)?;
        Ok(Self { config, keys, limits, tls, wide, caches })
    }

    /// Where the caches that accept uploads are.
    ///
    /// # Errors
    /// The address of a bucket is wrong, or it has no folder on this machine.
    pub(crate) fn place(&self) -> Result<Option<StorageLocation>, Failure> {
        let place = |data: &PathBuf| place_of(data, self.config.cache_dir.clone(), Some(self.config.cache_size));
        self.config.data.as_ref().map(place).transpose()
    }
}

impl Settings {
    /// Where jobs may copy caches to.
    ///
    /// # Errors
    /// One of them is not complete.
    pub(crate) fn destinations(&self) -> Result<BTreeMap<String, Destination>, Failure> {
        self.config.destination.iter().map(|to| to.resolved().map_err(Failure::usage)).collect()
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

impl CacheConfig {
    fn new(cache: Cache, upstreams: &Upstreams) -> Result<Self, Failure> {
        let read = |at: &At<PathBuf>| {
            let key = read_secret_key(&at.value);
            key.map(SignKey).map_err(|failure| Failure::usage(at.origin.error("sign-keys", failure)))
        };
        let sign_keys = cache.sign_keys.iter().flatten().map(read).collect::<Result<_, _>>()?;
        Ok(Self { cache, deadline: upstreams.deadline(), skip: upstreams.upstream_skip.clone(), sign_keys })
    }

    /// A cache that the file does not have: all its settings are in the data folder, but for keys that the file has for all such caches.
    pub(super) fn managed(name: &CacheName, config: &ServeConfig) -> Result<Self, Failure> {
        let cache =
            Cache::named(name).ok_or_else(|| Failure::runtime(format!("the cache '{name}' cannot be served")))?;
        Self::new(Cache { sign_keys: Some(config.managed_sign_keys.clone()), ..cache }, &config.upstreams)
    }

    /// With keys of the index.
    pub(super) fn with_keys(mut self, keys: Option<&Vec<SecretKey>>) -> Self {
        self.sign_keys.extend(keys.into_iter().flatten().cloned().map(SignKey));
        self
    }

    /// The keys that it signs with.
    pub(crate) fn secret_keys(&self) -> impl Iterator<Item = &SecretKey> {
        self.sign_keys.iter().map(|key| &key.0)
    }

    /// The options for opening its upstreams, and the limit of their files in bytes.
    pub(crate) fn upstream_options(&self) -> Result<(Vec<UpstreamOptions>, u64), Failure> {
        let options = self.cache.upstream.iter().map(|upstream| {
            let mut options = upstream.options().map_err(Failure::usage)?;
            options.skip.extend_from_slice(&self.skip);
            Ok::<_, Failure>(options)
        });
        Ok((options.collect::<Result<_, _>>()?, self.cache.upstream_size.unwrap_or(u64::MAX)))
    }

    /// Whether a service with these settings answers like one with `other`.
    pub(crate) fn answers_as(&self, other: &Self) -> bool {
        fn answers(Cache { priority, want_mass_query, description, .. }: &Cache) -> impl PartialEq {
            (*priority, *want_mass_query, description.clone())
        }
        self.sign_keys == other.sign_keys && answers(&self.cache) == answers(&other.cache)
    }

    /// The settings of the cache in the data folder, overridden by these.
    ///
    /// # Errors
    /// The cache's paths have another store directory.
    pub(crate) fn settings(&self, before: &CacheSettings) -> Result<CacheSettings, Failure> {
        let Cache { name, store_dir, .. } = &self.cache;
        if let Some(at) = store_dir.as_ref().filter(|at| at.value != before.store_dir) {
            let (there, given) = (&before.store_dir, &at.value);
            let why =
                format!("the paths of the cache '{name}' are in '{there}', not in '{given}': give it another name");
            return Err(Failure::usage(at.origin.error("cache.store-dir", why)));
        }
        let public_keys = self.secret_keys().map(SecretKey::public_key).collect();
        let mut settings = CacheSettings { public_keys, ..before.clone() };
        self.cache.apply(&mut settings);
        Ok(settings)
    }
}
