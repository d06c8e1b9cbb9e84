use std::convert::Infallible;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::Peer;

/// A proxy, or a network of proxies, that is believed what it says about its clients.
///
/// ```
/// use narval_http::TrustedProxy;
///
/// for text in ["192.0.2.1", "10.0.0.0/8", "2001:db8::/32", "unix"] {
///     assert_eq!(text.parse::<TrustedProxy>().unwrap().to_string(), text);
/// }
/// assert!("proxy.example".parse::<TrustedProxy>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrustedProxy(Network);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    /// All clients of unix sockets.
    Unix,
    /// The addresses whose first `bits` are those of `address`.
    Ip { address: IpAddr, bits: u8 },
}

/// An invalid [`TrustedProxy`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a proxy: give an IP address, a network such as 10.0.0.0/8, or 'unix'")]
pub struct InvalidProxy(String);

impl From<Infallible> for InvalidProxy {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl FromStr for TrustedProxy {
    type Err = InvalidProxy;

    fn from_str(text: &str) -> Result<Self, InvalidProxy> {
        if text == "unix" {
            return Ok(Self(Network::Unix));
        }
        let invalid = || InvalidProxy(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let bits_max = bits_of(address);
        let bits = match bits {
            // `u8` also accepts a sign.
            Some(bits) if !bits.starts_with('+') => bits.parse().map_err(|_| invalid())?,
            Some(_) => return Err(invalid()),
            None => bits_max,
        };
        if bits > bits_max { Err(invalid()) } else { Ok(Self(Network::Ip { address, bits }.canonical())) }
    }
}

impl TryFrom<&str> for TrustedProxy {
    type Error = InvalidProxy;

    fn try_from(text: &str) -> Result<Self, InvalidProxy> {
        text.parse()
    }
}

impl TryFrom<String> for TrustedProxy {
    type Error = InvalidProxy;

    fn try_from(text: String) -> Result<Self, InvalidProxy> {
        text.parse()
    }
}

impl fmt::Display for TrustedProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Network::Unix => f.write_str("unix"),
            Network::Ip { address, bits } if bits == bits_of(address) => write!(f, "{address}"),
            Network::Ip { address, bits } => write!(f, "{address}/{bits}"),
        }
    }
}

fn bits_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl Network {
    /// Mapped IPv4 networks as IPv4.
    fn canonical(self) -> Self {
        match self {
            Self::Ip { address: mapped @ IpAddr::V6(_), bits } if bits >= 96 && mapped.to_canonical().is_ipv4() => {
                Self::Ip { address: mapped.to_canonical(), bits: bits - 96 }
            }
            other => other,
        }
    }

    fn contains(self, ip: IpAddr) -> bool {
        let Self::Ip { address, bits } = self else { return false };
        match (address, ip.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(ip)) => {
                let differ = network.to_bits() ^ ip.to_bits();
                differ.checked_shr(32 - u32::from(bits)).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => {
                let differ = network.to_bits() ^ ip.to_bits();
                differ.checked_shr(128 - u32::from(bits)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// The trusted proxies of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proxies {
    pub(crate) networks: Vec<TrustedProxy>,
    /// Whether their connections begin with a header of the PROXY protocol.
    pub(crate) send_proxy_header: bool,
}

impl Proxies {
    /// Whether `peer` is one of them.
    pub(crate) fn trust(&self, peer: &Peer) -> bool {
        match peer.ip() {
            Some(ip) => self.trust_ip(ip),
            None => self.networks.iter().any(|proxy| proxy.0 == Network::Unix),
        }
    }

    /// Whether the client at `ip` is one of them.
    pub(crate) fn trust_ip(&self, ip: IpAddr) -> bool {
        self.networks.iter().any(|proxy| proxy.0.contains(ip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(texts: &[&str]) -> Proxies {
        Proxies { networks: texts.iter().map(|text| text.parse().unwrap()).collect(), send_proxy_header: false }
    }

    #[test]
    fn networks_contain_their_addresses_and_no_others() {
        let trusted = proxies(&["10.0.0.0/8", "192.0.2.7", "2001:db8::/33", "::ffff:198.51.100.0/120"]);
        for inside in ["10.0.0.0", "10.255.255.255", "192.0.2.7", "::ffff:10.1.2.3", "2001:db8:7fff::1", "198.51.100.9"]
        {
            assert!(trusted.trust_ip(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["11.0.0.0", "9.255.255.255", "192.0.2.6", "2001:db8:8000::1", "::1", "198.51.101.0"] {
            assert!(!trusted.trust_ip(outside.parse().unwrap()), "{outside}");
        }
        assert!(!trusted.trust(&Peer::Unix));
        assert!(proxies(&["unix"]).trust(&Peer::Unix));
        let all = proxies(&["0.0.0.0/0"]);
        assert!(all.trust_ip("203.0.113.9".parse().unwrap()) && !all.trust_ip("::1".parse().unwrap()));
        assert!(proxies(&["::/0"]).trust_ip("2001:db8::1".parse().unwrap()));
    }

    #[test]
    fn what_is_no_address_and_no_network_is_refused() {
        for text in ["", "Unix", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "10.0/8", "::/129", "host", "10.0.0.1:80"] {
            let error = text.parse::<TrustedProxy>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{text}'")) && error.contains("10.0.0.0/8"), "{error}");
        }
    }
}
