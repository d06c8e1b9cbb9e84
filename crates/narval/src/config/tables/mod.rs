//! The tables of the file, one each.

pub(in crate::config) mod access_log;
pub(in crate::config) mod cache;
pub(in crate::config) mod destination;
pub(in crate::config) mod limits;
pub(in crate::config) mod nar_cache;
pub(in crate::config) mod neighbours;
pub(in crate::config) mod oidc;
pub(in crate::config) mod project;
pub(in crate::config) mod proxies;
pub(crate) mod tls;
pub(crate) mod tracing;
pub(in crate::config) mod upstream;
