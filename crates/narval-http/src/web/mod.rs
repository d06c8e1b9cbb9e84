pub(crate) mod compress;
pub(crate) mod cors;
pub(crate) mod events;
pub mod files;
pub(crate) mod middleware;
pub(crate) mod multipart;
pub(crate) mod redirect;
pub(crate) mod router;
