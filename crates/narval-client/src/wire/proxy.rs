//! Proxies from the environment, with curl's rules: `http_proxy`, `https_proxy`, `all_proxy`, `no_proxy` (lower case
//! first; `HTTP_PROXY` in capitals is not read, because CGI programs get it from their client's `Proxy:` field).

use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::error::HttpError;
use crate::url::{Origin, Scheme, Url};

/// One HTTP proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) authorization: Option<String>,
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Which proxy serves which origin.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    http: Option<String>,
    https: Option<String>,
    exceptions: Vec<String>,
}

impl Proxies {
    /// Reads the environment.
    pub fn from_env() -> Self {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let first = |names: &[&str]| names.iter().filter_map(|name| variable(name)).find(|value| !value.is_empty());
        let all = first(&["all_proxy", "ALL_PROXY"]);
        let exceptions = first(&["no_proxy", "NO_PROXY"]).unwrap_or_default();
        Self {
            http: first(&["http_proxy"]).or_else(|| all.clone()),
            https: first(&["https_proxy", "HTTPS_PROXY"]).or(all),
            exceptions: exceptions
                .split([',', ' '])
                .map(str::trim)
                .filter(|e| !e.is_empty())
                .map(str::to_lowercase)
                .collect(),
        }
    }

    /// The address of the proxy for an origin, if there is one; without credentials, for messages.
    pub fn describe(&self, origin: &Origin) -> Option<String> {
        self.find(origin).ok().flatten().map(|proxy| proxy.to_string())
    }

    pub(crate) fn find(&self, origin: &Origin) -> Result<Option<Proxy>, HttpError> {
        let address = match origin.scheme {
            Scheme::Http => &self.http,
            Scheme::Https => &self.https,
            Scheme::File | Scheme::S3 => return Ok(None),
        };
        let Some(address) = address else { return Ok(None) };
        if self.exceptions.iter().any(|exception| matches_exception(exception, origin)) {
            return Ok(None);
        }
        let refused = |reason: String| HttpError::Proxy { proxy: "from the environment".to_owned(), reason };
        let text = if address.contains("://") { address.clone() } else { format!("http://{address}") };
        let url = Url::parse(&text).map_err(|error| refused(format!("{error}; only http:// proxies are supported")))?;
        if url.scheme() != Scheme::Http {
            return Err(refused(
                "only http:// proxies are supported; unset the variable, or add the host to no_proxy".into(),
            ));
        }
        let authorization = url.userinfo().map(|userinfo| format!("Basic {}", STANDARD.encode(userinfo)));
        Ok(Some(Proxy { host: url.origin().host.clone(), port: url.origin().port, authorization }))
    }
}

/// `*`, a host, a domain with or without its leading dot, a host with a port, an address, or a network in CIDR form, which
/// covers addresses only: names are not looked up for this (curl 7.86 and newer).
fn matches_exception(exception: &str, origin: &Origin) -> bool {
    let bare = |text: &str| text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
    if let Some(address) = bare(&origin.host) {
        if let Some((network, bits)) = exception.split_once('/') {
            return bare(network).is_some_and(|network| is_in_network(address, network, bits));
        }
        if bare(exception) == Some(address) {
            return true;
        }
    }
    let (name, port) = match exception.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') => (name, port.parse::<u16>().ok()),
        _ => (exception, None),
    };
    if port.is_some_and(|port| port != origin.port) {
        return false;
    }
    let name = name.trim_start_matches('.');
    let below = origin.host.strip_suffix(name).is_some_and(|head| head.ends_with('.'));
    name == "*" || origin.host == name || below
}

fn is_in_network(address: IpAddr, network: IpAddr, bits: &str) -> bool {
    let (address, network, width) = match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => (address.to_bits().into(), network.to_bits().into(), 32),
        (IpAddr::V6(address), IpAddr::V6(network)) => (address.to_bits(), network.to_bits(), 128),
        _ => return false,
    };
    match bits.parse::<u32>() {
        Ok(0) => true,
        Ok(bits) if bits <= width => (address ^ network) >> (width - bits) == 0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Proxies {
        Proxies::from_variables(|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn networks_are_exceptions() {
        let env =
            proxies(&[("http_proxy", "p"), ("no_proxy", "10.0.0.0/8,192.168.1.77, fd00::/8,[::1],1.2.3.4/0x,x/8")]);
        for free in ["10.255.0.1", "192.168.1.77", "[fd12::3]", "[::1]"] {
            assert!(env.find(&origin(&format!("http://{free}/"))).unwrap().is_none(), "{free}");
        }
        for other in ["11.0.0.1", "192.168.1.78", "[fe80::1]", "[::2]", "1.2.3.4", "10.example.org"] {
            assert!(env.find(&origin(&format!("http://{other}/"))).unwrap().is_some(), "{other}");
        }
        let all = proxies(&[("http_proxy", "p"), ("no_proxy", "0.0.0.0/0")]);
        assert!(all.find(&origin("http://8.8.8.8/")).unwrap().is_none());
        assert!(all.find(&origin("http://[::1]/")).unwrap().is_some());
    }

    fn origin(text: &str) -> Origin {
        Url::parse(text).unwrap().origin().clone()
    }

    #[test]
    fn the_environment_decides() {
        let env = proxies(&[
            ("http_proxy", "me:pw@p:3128"),
            ("HTTPS_PROXY", "http://q"),
            ("no_proxy", "localhost,.example.org,h:81"),
        ]);
        let found = env.find(&origin("http://x/")).unwrap().unwrap();
        assert_eq!((found.to_string().as_str(), found.authorization.is_some()), ("p:3128", true));
        assert_eq!(env.describe(&origin("https://x/")).unwrap(), "q:80");
        for free in ["http://localhost/", "http://a.example.org/", "http://example.org", "http://h:81/"] {
            assert!(env.find(&origin(free)).unwrap().is_none(), "{free}");
        }
        assert!(env.find(&origin("http://badexample.org")).unwrap().is_some());
        assert!(proxies(&[("HTTP_PROXY", "p")]).find(&origin("http://x/")).unwrap().is_none());
        assert!(proxies(&[("all_proxy", "socks5://p")]).find(&origin("http://x/")).is_err());
    }
}
