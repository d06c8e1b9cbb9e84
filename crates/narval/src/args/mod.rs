//! Options shared by several commands.

pub mod access_log;
pub mod client;
pub(crate) mod count;
pub mod data;
pub mod nar_cache;
pub mod paths;
pub mod proxies;
pub mod push;
pub mod secret_key;
pub mod state;
pub mod tls;
pub mod upstream;
