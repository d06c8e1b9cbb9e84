//! What carries them: names looked up, connections made and kept, proxies, TLS.

pub(crate) mod connect;
pub(crate) mod connection;
pub(crate) mod pool;
pub(crate) mod proxy;
pub(crate) mod tls;
