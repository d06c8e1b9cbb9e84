//! The routes: a table that parses them, and one file for each family, named as its URL is.

pub(crate) mod batch;
pub(crate) mod cache_names;
pub(crate) mod health;
pub(crate) mod log;
pub(crate) mod metrics;
pub(crate) mod nar;
pub(crate) mod narinfo;
pub(crate) mod nix_cache_info;
pub(crate) mod pages;
pub(crate) mod presence;
pub(crate) mod releases;
pub(crate) mod small;
pub(crate) mod table;
