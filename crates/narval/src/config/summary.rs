//! A human-readable summary of a configuration.

use std::path::{Path, PathBuf};

use narval_keep::CacheName;

use super::{At, CacheSection, ServeConfig};
use crate::values::time::written;

impl ServeConfig {
    /// The keys that caches sign with: those of the file, and of its sections.
    pub fn all_sign_keys(&self) -> impl Iterator<Item = &At<PathBuf>> {
        self.sign_keys.iter().chain(self.caches.iter().flat_map(|cache| cache.sign_keys.iter().flatten()))
    }

    /// Caches that take uploads and have no key; clients refuse what nobody has signed. `has_data`: a folder is given otherwise.
    pub fn unsigned_caches(&self, has_data: bool) -> Vec<String> {
        if self.data.is_none() && !has_data {
            return Vec::new();
        }
        let root = CacheName::default();
        let has_own = |cache: &CacheSection| cache.sign_keys.as_ref().is_some_and(|keys| !keys.is_empty());
        let section = self.caches.iter().find(|cache| cache.name == root);
        let keys = section.and_then(|section| section.sign_keys.as_ref()).unwrap_or(&self.sign_keys);
        let others = self.caches.iter().filter(|cache| cache.name != root && !has_own(cache)).map(|cache| &cache.name);
        let unsigned = keys.is_empty().then_some(&root).into_iter().chain(others);
        let warning = |name: &CacheName| {
            format!(
                "the cache '{name}' takes uploads and signs nothing, so clients refuse what no builder has signed: set 'sign-keys'"
            )
        };
        unsigned.map(warning).collect()
    }

    /// One line per setting of the file, as it is effective. `name_of`: the name of the key in a file, if it can be read.
    pub fn summary(&self, name_of: &dyn Fn(&Path) -> Option<String>) -> Vec<String> {
        let no_store = if self.data.is_some() { "none" } else { "this machine's, or $NIX_REMOTE" };
        let mut lines = vec![
            format!("listen: {}", or(&join(self.listen.iter().map(|at| &at.value)), "sockets of systemd, else :5000")),
            format!("store: {}", self.store.as_ref().map_or(no_store, |at| &at.value)),
            format!("sign keys: {}", or(&key_names(&self.sign_keys, name_of), "none")),
        ];
        let public = self.public.as_ref().map(|at| at.value);
        if let Some(data) = &self.data {
            let readers = if public == Some(false) { "only with a token" } else { "by everybody" };
            let index = if self.database.is_some() { ", with the index in a database" } else { "" };
            // Without parameters, which are many.
            let data = data.display().to_string();
            let shown = data.split('?').next().unwrap_or_default();
            lines.push(format!("uploads: kept in {shown}{index}, read {readers}"));
            if let Some(folder) = &self.cache_dir {
                lines.push(format!("disk cache: {}", folder.display()));
            }
        }
        for cache in &self.caches {
            lines.push(cache.summary(self, name_of));
        }
        for upstream in &self.upstreams {
            lines.push(format!("upstream: {}", upstream.url));
        }
        for oidc in &self.oidc {
            let rules = oidc.rules.len();
            lines.push(format!(
                "tokens for jobs of {} by {rules} rule{}",
                oidc.issuer,
                if rules == 1 { "" } else { "s" }
            ));
        }
        if let Some(priority) = self.priority {
            lines.push(format!("priority: {priority}"));
        }
        if self.verify_nars == Some(true) {
            lines.push("NARs are verified while they are sent".to_owned());
        }
        let certificates = join(self.tls.certificates.iter().map(|pair| pair.cert.display()));
        lines.push(format!("HTTPS: {}", or(&certificates, "off")));
        if let Some(authorities) = &self.tls.client_ca {
            lines.push(format!("client certificates: of {}", authorities.value.display()));
        }
        let log = self.access_log.file.as_ref().map(|at| at.value.display().to_string());
        lines.push(format!("access log: {}", log.as_deref().unwrap_or("off")));
        if !self.trusted_proxies.is_empty() {
            let protocol = if self.proxy_protocol == Some(true) { " (PROXY protocol)" } else { "" };
            lines.push(format!("trusted proxies: {}{protocol}", join(self.trusted_proxies.iter().map(|at| &at.value))));
        }
        let cache = &self.nar_cache;
        lines.push(match (cache.enabled, &cache.folder) {
            (Some(false), _) => "compressed NARs: not kept".to_owned(),
            (_, Some(folder)) => format!("compressed NARs: kept in {}", folder.display()),
            (_, None) => "compressed NARs: kept in the default folder".to_owned(),
        });
        lines.extend(self.limits());
        lines
    }

    fn limits(&self) -> Option<String> {
        let limits = &self.limits;
        let count = |name: &str, value: Option<usize>| value.map(|value| format!("{name} {value}"));
        let time =
            |name: &str, value: Option<std::time::Duration>| value.map(|value| format!("{name} {}", written(value)));
        let said = [
            count("connections", limits.connections),
            count("connections-per-address", limits.connections_per_address),
            count("queue", limits.queue),
            limits.backlog.map(|value| format!("backlog {value}")),
            time("head-timeout", limits.head_timeout),
            time("keep-alive-timeout", limits.keep_alive_timeout),
            time("stall-timeout", limits.stall_timeout),
            limits.output_memory.map(|value| format!("output-memory {value}")),
            limits.narinfo_memory.map(|value| format!("narinfo-memory {value}")),
            limits.decode_memory.map(|value| format!("decode-memory {value}")),
        ];
        let said: Vec<_> = said.into_iter().flatten().collect();
        (!said.is_empty()).then(|| format!("limits: {}", said.join(", ")))
    }
}

/// The names of keys, or else their files.
pub(super) fn key_names(keys: &[At<PathBuf>], name_of: &dyn Fn(&Path) -> Option<String>) -> String {
    join(keys.iter().map(|at| name_of(&at.value).unwrap_or_else(|| at.value.display().to_string())))
}

fn join<T: std::fmt::Display>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}
