//! Where a client may go: a server that it asks must not lead it to others, least of all into its own network.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::HttpError;
use crate::url::{Origin, Scheme, Url};

/// The longest host name, in bytes (RFC 1035 section 2.3.4).
const HOST_LEN_MAX: usize = 253;

/// The hosts that a client may reach: its own, and some to which these may lead it, by redirects or by references such as the `URL` of a
/// narinfo. The others are never at addresses of this machine or of a private network, unless the own hosts are there, too. What counts is the
/// address that is connected to: a name may resolve to anything.
///
/// Cheap to clone: clones share everything.
#[derive(Clone, Debug)]
pub struct Bounds(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    own: Vec<Origin>,
    others: Vec<HostPattern>,
    /// The kinds of addresses at which the own hosts were reached.
    own_kinds: AtomicU8,
}

/// A host that is in bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Own,
    Other,
}

/// Kinds of addresses that a stranger must not lead to, as bits.
mod kind {
    /// Of the internet.
    pub(super) const PUBLIC: u8 = 0;
    pub(super) const LOOPBACK: u8 = 1;
    pub(super) const LINK_LOCAL: u8 = 2;
    pub(super) const PRIVATE: u8 = 4;
    /// The own host was reached in the internet.
    pub(super) const WAS_PUBLIC: u8 = 8;
}

impl Bounds {
    /// The hosts of these URLs, and others.
    pub fn new(own: &[Url], others: Vec<HostPattern>) -> Self {
        let own = own.iter().map(|url| url.origin().clone()).collect();
        Self(Arc::new(Shared { own, others, own_kinds: AtomicU8::new(kind::PUBLIC) }))
    }

    /// Checks a host before anything is sent to it.
    pub(crate) fn check(&self, to: &Origin) -> Result<Host, HttpError> {
        let is_own = |own: &Origin| {
            own.host == to.host
                && (own.port == to.port || (own.has_usual_port() && to.has_usual_port()))
                && is_no_less_safe(own, to)
        };
        if self.0.own.iter().any(is_own) {
            return Ok(Host::Own);
        }
        let is_other = self.0.others.iter().any(|pattern| pattern.matches(to))
            && self.0.own.iter().any(|own| is_no_less_safe(own, to));
        if !is_other {
            return Err(HttpError::OutOfBounds { host: to.to_string(), reason: "it is another server" });
        }
        // Through a proxy, nothing else would notice.
        match to.host.parse() {
            Ok(address) if !self.admits(Host::Other, address) => Err(Self::no_address(&to.to_string())),
            _ => Ok(Host::Other),
        }
    }

    /// Whether a host may be at this address.
    pub(crate) fn admits(&self, host: Host, address: IpAddr) -> bool {
        let (kind, own) = (kind_of(address), self.0.own_kinds.load(Ordering::Acquire));
        match host {
            // A host of the internet does not move into our network: whoever decides what its name resolves to would be let in.
            Host::Own => kind == kind::PUBLIC || own & kind::WAS_PUBLIC == 0,
            Host::Other => kind == kind::PUBLIC || own & kind != 0,
        }
    }

    /// Records at which address a host was reached.
    pub(crate) fn reached(&self, host: Host, address: IpAddr) {
        if host == Host::Own {
            let kind = match kind_of(address) {
                kind::PUBLIC => kind::WAS_PUBLIC,
                kind => kind,
            };
            self.0.own_kinds.fetch_or(kind, Ordering::AcqRel);
        }
    }

    /// No address of a host is admitted.
    pub(crate) fn no_address(host: &str) -> HttpError {
        HttpError::OutOfBounds { host: host.to_owned(), reason: "it is in a private network" }
    }
}

/// From `https`, only `https` may follow.
fn is_no_less_safe(own: &Origin, to: &Origin) -> bool {
    own.scheme != Scheme::Https || to.scheme == Scheme::Https
}

fn kind_of(address: IpAddr) -> u8 {
    match address.to_canonical() {
        IpAddr::V4(address) => kind_of_v4(address),
        IpAddr::V6(address) => kind_of_v6(address),
    }
}

/// The registry of special addresses: <https://www.iana.org/assignments/iana-ipv4-special-registry>.
fn kind_of_v4(address: Ipv4Addr) -> u8 {
    match address.octets() {
        // Linux connects to itself if the address is 0.0.0.0.
        [127 | 0, ..] => kind::LOOPBACK,
        [169, 254, ..] => kind::LINK_LOCAL,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] | [192, 0, 0, _] | [198, 18 | 19, ..] => {
            kind::PRIVATE
        }
        // Multicast, reserved, broadcast.
        [224..=255, ..] => kind::PRIVATE,
        _ => kind::PUBLIC,
    }
}

/// <https://www.iana.org/assignments/iana-ipv6-special-registry>
fn kind_of_v6(address: Ipv6Addr) -> u8 {
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        kind_of_v4(Ipv4Addr::new(a, b, c, d))
    };
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => kind::LOOPBACK,
        // Addresses that contain one of IPv4: compatible, NAT64 (RFC 6052), 6to4 (RFC 3056).
        [0, 0, 0, 0, 0, 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            embedded(high, low)
        }
        [0xfe80..=0xfebf, ..] => kind::LINK_LOCAL,
        // Unique local, site-local, local NAT64 (RFC 8215), multicast.
        [0xfc00..=0xfdff | 0xfec0..=0xfeff | 0xff00..=0xffff, ..] | [0x64, 0xff9b, 1, ..] => kind::PRIVATE,
        _ => kind::PUBLIC,
    }
}

/// A host, or all below a domain: `cdn.example.org`, `*.example.org`, either with a port (`:8443`). Without a port, the usual one of the scheme.
///
/// ```
/// use narval_client::HostPattern;
///
/// assert!("*.example.org:8443".parse::<HostPattern>().is_ok());
/// assert!("*".parse::<HostPattern>().is_err() && "https://example.org".parse::<HostPattern>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPattern {
    /// In lower case, without the `*`: then it begins with a dot.
    host: String,
    port: Option<u16>,
}

impl HostPattern {
    fn matches(&self, origin: &Origin) -> bool {
        let is_port = self.port.map_or(origin.has_usual_port(), |port| port == origin.port);
        let is_host = match self.host.strip_prefix('.') {
            Some(_) => origin.host.len() > self.host.len() && origin.host.ends_with(&self.host),
            None => origin.host == self.host,
        };
        is_port && is_host
    }
}

impl FromStr for HostPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("'{text}' is not a host: write it as cdn.example.org, *.example.org or cdn.example.org:8443");
        let (host, port) = match (text.strip_prefix('['), text.rsplit_once(':')) {
            (Some(rest), _) => {
                let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
                (host, rest.strip_prefix(':'))
            }
            (None, Some((host, port))) if !host.contains(':') => (host, Some(port)),
            (None, _) => (text, None),
        };
        let port = port.map(str::parse).transpose().map_err(|_| wrong())?;
        let name = host.strip_prefix('*').unwrap_or(host);
        let is_below = name.len() < host.len();
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        let labels = name.strip_prefix('.').filter(|_| is_below).unwrap_or(name);
        let is_legal = name.bytes().all(legal) && !labels.is_empty() && name.len() <= HOST_LEN_MAX;
        // All of a top-level domain belongs to nobody.
        if !is_legal || is_below != name.starts_with('.') || (is_below && !labels.contains('.')) {
            return Err(wrong());
        }
        Ok(Self { host: name.to_ascii_lowercase(), port })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.host.starts_with('.') { "*" } else { "" };
        write!(f, "{star}{}", self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(own: &str, others: &[&str]) -> Bounds {
        Bounds::new(&[Url::parse(own).unwrap()], others.iter().map(|other| other.parse().unwrap()).collect())
    }

    fn check(bounds: &Bounds, url: &str) -> Option<Host> {
        bounds.check(Url::parse(url).unwrap().origin()).ok()
    }

    #[test]
    fn only_the_own_host_and_those_that_were_named_are_reached() {
        let https =
            bounds("https://cache.example.org", &["cdn.example.net", "*.r2.example.com", "cdn.example.net:8443"]);
        for (url, host) in [
            ("https://cache.example.org/nar/x", Some(Host::Own)),
            ("https://cdn.example.net/x", Some(Host::Other)),
            ("https://cdn.example.net:8443/x", Some(Host::Other)),
            ("https://a.b.r2.example.com/x", Some(Host::Other)),
            ("http://cache.example.org/nar/x", None),
            ("https://cache.example.org:8443/", None),
            ("https://cdn.example.net:9000/x", None),
            ("http://cdn.example.net/x", None),
            ("https://r2.example.com/x", None),
            ("https://xr2.example.com/x", None),
            ("https://evil.example/", None),
            ("https://127.0.0.1/", None),
        ] {
            assert_eq!(check(&https, url), host, "{url}");
        }
        let http = bounds("http://127.0.0.1:5000", &["10.0.0.7:80", "1.1.1.1"]);
        for (url, host) in [
            ("http://127.0.0.1:5000/x", Some(Host::Own)),
            ("http://127.0.0.1:8392/latest/meta-data/secret", None),
            ("http://127.0.0.1/", None),
            ("http://localhost:5000/", None),
            ("http://1.1.1.1/", Some(Host::Other)),
            ("http://10.0.0.7/", None),
        ] {
            assert_eq!(check(&http, url), host, "{url}");
        }
        assert_eq!(check(&bounds("http://cache.example.org", &[]), "https://cache.example.org/x"), Some(Host::Own));
    }

    #[test]
    fn another_host_is_in_a_private_network_only_if_the_own_one_is() {
        let bounds = bounds("http://cache.lan", &["cdn.lan"]);
        let private = ["10.0.0.7", "fd00::7"].map(|text| text.parse::<IpAddr>().unwrap());
        assert!(private.iter().all(|address| !bounds.admits(Host::Other, *address)));
        bounds.reached(Host::Other, private[0]);
        assert!(!bounds.admits(Host::Other, private[0]));
        bounds.reached(Host::Own, "192.168.1.2".parse().unwrap());
        assert!(private.iter().all(|address| bounds.admits(Host::Other, *address)));
        assert!(!bounds.admits(Host::Other, "127.0.0.1".parse().unwrap()));
        assert!(!bounds.admits(Host::Other, "169.254.169.254".parse().unwrap()));
    }

    #[test]
    fn a_host_of_the_internet_does_not_move_into_our_network() {
        let bounds = bounds("http://cache.example.org", &[]);
        let [public, inside] = ["1.1.1.1", "169.254.169.254"].map(|text| text.parse().unwrap());
        assert!(bounds.admits(Host::Own, public) && bounds.admits(Host::Own, inside));
        bounds.reached(Host::Own, public);
        assert!(bounds.admits(Host::Own, public) && !bounds.admits(Host::Own, inside));
    }

    #[test]
    fn kinds_of_addresses() {
        for (kind, addresses) in [
            (
                kind::LOOPBACK,
                &["127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "64:ff9b::7f00:1"][..],
            ),
            (
                kind::LINK_LOCAL,
                &["169.254.169.254", "fe80::1", "::ffff:169.254.0.1", "2002:a9fe:a9fe::1", "::a9fe:a9fe"],
            ),
            (
                kind::PRIVATE,
                &["10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.0.1", "100.64.0.1", "198.18.0.1", "224.0.0.1"],
            ),
            (
                kind::PRIVATE,
                &["255.255.255.255", "fc00::1", "fdff::1", "fec0::1", "ff02::1", "64:ff9b:1::1", "2002:a00:1::"],
            ),
            (
                kind::PUBLIC,
                &["1.1.1.1", "172.32.0.1", "192.167.0.1", "100.128.0.1", "2606:4700::1", "64:ff9b::101:101"],
            ),
        ] {
            for address in addresses {
                assert_eq!(kind_of(address.parse().unwrap()), kind, "{address}");
            }
        }
    }

    #[test]
    fn patterns_of_hosts() {
        for text in ["cdn.example.org", "*.example.org", "*.example.org:8443", "10.0.0.1:80", "::1", "nas"] {
            assert_eq!(text.parse::<HostPattern>().unwrap().to_string(), text);
        }
        assert_eq!("[::1]:80".parse::<HostPattern>().unwrap().port, Some(80));
        for text in ["", "*", "*.", "*.org", "*x.org", "a.*", "https://a", "a/b", "a:b", "a:99999", "a b", "[::1"] {
            assert!(text.parse::<HostPattern>().is_err(), "{text}");
        }
    }
}
