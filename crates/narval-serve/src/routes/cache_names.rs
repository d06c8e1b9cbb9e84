//! Which names caches may have beside the routes of the one at `/`.

use narval_keep::Rejection;

use crate::routes::table::{LISTING, NARINFO};

/// Names that no cache below `/` may have: the first components of the paths that the cache at `/` answers, and files that browsers request.
const RESERVED: [&str; 22] = [
    "_narval",
    "api",
    "assets",
    "batch-lookup-v1",
    "build-trace-v2",
    "debuginfo",
    "default",
    "favicon.ico",
    "health",
    "index.html",
    "live",
    "log",
    "metrics",
    "nar",
    "nix-cache-info",
    "presence-v1",
    "push",
    "ready",
    "realisations",
    "releases",
    "robots.txt",
    "web",
];

/// Whether a name is that of a route, so that no cache can have it: `nar`, `log`, `push`, `nix-cache-info`, or a name that ends like a narinfo
/// or a listing.
pub fn is_reserved_name(name: &str) -> bool {
    name.is_empty() || RESERVED.contains(&name) || name.ends_with(NARINFO) || name.ends_with(LISTING)
}

/// For requests to a cache that does not exist.
pub(crate) fn no_cache(name: &str) -> Rejection {
    Rejection::not_found(format!("there is no cache '{name}' here"))
}
