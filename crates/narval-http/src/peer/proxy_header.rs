//! The header of the PROXY protocol, versions 1 and 2 (haproxy.org, `doc/proxy-protocol.txt`): a proxy that passes connections on
//! sends it before anything else.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::limits::PROXY_HEADER_MAX;

/// Whom a connection is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A client with this address.
    Address(SocketAddr),
    /// The proxy itself (a health check), or a client whose address it does not know.
    Unknown,
}

/// Why a header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct InvalidHeader(&'static str);

/// The start of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The most bytes of a header of version 1, with its end.
const TEXT_MAX: usize = 107;

/// Parses the header at the start of `input`. `None` if it is not complete; otherwise also its length.
///
/// # Errors
/// It is no header, or a malformed one: the proxy is configured wrongly.
pub(crate) fn parse(input: &[u8]) -> Result<Option<(Source, usize)>, InvalidHeader> {
    let begins_with = |start: &[u8]| input.iter().zip(start).all(|(have, want)| have == want);
    if begins_with(SIGNATURE) {
        parse_binary(input)
    } else if begins_with(b"PROXY ") {
        parse_text(input)
    } else {
        Err(InvalidHeader("the connection begins with no PROXY header"))
    }
}

/// `PROXY TCP4 192.0.2.1 192.0.2.2 4000 443\r\n`.
fn parse_text(input: &[u8]) -> Result<Option<(Source, usize)>, InvalidHeader> {
    let invalid = InvalidHeader("the PROXY header is malformed");
    let start = input.get(..input.len().min(TEXT_MAX)).unwrap_or_default();
    let Some(end) = start.windows(2).position(|two| two == b"\r\n") else {
        return if start.len() < TEXT_MAX { Ok(None) } else { Err(invalid) };
    };
    let line = start.get(..end).and_then(|line| str::from_utf8(line).ok()).ok_or(invalid)?;
    let mut words = line.split(' ').skip(1);
    let protocol = words.next();
    if protocol == Some("UNKNOWN") {
        return Ok(Some((Source::Unknown, end + 2)));
    }
    let words: Vec<&str> = words.take(5).collect();
    let [source, destination, port, destination_port] = *words else { return Err(invalid) };
    let ip = |text: &str| match protocol {
        Some("TCP4") => text.parse().ok().map(IpAddr::V4),
        Some("TCP6") => text.parse().ok().map(IpAddr::V6),
        _ => None,
    };
    let port_of =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u16>().ok()).flatten();
    match (ip(source), ip(destination), port_of(port), port_of(destination_port)) {
        (Some(ip), Some(_), Some(port), Some(_)) => Ok(Some((Source::Address((ip, port).into()), end + 2))),
        _ => Err(invalid),
    }
}

/// The signature, version and command, family, length, addresses, and extensions, which are skipped.
fn parse_binary(input: &[u8]) -> Result<Option<(Source, usize)>, InvalidHeader> {
    let Some((&[command, family, high, low], rest)) = input.get(SIGNATURE.len()..).and_then(<[u8]>::split_first_chunk)
    else {
        return Ok(None);
    };
    let len = usize::from(u16::from_be_bytes([high, low]));
    let end = SIGNATURE.len() + 4 + len;
    if end > PROXY_HEADER_MAX {
        return Err(InvalidHeader("the PROXY header is too long"));
    }
    let is_local = match command {
        0x20 => true,
        0x21 => false,
        _ => return Err(InvalidHeader("the PROXY header has an unknown version or command")),
    };
    let Some(addresses) = rest.get(..len) else { return Ok(None) };
    let source = match family {
        _ if is_local => Source::Unknown,
        0x11 => Source::Address(ipv4(addresses)?),
        0x21 => Source::Address(ipv6(addresses)?),
        // Datagrams, a unix socket, or unspecified.
        _ => Source::Unknown,
    };
    Ok(Some((source, end)))
}

/// Source and destination, then both ports.
fn ipv4(addresses: &[u8]) -> Result<SocketAddr, InvalidHeader> {
    let Some(&[a, b, c, d, _, _, _, _, high, low, _, _]) = addresses.first_chunk() else { return Err(TOO_SHORT) };
    Ok((Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])).into())
}

fn ipv6(addresses: &[u8]) -> Result<SocketAddr, InvalidHeader> {
    let (Some(ip), Some(&[high, low, _, _])) =
        (addresses.first_chunk::<16>(), addresses.get(32..).and_then(<[u8]>::first_chunk))
    else {
        return Err(TOO_SHORT);
    };
    Ok((Ipv6Addr::from(*ip), u16::from_be_bytes([high, low])).into())
}

const TOO_SHORT: InvalidHeader = InvalidHeader("the PROXY header has no room for its addresses");

#[cfg(test)]
mod tests {
    use super::*;

    /// A header of version 2.
    fn binary(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let len = u16::try_from(addresses.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &len, addresses].concat()
    }

    fn v4() -> Vec<u8> {
        vec![192, 0, 2, 1, 192, 0, 2, 2, 0x0f, 0xa0, 0x01, 0xbb]
    }

    fn v6() -> Vec<u8> {
        let ip = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
        [&ip("2001:db8::1")[..], &ip("2001:db8::2"), &[0x0f, 0xa0, 0x01, 0xbb]].concat()
    }

    #[test]
    fn headers_of_both_versions_in_pieces_of_any_size() {
        let address = |text: &str| Source::Address(text.parse().unwrap());
        let cases: Vec<(Vec<u8>, Source)> = vec![
            (b"PROXY TCP4 192.0.2.1 192.0.2.2 4000 443\r\n".to_vec(), address("192.0.2.1:4000")),
            (b"PROXY TCP6 2001:db8::1 2001:db8::2 4000 443\r\n".to_vec(), address("[2001:db8::1]:4000")),
            (b"PROXY UNKNOWN\r\n".to_vec(), Source::Unknown),
            (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n".to_vec(), Source::Unknown),
            (binary(0x21, 0x11, &v4()), address("192.0.2.1:4000")),
            (binary(0x21, 0x21, &v6()), address("[2001:db8::1]:4000")),
            // With an extension.
            (binary(0x21, 0x11, &[v4(), vec![4, 0, 2, 1, 1]].concat()), address("192.0.2.1:4000")),
            (binary(0x20, 0x00, &[]), Source::Unknown),
            (binary(0x20, 0x11, &v4()), Source::Unknown),
            (binary(0x21, 0x00, &[]), Source::Unknown),
            (binary(0x21, 0x31, &[0; 216]), Source::Unknown),
        ];
        for (header, want) in cases {
            for end in 0..header.len() {
                assert_eq!(parse(&header[..end]), Ok(None), "{end} bytes of {header:?}");
            }
            let with_more = [&header[..], b"GET / HTTP/1.1\r\n"].concat();
            assert_eq!(parse(&with_more), Ok(Some((want, header.len()))), "{header:?}");
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let text = [
            "GET / HTTP/1.1\r\n",
            "PROXY  TCP4 192.0.2.1 192.0.2.2 4000 443\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 4000\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 4000 443 1\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 +400 443\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 65536 443\r\n",
            "PROXY TCP4 2001:db8::1 2001:db8::2 4000 443\r\n",
            "PROXY TCP6 192.0.2.1 192.0.2.2 4000 443\r\n",
            "PROXY UDP4 192.0.2.1 192.0.2.2 4000 443\r\n",
            "PROXY \r\n",
            "\x16\x03\x01",
        ];
        let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(TEXT_MAX));
        for text in text.into_iter().chain([long.as_str()]) {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
        let too_long = vec![0; PROXY_HEADER_MAX];
        for binary in [
            binary(0x11, 0x11, &v4()),
            binary(0x22, 0x11, &v4()),
            binary(0x21, 0x11, &v4()[..11]),
            binary(0x21, 0x21, &v4()),
            binary(0x21, 0x11, &too_long),
        ] {
            assert!(parse(&binary).is_err(), "{binary:?}");
        }
    }
}
