//! What trusted proxies say about the client of a request: `X-Forwarded-For`, `-Proto` and `-Host`, or else `Forwarded` (RFC 7239).
//!
//! Each proxy appends the address that it was called from, so the fields are read from the right, and only as far as trusted: what
//! stands to the left of an address that is no trusted proxy was sent by that client. If both fields are there, `X-Forwarded-For`
//! counts: nearly all proxies set that one, and pass the other on as the client sent it.

use std::net::{IpAddr, SocketAddr};

use crate::http1::head_parts::HeadRef;
use crate::limits::FORWARDED_HOPS_MAX;
use crate::peer::Proxies;

/// What trusted proxies say about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told<'a> {
    /// The client's address.
    pub(crate) ip: Option<IpAddr>,
    pub(crate) scheme: Option<&'static str>,
    pub(crate) host: Option<&'a str>,
}

impl<'a> HeadRef<'a> {
    /// The host (and port) the request is for, according to a [trusted proxy](crate::Builder::trusted_proxies) or else to the
    /// request: the authority of the target if it has one, else the Host field.
    pub fn host(&self) -> Option<&'a str> {
        self.told().and_then(|told| told.host).or_else(|| self.parts.host.map(|span| self.text(span)))
    }

    /// `https` or `http`: what the client speaks, according to a [trusted proxy](crate::Builder::trusted_proxies) or else to the
    /// connection.
    pub fn scheme(&self) -> &'static str {
        let own = if self.remote.is_secure() { "https" } else { "http" };
        self.told().and_then(|told| told.scheme).unwrap_or(own)
    }

    /// The client's address; an IPv4-mapped IPv6 address is returned as IPv4. If the [peer](Self::peer) is a [trusted
    /// proxy](crate::Builder::trusted_proxies), it is the one that `X-Forwarded-For` or `Forwarded` (RFC 7239) tells, read from the
    /// right and only as far as trusted. `None` for a unix socket without these fields.
    pub fn client_ip(&self) -> Option<IpAddr> {
        self.told().and_then(|told| told.ip).or_else(|| self.remote.peer().ip())
    }

    /// What trusted proxies say about the request; `None` if the peer is none.
    pub(crate) fn told(&self) -> Option<Told<'a>> {
        self.remote.proxies().map(|proxies| told(self, proxies))
    }
}

/// Reads the fields of a request that came from a trusted proxy.
fn told<'a>(head: &HeadRef<'a>, proxies: &Proxies) -> Told<'a> {
    let has = |name| head.header_bytes(name).is_some();
    if has("x-forwarded-for") || !has("forwarded") { x_forwarded(head, proxies) } else { forwarded(head, proxies) }
}

fn x_forwarded<'a>(head: &HeadRef<'a>, proxies: &Proxies) -> Told<'a> {
    let mut told = Told::default();
    // How many proxies, from the right, are believed.
    let mut believed = 0_usize;
    for entry in from_the_right(head, "x-forwarded-for") {
        let Some(ip) = address(entry) else { break };
        (told.ip, believed) = (Some(ip), believed + 1);
        if !proxies.trust_ip(ip) {
            break;
        }
    }
    // Proxies append to these fields, or replace them: then there are fewer entries than addresses.
    let entry =
        |name| from_the_right(head, name).take(believed.max(1)).last().and_then(|entry| str::from_utf8(entry).ok());
    told.scheme = entry("x-forwarded-proto").and_then(scheme);
    told.host = entry("x-forwarded-host");
    told
}

fn forwarded<'a>(head: &HeadRef<'a>, proxies: &Proxies) -> Told<'a> {
    let mut told = Told::default();
    for element in from_the_right(head, "forwarded") {
        let pairs = element.split(unquoted(b';')).filter_map(|pair| {
            let (name, value) = std::str::from_utf8(pair).ok()?.trim().split_once('=')?;
            let quoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
            Some((name, quoted.unwrap_or(value)))
        });
        let of =
            |wanted: &str| pairs.clone().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value);
        let ip = of("for").and_then(|client| address(client.as_bytes()));
        if ip.is_none() && told.ip.is_some() {
            break;
        }
        told = Told { ip, scheme: of("proto").and_then(scheme), host: of("host") };
        if !ip.is_some_and(|ip| proxies.trust_ip(ip)) {
            break;
        }
    }
    told
}

/// The entries of a list field in reverse order, over all its lines. Empty ones are left out (RFC 9110 section 5.6.1.2).
fn from_the_right<'a>(head: &HeadRef<'a>, name: &str) -> impl Iterator<Item = &'a [u8]> {
    let entries = head.header_all(name).rev().flat_map(|line| line.rsplit(unquoted(b',')));
    entries.map(<[u8]>::trim_ascii).filter(|entry| !entry.is_empty()).take(FORWARDED_HOPS_MAX)
}

/// Whether the next byte is a separator outside quotes. Lines are read from the right, so that a quote that the client left open
/// hides nothing that a proxy appended.
fn unquoted(separator: u8) -> impl FnMut(&u8) -> bool + Clone {
    let mut is_quoted = false;
    move |byte| {
        is_quoted ^= *byte == b'"';
        *byte == separator && !is_quoted
    }
}

/// `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let ip = bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()));
    ip.map(|ip| ip.to_canonical())
}

fn scheme(text: &str) -> Option<&'static str> {
    ["https", "http"].into_iter().find(|scheme| text.eq_ignore_ascii_case(scheme))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::head::{HeadLimits, parse_head};
    use crate::peer::{Peer, Remote};

    fn ask(fields: &[&str]) -> (Option<String>, Option<String>, Option<String>) {
        let head =
            format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n\r\n", fields.join("\r\n")).replace("\r\n\r\n\r\n", "\r\n\r\n");
        let parsed = parse_head(head.as_bytes(), &HeadLimits::default()).unwrap().unwrap();
        let networks = ["10.0.0.0/8", "fd00::/8"].map(|text| text.parse().unwrap()).to_vec();
        let proxies = Proxies { networks, send_proxy_header: false };
        let remote = Remote::from(Peer::Unix);
        let told = told(&HeadRef::new(head.as_bytes(), &parsed.parts, &remote), &proxies);
        (told.ip.map(|ip| ip.to_string()), told.scheme.map(str::to_owned), told.host.map(str::to_owned))
    }

    fn client(fields: &[&str]) -> Option<String> {
        ask(fields).0
    }

    #[test]
    fn lists_are_read_from_the_right_as_far_as_trusted() {
        let cases: &[(&[&str], Option<&str>)] = &[
            (&[], None),
            (&["X-Forwarded-For: 192.0.2.1"], Some("192.0.2.1")),
            (&["X-Forwarded-For: 1.1.1.1, 192.0.2.1"], Some("192.0.2.1")),
            (&["X-Forwarded-For: 1.1.1.1, 192.0.2.1, 10.0.0.2,10.0.0.1"], Some("192.0.2.1")),
            (&["X-Forwarded-For: 1.1.1.1", "x-forwarded-for: 192.0.2.1"], Some("192.0.2.1")),
            (&["X-Forwarded-For: 1.1.1.1", "x-forwarded-for: 10.0.0.1"], Some("1.1.1.1")),
            (&["X-Forwarded-For: 10.0.0.3, 10.0.0.1"], Some("10.0.0.3")),
            (&["X-Forwarded-For: , 192.0.2.1 ,"], Some("192.0.2.1")),
            (&["X-Forwarded-For: 192.0.2.1:99"], Some("192.0.2.1")),
            (&["X-Forwarded-For: [2001:db8::1]:99, fd00::1"], Some("2001:db8::1")),
            (&["X-Forwarded-For: 2001:db8::1"], Some("2001:db8::1")),
            (&["X-Forwarded-For: ::ffff:192.0.2.1"], Some("192.0.2.1")),
            (&["X-Forwarded-For: 1.1.1.1, unknown"], None),
            (&["X-Forwarded-For: 1.1.1.1, unknown, 10.0.0.1"], Some("10.0.0.1")),
            (&["X-Forwarded-For: \"1.1.1.1, 192.0.2.1"], Some("192.0.2.1")),
            (&["Forwarded: for=192.0.2.1"], Some("192.0.2.1")),
            (&["Forwarded: For=\"[2001:db8::1]:4711\";proto=https, for=10.0.0.1"], Some("2001:db8::1")),
            (&["Forwarded: for=1.1.1.1, by=x; for=192.0.2.1 "], Some("192.0.2.1")),
            (&["Forwarded: for=\", for=192.0.2.1"], Some("192.0.2.1")),
            (&["Forwarded: for=1.1.1.1, for=_hidden"], None),
            (&["Forwarded: for=1.1.1.1, for=unknown, for=10.0.0.1"], Some("10.0.0.1")),
            (&["Forwarded: for=\"a,b\";x=\"for=1.1.1.1\", for=10.0.0.1"], Some("10.0.0.1")),
            // The proxy set one of them, and passed the other on.
            (&["Forwarded: for=1.1.1.1", "X-Forwarded-For: 192.0.2.1"], Some("192.0.2.1")),
        ];
        for (fields, want) in cases {
            assert_eq!(client(fields).as_deref(), *want, "{fields:?}");
        }
    }

    #[test]
    fn lists_of_proxies_are_read_to_a_limit() {
        let line = format!("X-Forwarded-For: 192.0.2.1{}", ", 10.0.0.1".repeat(FORWARDED_HOPS_MAX));
        assert_eq!(client(&[&line]).as_deref(), Some("10.0.0.1"));
    }

    #[test]
    fn scheme_and_host_are_those_the_client_asked_for() {
        let asked = |fields: &[&str]| {
            let (_, scheme, host) = ask(fields);
            (scheme.unwrap_or_default(), host.unwrap_or_default())
        };
        let pair = |scheme: &str, host: &str| (scheme.to_owned(), host.to_owned());
        let one = ["X-Forwarded-For: 192.0.2.1", "X-Forwarded-Proto: HTTPS", "X-Forwarded-Host: a.example:8443"];
        assert_eq!(asked(&one), pair("https", "a.example:8443"));
        // Appended to what the client sent.
        let lists =
            ["X-Forwarded-For: 1.1.1.1, 192.0.2.1", "X-Forwarded-Proto: https, http", "X-Forwarded-Host: evil, b"];
        assert_eq!(asked(&lists), pair("http", "b"));
        // Two proxies; the second one keeps what the first one said.
        let two = ["X-Forwarded-For: 192.0.2.1, 10.0.0.1", "X-Forwarded-Proto: https", "X-Forwarded-Host: evil, a, b"];
        assert_eq!(asked(&two), pair("https", "a"));
        assert_eq!(asked(&["X-Forwarded-Proto: https"]), pair("https", ""));
        assert_eq!(asked(&["X-Forwarded-Proto: javascript"]), pair("", ""));
        let elements =
            "Forwarded: for=1.1.1.1;proto=http;host=evil, for=192.0.2.1;proto=https;host=\"a:1\", for=10.0.0.1";
        assert_eq!(asked(&[elements]), pair("https", "a:1"));
    }
}
