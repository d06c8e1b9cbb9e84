//! Keys for servers behind a proxy.

use narval_http::{Builder, TrustedProxy};

use crate::config::error::ConfigError;
use crate::config::field::table;
use crate::config::key::At;
use crate::config::kinds::{boolean, parsed};

table! {
    /// The proxies in front of a server.
    Proxies {
        /// Proxy that is believed who its clients are: an IP address, a network (10.0.0.0/8), or `unix` for all unix sockets
        ///
        /// From it, X-Forwarded-For or Forwarded gives the client's address, for limits and logs. From others, these fields are ignored.
        trusted_proxies: Vec<TrustedProxy> = parsed::<TrustedProxy>("an IP address, a network such as 10.0.0.0/8, or unix,")
            .option("trusted-proxy", "ADDRESS").restart().nix("proxy"),
        /// Whether connections of trusted proxies begin with a header of the PROXY protocol
        proxy_protocol: At<bool> = boolean().or("false").restart().flag("proxy-protocol", "true", |arg| arg.help("Expect a header of the PROXY protocol (version 1 or 2) at the start of each connection from a trusted proxy")),
    }
}

impl Proxies {
    /// Applies them to a server.
    pub fn apply(&self, builder: Builder) -> Builder {
        builder.trusted_proxies(self.trusted_proxies.iter().copied()).proxy_protocol(self.proxy_protocol.value)
    }

    /// The error if there is nobody who could speak the PROXY protocol.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.proxy_protocol.value && self.trusted_proxies.is_empty() {
            let origin = &self.proxy_protocol.origin;
            return Err(origin.error("proxy-protocol", "needs trusted-proxies, which send it"));
        }
        Ok(())
    }
}
