//! The options for servers behind a proxy.

use narval_http::{Builder, TrustedProxy};

/// Options for servers behind a proxy
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Behind a proxy")]
pub struct ProxyArgs {
    /// Proxy that is believed who its clients are: an IP address, a network (10.0.0.0/8), or `unix` for all unix sockets. Repeatable
    ///
    /// From it, X-Forwarded-For or Forwarded gives the client's address, for limits and logs. From others, these fields are ignored.
    #[arg(long = "trusted-proxy", value_name = "ADDRESS")]
    trusted_proxies: Vec<TrustedProxy>,
    /// Expect a header of the PROXY protocol (version 1 or 2) at the start of each connection from a trusted proxy
    #[arg(long, requires = "trusted_proxies")]
    proxy_protocol: bool,
}

/// The proxies in front of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxySettings {
    /// Those that are believed.
    pub trusted: Vec<TrustedProxy>,
    /// Whether they speak the PROXY protocol.
    pub proxy_protocol: bool,
}

impl ProxyArgs {
    /// The settings from the options, or else from a configuration file.
    pub fn over(&self, file: &ProxySettings) -> ProxySettings {
        let trusted = if self.trusted_proxies.is_empty() { &file.trusted } else { &self.trusted_proxies };
        ProxySettings { trusted: trusted.clone(), proxy_protocol: self.proxy_protocol || file.proxy_protocol }
    }
}

impl ProxySettings {
    /// Applies them to a server.
    pub fn apply(&self, builder: Builder) -> Builder {
        builder.trusted_proxies(self.trusted.iter().copied()).proxy_protocol(self.proxy_protocol)
    }
}
