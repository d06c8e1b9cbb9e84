//! `[[cache]]`: one of the caches that accept uploads.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use narval_keep::{CacheName, CacheSettings};
use narval_nix::{PublicKey, StoreDir};

use crate::config::field::{Nested, table};
use crate::config::key::{At, Key};
use crate::config::kinds::{boolean, cache_name, choice, host, integer, parsed, path, size, text};
use crate::config::{ConfigError, Origin, Retention, ServeConfig, Upstream};
use crate::ui::output::counted;

fn public_key() -> Key<PublicKey> {
    parsed("a public key, NAME:BASE64,").nix("publicKey")
}

table! {
    /// A cache that takes uploads. Settings that the file omits stay as in the data folder.
    Cache {
        /// Name of a cache that takes uploads; see docs/configuration.md#several-caches. The cache `default` is at `/`, others are below `/NAME`
        name: CacheName = cache_name(),
        /// Plain text that the page shows about the cache, such as who pushes to it
        description: Option<String> = text(),
        /// Host names at whose `/` the cache is also served
        host: Vec<At<String>> = host(),
        /// Whether the cache is not served below `/NAME`
        host_only: bool = boolean().or("false"),
        /// Store directory of its paths; for an existing cache it must not change
        store_dir: Option<At<StoreDir>> = parsed::<StoreDir>("a store directory, such as \"/nix/store\",").or_else("that of the live store, otherwise `/nix/store`"),
        /// As `public`, for this cache
        public: Option<bool> = boolean().or_else("`public`"),
        /// As `sign-keys`, for this cache
        sign_keys: Option<Vec<At<PathBuf>>> = path().or_else("`sign-keys` for `default`, none for others").nix("secret"),
        /// As `priority`, for this cache
        priority: Option<u32> = integer::<u32>(0..=u32::MAX).or_else("`priority`"),
        /// `WantMassQuery` in `nix-cache-info`, whether clients ask this cache for many paths at once
        want_mass_query: Option<bool> = boolean().or_else("true"),
        /// As `upstream`, for this cache.
        upstream: Vec<Upstream> = Nested::Table(None),
        /// As `upstream-size`: each cache has its own budget
        upstream_size: Option<u64> = size().or_else("`upstream-size`"),
        /// Public keys: paths signed by one of them are also signed with the cache's keys
        trusted_keys: Option<Vec<PublicKey>> = public_key(),
        /// Public keys: uploads must be signed by one of them
        required_keys: Option<Vec<PublicKey>> = public_key(),
        /// Whether uploads whose NAR contains references that the narinfo does not list are refused
        strict_references: Option<bool> = boolean().or_else("false"),
        /// How long paths that nobody requests are kept
        retention: Option<Retention> = parsed::<Retention>("a number of days, such as \"90d\", or \"never\",").or_else("90d").nix("retention"),
        /// Limit on the size of all NARs, listings, logs and other files; the least recently used are removed first
        max_size: Option<u64> = size().or_else("no limit"),
        /// Limit on the size of all NARs, listings, logs and other files; uploads that would exceed it are refused
        quota: Option<u64> = size().or_else("no limit"),
        /// Size of the largest NAR that is accepted, uncompressed
        max_nar_size: Option<u64> = size().or_else("see `narval cache`"),
        /// How many releases of each name keep their paths, for each system (docs/releases.md)
        keep_releases: Option<u32> = integer::<u32>(1..=1000).or_else("10"),
        /// Whether NARs in other formats are recompressed to zstd in the background (docs/cache.md#recompressing)
        recompress: Option<bool> = choice(&RECOMPRESS).or_else("never"),
    }
}

const RECOMPRESS: [(&str, &str, bool); 2] = [("zstd", "To zstd", true), ("never", "They stay as uploaded", false)];

/// Conflicts between the sections.
pub(in crate::config) fn conflicts(sections: &[Cache]) -> Vec<ConfigError> {
    let (mut names, mut hosts, mut wrong) = (HashSet::new(), HashSet::new(), Vec::new());
    for Cache { origin, name, host, host_only, .. } in sections {
        if !names.insert(name) {
            wrong.push(origin.error("cache", format!("the name '{name}' is used twice")));
        }
        for host in host {
            if !hosts.insert(&host.value) {
                let key = format!("cache.host = \"{}\"", host.value);
                wrong.push(host.origin.error(&key, "another cache has this host already"));
            }
        }
        let unreachable = match (host_only, host.as_slice()) {
            (true, []) => "has no 'host', so it could not be reached",
            (true, _) if *name == CacheName::default() => "is at '/', for all hosts without their own cache",
            _ => continue,
        };
        wrong.push(origin.error("cache.host-only", format!("the cache '{name}' {unreachable}")));
    }
    wrong
}

impl Cache {
    /// The cache at `/`, as if the file had a section with its name.
    fn at_root() -> Option<Self> {
        Self::named(&CacheName::default())
    }

    /// A cache with nothing but a name.
    pub fn named(name: &CacheName) -> Option<Self> {
        ServeConfig::parse("", &format!("[[cache]]\nname = \"{name}\"")).ok()?.cache.pop()
    }

    /// Whether it is the cache at `/`.
    pub fn is_root(&self) -> bool {
        self.name == CacheName::default()
    }

    /// A human-readable line; `effective` has what it inherits from the top of the file.
    pub(in crate::config) fn summary(&self, effective: &Self, name_of: &dyn Fn(&Path) -> Option<String>) -> String {
        let path =
            if self.is_root() { Some("/".to_owned()) } else { (!self.host_only).then(|| format!("/{}", self.name)) };
        let places: Vec<_> = path.into_iter().chain(self.host.iter().map(|at| at.value.clone())).collect();
        let inherited = |is_inherited: bool| if is_inherited { " (inherited)" } else { "" };
        let readers = match effective.public {
            Some(false) => format!("readable only with a token{}", inherited(self.public.is_none())),
            _ => "publicly readable".to_owned(),
        };
        let signs = match key_names(effective.sign_keys.as_deref().unwrap_or_default(), name_of) {
            names if names.is_empty() => "signs nothing".to_owned(),
            names => format!("signs with {names}{}", inherited(self.sign_keys.is_none())),
        };
        let upstreams = counted(effective.upstream.len(), "upstream");
        let mark = inherited(effective.upstream.len() > self.upstream.len());
        format!("cache '{}': at {}, {readers}, {signs}, {upstreams}{mark}", self.name, places.join(" and "))
    }

    /// Overrides the settings of the cache with those of the file.
    pub fn apply(&self, settings: &mut CacheSettings) {
        fn set<T: Clone>(field: &mut T, value: Option<&T>) {
            if let Some(value) = value {
                field.clone_from(value);
            }
        }
        set(&mut settings.trusted_keys, self.trusted_keys.as_ref());
        set(&mut settings.required_keys, self.required_keys.as_ref());
        set(&mut settings.strict_references, self.strict_references.as_ref());
        set(&mut settings.want_mass_query, self.want_mass_query.as_ref());
        set(&mut settings.public, self.public.as_ref());
        set(&mut settings.priority, self.priority.as_ref());
        set(&mut settings.nar_size_max, self.max_nar_size.as_ref());
        set(&mut settings.keep_releases, self.keep_releases.as_ref());
        set(&mut settings.recompress, self.recompress.as_ref());
        settings.size_max = self.max_size.or(settings.size_max);
        settings.quota = self.quota.or(settings.quota);
        settings.retention_days = self.retention.map_or(settings.retention_days, |retention| retention.0);
    }
}

impl ServeConfig {
    /// The caches to serve, with what they have from the top of the file. The first is the one at `/`.
    pub fn caches(&self) -> Vec<Cache> {
        let (mut all, others): (Vec<_>, Vec<_>) = self.cache.iter().cloned().partition(Cache::is_root);
        if all.is_empty() {
            all.extend(Cache::at_root());
        }
        all.extend(others);
        for cache in &mut all {
            let is_root = cache.is_root();
            // Options are for the cache at `/`, and stand above its section.
            let wins = |origin: &Origin| is_root && origin.is_option();
            if cache.priority.is_none() || wins(&self.priority.origin) {
                cache.priority = Some(self.priority.value);
            }
            if cache.upstream_size.is_none() || wins(&self.upstreams.upstream_size.origin) {
                cache.upstream_size = Some(self.upstreams.upstream_size.value);
            }
            // All caches are private if one option says so.
            if let Some(public) = self.public.as_ref().filter(|at| cache.public.is_none() || at.origin.is_option()) {
                cache.public = Some(public.value);
            }
            // The keys and upstreams at the top are those of the cache at `/`: a key only vouches for its own uploads.
            if !is_root {
                continue;
            }
            if cache.sign_keys.is_none() || self.sign_keys.iter().any(|at| wins(&at.origin)) {
                cache.sign_keys = Some(self.sign_keys.clone());
            }
            let own = std::mem::replace(&mut cache.upstream, self.upstreams.upstream.clone());
            if !cache.upstream.iter().any(|upstream| wins(&upstream.origin)) {
                cache.upstream.extend(own);
            }
        }
        all
    }
}

/// The names of keys, or else their files.
pub(in crate::config) fn key_names(keys: &[At<PathBuf>], name_of: &dyn Fn(&Path) -> Option<String>) -> String {
    let names = keys.iter().map(|at| name_of(&at.value).unwrap_or_else(|| at.value.display().to_string()));
    names.collect::<Vec<_>>().join(", ")
}
