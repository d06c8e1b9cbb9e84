//! A human-readable summary of a configuration.

use super::ServeConfig;
use crate::values::time::written;

impl ServeConfig {
    /// One line per setting of the file.
    pub fn summary(&self) -> Vec<String> {
        let no_store = if self.data.is_some() { "none" } else { "this machine's, or $NIX_REMOTE" };
        let mut lines = vec![
            format!("listen: {}", or(&join(self.listen.iter().map(|at| &at.value)), "sockets of systemd, else :5000")),
            format!("store: {}", self.store.as_ref().map_or(no_store, |at| &at.value)),
            format!("sign keys: {}", or(&join(self.sign_keys.iter().map(|at| at.value.display())), "none")),
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
            lines.push(cache.summary(public));
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

fn join<T: std::fmt::Display>(items: impl Iterator<Item = T>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

fn or<'a>(text: &'a str, otherwise: &'a str) -> &'a str {
    if text.is_empty() { otherwise } else { text }
}
