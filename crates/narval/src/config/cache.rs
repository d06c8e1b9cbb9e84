//! `[[cache]]`: one of the caches that take uploads.

use std::collections::HashSet;
use std::path::PathBuf;

use narval_cache::written::{CacheName, CacheSettings};
use narval_nix::{PublicKey, StoreDir};

use super::section::Section;
use super::values::Kind;
use super::{At, ConfigError, Recompress, Retention, UpstreamSection, upstream};

/// `[[cache]]`. What the file leaves out of its behaviour stays as the data folder has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSection {
    /// Its line.
    pub line: usize,
    /// Its name: it is below `/NAME`; the cache `default` is at `/`.
    pub name: CacheName,
    /// The hosts at whose `/` it is.
    pub hosts: Vec<At<String>>,
    /// Whether it is not below `/NAME`.
    pub host_only: bool,
    /// The store directory of its paths.
    pub store_dir: Option<StoreDir>,
    /// Whether everybody may read it.
    pub public: Option<bool>,
    /// Secret keys to sign with; `None`: nothing is said of them.
    pub sign_keys: Option<Vec<At<PathBuf>>>,
    /// `Priority` in `nix-cache-info`.
    pub priority: Option<u32>,
    /// `WantMassQuery` in `nix-cache-info`.
    pub want_mass_query: Option<bool>,
    /// `[[cache.upstream]]`: the caches that are asked for what it does not have.
    pub upstreams: Vec<UpstreamSection>,
    /// What may be kept of them, in bytes.
    pub upstream_size: Option<u64>,
    /// Uploads that one of these has signed are signed by the cache, too.
    pub trusted_keys: Option<Vec<PublicKey>>,
    /// Uploads must be signed by one of these, if there are any.
    pub required_keys: Option<Vec<PublicKey>>,
    /// Whether undeclared references are refused.
    pub strict_references: Option<bool>,
    /// When what nobody asks for is forgotten.
    pub retention: Option<Retention>,
    /// More bytes of NARs are not kept.
    pub max_size: Option<u64>,
    /// With more bytes of NARs, uploads are refused.
    pub quota: Option<u64>,
    /// The largest NAR that is taken, in bytes.
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
        // Replaced below: a section without a name is none.
        name: CacheName::default(),
        hosts: section.list("host", &Kind::host()),
        host_only: section.get("host-only", &Kind::boolean()).unwrap_or(false),
        store_dir: section.get("store-dir", &Kind::parsed("a store directory, as \"/nix/store\",")),
        public: section.get("public", &Kind::boolean()),
        sign_keys: section.has("sign-keys").then_some(sign_keys),
        priority: section.get("priority", &Kind::integer(0..=u32::MAX)),
        want_mass_query: section.get("want-mass-query", &Kind::boolean()),
        upstreams: section.tables("upstream", upstream).into_iter().flatten().collect(),
        upstream_size: section.get("upstream-size", &Kind::size()),
        trusted_keys: keys("trusted-keys"),
        required_keys: keys("required-keys"),
        strict_references: section.get("strict-references", &Kind::boolean()),
        retention: section.get("retention", &Kind::parsed("a number of days, as \"90d\", or \"never\",")),
        max_size: section.get("max-size", &Kind::size()),
        quota: section.get("quota", &Kind::size()),
        max_nar_size: section.get("max-nar-size", &Kind::size()),
        recompress: section.get("recompress", &Kind::parsed("\"zstd\" or \"never\",")),
    };
    Some(CacheSection { name: section.required("name", line, name)?.value, ..read })
}

/// What is wrong with the sections together.
pub(super) fn conflicts(file: &str, sections: &[CacheSection]) -> Vec<ConfigError> {
    let (mut names, mut hosts, mut wrong) = (HashSet::new(), HashSet::new(), Vec::new());
    let mut error = |line, message| wrong.push(ConfigError { file: file.to_owned(), line: Some(line), message });
    for section in sections {
        let name = &section.name;
        if !names.insert(name) {
            error(section.line, format!("cache: there are two with the name '{name}'"));
        }
        for host in &section.hosts {
            if !hosts.insert(&host.value) {
                error(host.line, format!("cache.host = \"{}\": another cache has this host already", host.value));
            }
        }
        if section.host_only && section.hosts.is_empty() {
            error(section.line, format!("cache.host-only: the cache '{name}' has no 'host', so nobody could reach it"));
        } else if section.host_only && *name == CacheName::default() {
            error(
                section.line,
                format!("cache.host-only: the cache '{name}' is at '/', for all hosts that no other has"),
            );
        }
    }
    wrong
}

impl CacheSection {
    /// A line for people. `public` is what the top of the file says.
    pub(super) fn summary(&self, public: Option<bool>) -> String {
        let path = match self.name == CacheName::default() {
            true => Some("/".to_owned()),
            false => (!self.host_only).then(|| format!("/{}", self.name)),
        };
        let places: Vec<_> = path.into_iter().chain(self.hosts.iter().map(|at| at.value.clone())).collect();
        let readers = match self.public.or(public) {
            Some(false) => "read only with a token",
            _ => "read by everybody",
        };
        let keys = self.sign_keys.iter().flatten().count();
        let upstreams = self.upstreams.len();
        format!(
            "cache '{}': at {}, {readers}, {keys} sign keys, {upstreams} upstreams",
            self.name,
            places.join(" and ")
        )
    }

    /// The settings of the cache, with what the file says of its behaviour.
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
