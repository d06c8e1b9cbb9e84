//! `[[cache]]`: one of the caches that accept uploads.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use narval_keep::{CacheName, CacheSettings};
use narval_nix::{PublicKey, StoreDir};

use super::section::Section;
use super::summary::key_names;
use super::values::Kind;
use super::{At, ConfigError, Recompress, Retention, ServeConfig, UpstreamSection, upstream};
use crate::ui::output::counted;

/// `[[cache]]`. Settings that the file omits stay as in the data folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSection {
    /// Its line.
    pub line: usize,
    /// Its name: it is served below `/NAME`; the cache `default` is at `/`.
    pub name: CacheName,
    /// The hosts where it is served at `/`.
    pub hosts: Vec<At<String>>,
    /// What the page says about it.
    pub description: Option<String>,
    /// Whether it is only served at its hosts, not below `/NAME`.
    pub host_only: bool,
    /// The store directory of its paths.
    pub store_dir: Option<StoreDir>,
    /// Whether reading needs no token.
    pub public: Option<bool>,
    /// Secret keys to sign with; `None` if the file does not set them.
    pub sign_keys: Option<Vec<At<PathBuf>>>,
    /// `Priority` in `nix-cache-info`.
    pub priority: Option<u32>,
    /// `WantMassQuery` in `nix-cache-info`.
    pub want_mass_query: Option<bool>,
    /// `[[cache.upstream]]`: the caches to query for paths that it does not have.
    pub upstreams: Vec<UpstreamSection>,
    /// The limit of stored upstream files, in bytes.
    pub upstream_size: Option<u64>,
    /// Uploads signed by one of these are also signed by the cache.
    pub trusted_keys: Option<Vec<PublicKey>>,
    /// If set, uploads must be signed by one of these.
    pub required_keys: Option<Vec<PublicKey>>,
    /// Whether undeclared references are rejected.
    pub strict_references: Option<bool>,
    /// When unused paths are removed.
    pub retention: Option<Retention>,
    /// The size in bytes of NARs above which unused paths are removed.
    pub max_size: Option<u64>,
    /// The size in bytes of NARs above which uploads are refused.
    pub quota: Option<u64>,
    /// The largest accepted NAR, in bytes.
    pub max_nar_size: Option<u64>,
    /// Whether NARs that are not zstd are recompressed.
    pub recompress: Option<Recompress>,
}

pub(super) fn read(section: &Section<'_>, line: usize) -> Option<CacheSection> {
    let keys = |key| {
        let found = section.list(key, &Kind::parsed("a public key, NAME:BASE64,"));
        section.has(key).then(|| found.into_iter().map(|at| at.value).collect())
    };
    let name = section.at("name", &Kind::cache_name());
    let sign_keys = section.paths("sign-keys");
    let read = CacheSection {
        line,
        // Replaced below: a section must have a name.
        name: CacheName::default(),
        hosts: section.list("host", &Kind::host()),
        description: section.get("description", &Kind::text()),
        host_only: section.get("host-only", &Kind::boolean()).unwrap_or(false),
        store_dir: section.get("store-dir", &Kind::parsed("a store directory, such as \"/nix/store\",")),
        public: section.get("public", &Kind::boolean()),
        sign_keys: section.has("sign-keys").then_some(sign_keys),
        priority: section.get("priority", &Kind::integer(0..=u32::MAX)),
        want_mass_query: section.get("want-mass-query", &Kind::boolean()),
        upstreams: section.tables("upstream", upstream).into_iter().flatten().collect(),
        upstream_size: section.get("upstream-size", &Kind::size()),
        trusted_keys: keys("trusted-keys"),
        required_keys: keys("required-keys"),
        strict_references: section.get("strict-references", &Kind::boolean()),
        retention: section.get("retention", &Kind::parsed("a number of days, such as \"90d\", or \"never\",")),
        max_size: section.get("max-size", &Kind::size()),
        quota: section.get("quota", &Kind::size()),
        max_nar_size: section.get("max-nar-size", &Kind::size()),
        recompress: section.get("recompress", &Kind::parsed("\"zstd\" or \"never\",")),
    };
    Some(CacheSection { name: section.required("name", line, name)?.value, ..read })
}

/// Conflicts between the sections.
pub(super) fn conflicts(file: &str, sections: &[CacheSection]) -> Vec<ConfigError> {
    let (mut names, mut hosts, mut wrong) = (HashSet::new(), HashSet::new(), Vec::new());
    let mut error = |line, message| wrong.push(ConfigError { file: file.to_owned(), line: Some(line), message });
    for section in sections {
        let name = &section.name;
        if !names.insert(name) {
            error(section.line, format!("cache: the name '{name}' is used twice"));
        }
        for host in &section.hosts {
            if !hosts.insert(&host.value) {
                error(host.line, format!("cache.host = \"{}\": another cache has this host already", host.value));
            }
        }
        if section.host_only && section.hosts.is_empty() {
            error(
                section.line,
                format!("cache.host-only: the cache '{name}' has no 'host', so it could not be reached"),
            );
        } else if section.host_only && *name == CacheName::default() {
            error(
                section.line,
                format!("cache.host-only: the cache '{name}' is at '/', for all hosts without their own cache"),
            );
        }
    }
    wrong
}

impl CacheSection {
    /// A human-readable line, with what it inherits from the top of the file.
    pub(super) fn summary(&self, file: &ServeConfig, name_of: &dyn Fn(&Path) -> Option<String>) -> String {
        let is_root = self.name == CacheName::default();
        let path = if is_root { Some("/".to_owned()) } else { (!self.host_only).then(|| format!("/{}", self.name)) };
        let places: Vec<_> = path.into_iter().chain(self.hosts.iter().map(|at| at.value.clone())).collect();
        let readers = match (self.public, file.public.as_ref().map(|at| at.value)) {
            (Some(false), _) => "readable only with a token",
            (None, Some(false)) => "readable only with a token (inherited)",
            _ => "publicly readable",
        };
        // The keys and upstreams at the top are those of the cache at `/`.
        let keys = match &self.sign_keys {
            Some(own) => (key_names(own, name_of), ""),
            None if is_root => (key_names(&file.sign_keys, name_of), " (inherited)"),
            None => (String::new(), ""),
        };
        let signs = match keys {
            (names, _) if names.is_empty() => "signs nothing".to_owned(),
            (names, inherited) => format!("signs with {names}{inherited}"),
        };
        let inherited = if is_root { file.upstreams.len() } else { 0 };
        let mark = if inherited > 0 { " (inherited)" } else { "" };
        let upstreams = counted(self.upstreams.len() + inherited, "upstream");
        format!("cache '{}': at {}, {readers}, {signs}, {upstreams}{mark}", self.name, places.join(" and "))
    }

    /// Overrides the settings of the cache with those of the file.
    pub fn apply(&self, settings: &mut CacheSettings) {
        if let Some(keys) = &self.trusted_keys {
            settings.trusted_keys.clone_from(keys);
        }
        if let Some(keys) = &self.required_keys {
            settings.required_keys.clone_from(keys);
        }
        settings.strict_references = self.strict_references.unwrap_or(settings.strict_references);
        settings.want_mass_query = self.want_mass_query.unwrap_or(settings.want_mass_query);
        settings.retention_days = match self.retention {
            None => settings.retention_days,
            Some(Retention::Days(days)) => Some(days),
            Some(Retention::Never) => None,
        };
        settings.size_max = self.max_size.or(settings.size_max);
        settings.quota = self.quota.or(settings.quota);
        settings.nar_size_max = self.max_nar_size.unwrap_or(settings.nar_size_max);
        settings.recompress = self.recompress.map_or(settings.recompress, |to| to == Recompress::Zstd);
    }
}
