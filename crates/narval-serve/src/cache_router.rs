//! Several caches in one server. A request's host and the first component of its path select the cache.

use std::borrow::Cow;
use std::collections::HashMap;

use narval_http::{Handler, HeadRef, Request, Response};
use narval_keep::CacheName;

use crate::routes::cache_names::is_reserved_name;
use crate::routes::table;
use crate::service::Service;

/// The caches of one server: one at `/`, others below `/NAME` or at `/` of a host.
///
/// A request is for the cache of its host, if there is one; otherwise for the cache that the first component of its path names; otherwise for the
/// cache at `/`. If one of the caches below `/NAME` is private, requests for names that no cache has are answered as a private cache would.
#[derive(Clone, Debug)]
pub struct CacheRouter {
    root: Service,
    by_path: HashMap<Box<str>, Service>,
    by_host: HashMap<Box<str>, Service>,
    /// If the cache at `/` is the only one, nothing is looked up.
    is_one: bool,
    hides_names: bool,
}

/// The cache that a request is for.
enum Selected<'a> {
    /// A cache, and the length of the path prefix that selects it.
    Cache(&'a Service, usize),
    /// A valid name, but no cache has it.
    Nobody(CacheName),
}

impl CacheRouter {
    /// A server with one cache, at `/`.
    pub fn new(root: Service) -> Self {
        Self { root, by_path: HashMap::new(), by_host: HashMap::new(), is_one: true, hides_names: false }
    }

    /// Adds a cache below `/NAME`. The name must not be that of a route ([`is_reserved_name`]).
    #[must_use]
    pub fn at_path(mut self, name: &CacheName, service: Service) -> Self {
        self.hides_names |= !service.is_public();
        self.by_path.insert(name.as_str().into(), service);
        self.is_one = false;
        self
    }

    /// Adds a cache at `/` of a host: a name without a port, in any case.
    #[must_use]
    pub fn at_host(mut self, host: &str, service: Service) -> Self {
        self.by_host.insert(host.to_ascii_lowercase().into(), service);
        self.is_one = false;
        self
    }

    fn find(&self, head: &HeadRef<'_>) -> Selected<'_> {
        if !self.by_host.is_empty()
            && let Some(service) = head.host().and_then(|host| self.by_host.get(&*host_name(host)))
        {
            return Selected::Cache(service, 0);
        }
        let path = head.path();
        let name = path.strip_prefix('/').and_then(|rest| rest.split('/').next()).unwrap_or_default();
        // The common case.
        if name.ends_with(table::NARINFO) {
            return Selected::Cache(&self.root, 0);
        }
        match self.by_path.get(name) {
            Some(service) => Selected::Cache(service, 1 + name.len()),
            None if !self.hides_names || is_reserved_name(name) => Selected::Cache(&self.root, 0),
            None => CacheName::parse(name).map_or(Selected::Cache(&self.root, 0), Selected::Nobody),
        }
    }
}

impl Handler for CacheRouter {
    #[inline]
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        if self.is_one {
            return self.root.inline(head);
        }
        match self.find(head) {
            Selected::Cache(service, at) => service.inline_at(head, at),
            Selected::Nobody(_) => None,
        }
    }

    fn handle(&self, request: Request) -> Response {
        Service::answer_resolved(request, |request| {
            if self.is_one {
                return self.root.handle_unresolved(request);
            }
            let found = self.find(&request.head());
            match found {
                Selected::Cache(service, at) => service.handle_at(request, at),
                Selected::Nobody(name) => self.root.handle_nobody(request, &name),
            }
        })
    }
}

/// The host of a `Host` field, without its port, in lower case.
fn host_name(host: &str) -> Cow<'_, str> {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) { name.to_ascii_lowercase().into() } else { name.into() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that fails may say so")]

    use std::sync::Arc;

    use narval_store::{LocalStore, Store, StoreConfig};

    use super::*;
    use crate::config::{Config, Dialect};

    /// A request is resolved once: what answers it is what the shard found, though the caches were replaced since.
    #[test]
    fn a_worker_takes_what_the_shard_has_resolved() {
        let service = || {
            let folder = tempfile::tempdir().unwrap();
            let config = StoreConfig::for_root(folder.path()).unwrap();
            LocalStore::open(config.clone()).unwrap();
            (Service::new(Config::new(Dialect::Narval), Store::new(config)).unwrap(), folder)
        };
        let ((root, _root), (team, _team)) = (service(), service());
        let metrics = Arc::clone(&team.shared.origins.metrics);
        let before = CacheRouter::new(root.clone()).at_path(&CacheName::parse("team").unwrap(), team);
        let head = "GET /team/00bgd045z0d4icpbc2yyz4gx48ak44la.narinfo HTTP/1.1\r\nHost: cache\r\n\r\n";
        let request = Request::parse(head, "").unwrap();
        assert!(before.inline(&request.head()).is_none());
        assert_eq!(CacheRouter::new(root).handle(request).status(), 404);
        // The cache that was replaced has looked it up.
        assert_eq!(metrics.narinfo_memo_misses.get(), 1);
    }

    #[test]
    fn hosts_without_ports() {
        for (host, want) in [
            ("team.example.org", "team.example.org"),
            ("Team.Example.org:5000", "team.example.org"),
            ("team.example.org.:80", "team.example.org"),
            ("[::1]:5000", "[::1]"),
            ("[::1]", "[::1]"),
        ] {
            assert_eq!(host_name(host), want);
        }
    }

    #[test]
    fn names_of_routes_are_no_names_of_caches() {
        for name in ["nar", "log", "nix-cache-info", "x.narinfo", "x.ls", "push", "health", "releases", ""] {
            assert!(is_reserved_name(name), "{name}");
        }
        for name in ["team", "nars", "narinfo"] {
            assert!(!is_reserved_name(name), "{name}");
        }
    }
}
