//! Building blocks of applications: the router, middlewares, files, compression, forms, server-sent events.

pub(crate) mod compress;
pub(crate) mod cors;
pub(crate) mod events;
pub mod files;
pub(crate) mod layers;
pub(crate) mod middleware;
pub(crate) mod multipart_reader;
pub(crate) mod redirect;
pub(crate) mod router;
pub mod test;
pub(crate) mod topic;
