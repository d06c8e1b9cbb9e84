//! A human-readable summary of a configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::tables::cache::key_names;
use super::{At, Cache, Loaded, ServeConfig};
use crate::ui::output::counted;

/// Keys and tables that have lines of their own.
const OWN_LINES: [&str; 10] =
    ["listen", "store", "sign-keys", "data", "database", "public", "cache.", "upstream.", "oidc.", "tls.certificate."];

impl ServeConfig {
    /// The keys that caches sign with: those of the file, of its sections, and for caches that it does not have.
    pub fn all_sign_keys(&self) -> impl Iterator<Item = &At<PathBuf>> {
        self.sign_keys
            .iter()
            .chain(&self.managed_sign_keys)
            .chain(self.cache.iter().flat_map(|cache| cache.sign_keys.iter().flatten()))
    }

    /// Caches that take uploads and have no key; clients refuse what nobody has signed. `has_data`: a folder is given otherwise.
    pub fn unsigned_caches(&self, has_data: bool) -> Vec<String> {
        if self.data.is_none() && !has_data {
            return Vec::new();
        }
        let warning = |Cache { name, .. }: &Cache| {
            format!(
                "the cache '{name}' takes uploads and signs nothing, so clients refuse what no builder has signed: set 'sign-keys'"
            )
        };
        let signs = |cache: &&Cache| cache.sign_keys.as_ref().is_some_and(|keys| !keys.is_empty());
        self.caches().iter().filter(|cache| !signs(cache)).map(warning).collect()
    }
}

impl Loaded<ServeConfig> {
    /// What is effective, with a line for all other keys of each table. `name_of`: the name of the key in a file, if it can be read.
    pub fn summary(&self, name_of: &dyn Fn(&Path) -> Option<String>) -> Vec<String> {
        let config = &self.settings;
        let no_store = if config.data.is_some() { "none" } else { "this machine's, or $NIX_REMOTE" };
        let mut lines = vec![
            format!("listen: {}", or(&join(config.listen.iter()), "sockets of systemd, else :5000")),
            format!("store: {}", config.store.as_deref().unwrap_or(no_store)),
            format!("sign keys: {}", or(&key_names(&config.sign_keys, name_of), "none")),
        ];
        if let Some(data) = &config.data {
            let is_private = config.public.as_ref().is_some_and(|public| !public.value);
            let readers = if is_private { "only with a token" } else { "by everybody" };
            let index = if config.database.is_some() { ", with the index in a database" } else { "" };
            // Without parameters, which are many.
            let data = data.display().to_string();
            let shown = data.split('?').next().unwrap_or_default();
            lines.push(format!("uploads: kept in {shown}{index}, read {readers}"));
        }
        for effective in config.caches() {
            let own = config.cache.iter().find(|cache| cache.name == effective.name);
            lines.extend(own.map(|own| own.summary(&effective, name_of)));
        }
        lines.extend(config.upstreams.upstream.iter().map(|upstream| format!("upstream: {}", upstream.url)));
        let jobs = |(issuer, rules)| format!("tokens for jobs of {issuer} by {}", counted(rules, "rule"));
        lines.extend(config.oidc.iter().map(|oidc| jobs((&oidc.issuer, oidc.rule.len()))));
        let certificates = join(config.tls.certificate.iter().map(|pair| pair.cert.display()));
        lines.push(format!("HTTPS: {}", or(&certificates, "off")));
        let mut tables: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let has_own_line =
            |path: &str| OWN_LINES.iter().any(|own| path == *own || own.ends_with('.') && path.starts_with(own));
        for key in self.keys.iter().filter(|key| !has_own_line(&key.path)) {
            let Some(value) = &key.shown else { continue };
            match key.path.rsplit_once('.') {
                Some((table, key)) => tables.entry(table).or_default().push(format!("{key} {value}")),
                None => lines.push(format!("{}: {value}", key.path)),
            }
        }
        lines.extend(tables.iter().map(|(table, keys)| format!("{table}: {}", keys.join(", "))));
        lines
    }
}

fn join<T: std::fmt::Display>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}
