//! Where to listen: the formats of `--listen`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// One place to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP port.
    Tcp {
        /// The address or addresses.
        host: Host,
        /// The port; 0 lets the kernel choose one.
        port: u16,
    },
    /// A unix socket at this path.
    Unix(PathBuf),
}

/// The addresses of a TCP listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// All addresses, IPv4 and IPv6.
    Any,
    /// All IPv4 addresses.
    AnyV4,
    /// All IPv6 addresses.
    AnyV6,
    /// One address, or a host name.
    Named(String),
}

/// An invalid place to listen on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}: give HOST:PORT, :PORT, [IPV6]:PORT or the path of a unix socket")]
pub struct ListenError(String);

impl Host {
    /// Parses the argument of nix-serve-ng's `--host`: `*`, `*4`, `*6`, `!4`, `!6`, an address or a name. `*4` and `*6`
    /// only prefer a family there; all addresses are listened on.
    ///
    /// # Errors
    /// The text is not an address or a name.
    pub fn parse(text: &str) -> Result<Self, ListenError> {
        match text {
            "" | "*" | "*4" | "*6" => return Ok(Self::Any),
            "!4" => return Ok(Self::AnyV4),
            "!6" => return Ok(Self::AnyV6),
            _ => {}
        }
        let address = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        if address.contains(':') {
            return match address.parse::<std::net::Ipv6Addr>() {
                Ok(_) => Ok(Self::Named(address.to_owned())),
                Err(_) => Err(ListenError(format!("'{address}' is not an IPv6 address"))),
            };
        }
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if address.is_empty() || !address.bytes().all(fits) {
            return Err(ListenError(format!("'{text}' is not a host")));
        }
        Ok(Self::Named(address.to_owned()))
    }
}

impl FromStr for Listen {
    type Err = ListenError;

    /// Parses `HOST:PORT`, `:PORT`, `[IPV6]:PORT`, each with an optional `:ssl` after it (ignored: TLS is on if there
    /// is a certificate) or `PROTO` before the bracket. Anything with a `/` or without `:` is the path of a unix
    /// socket.
    fn from_str(text: &str) -> Result<Self, ListenError> {
        if text.is_empty() {
            return Err(ListenError("'' names no place to listen on".to_owned()));
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return unix(path);
        }
        if text.contains('/') || !text.contains(':') {
            return unix(text);
        }
        let plain = strip_ssl(text);
        let Some((host, port)) = plain.rsplit_once(':') else {
            return Err(ListenError(format!("'{text}' has no port")));
        };
        let port = port.parse().map_err(|_| ListenError(format!("'{port}' is not a port (0 to 65535)")))?;
        // nix-serve-ng also accepts `proto[addr]`.
        let host = match host.find('[') {
            Some(bracket) if host.ends_with(']') => host.get(bracket..).unwrap_or(host),
            _ => host,
        };
        Ok(Self::Tcp { host: Host::parse(host)?, port })
    }
}

fn unix(path: &str) -> Result<Listen, ListenError> {
    // sockaddr_un holds 108 bytes with the NUL, unix(7).
    if path.is_empty() || path.len() > 107 {
        return Err(ListenError(format!("'{path}' is not the path of a unix socket (1 to 107 bytes)")));
    }
    Ok(Listen::Unix(PathBuf::from(path)))
}

fn strip_ssl(text: &str) -> &str {
    match text.rsplit_once(':') {
        Some((rest, last)) if last.eq_ignore_ascii_case("ssl") && rest.contains(':') => rest,
        _ => text,
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp { host: Host::Any, port } => write!(f, "*:{port}"),
            Self::Tcp { host: Host::AnyV4, port } => write!(f, "0.0.0.0:{port}"),
            Self::Tcp { host: Host::AnyV6, port } => write!(f, "[::]:{port}"),
            Self::Tcp { host: Host::Named(name), port } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Self::Tcp { host: Host::Named(name), port } => write!(f, "{name}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: Host, port: u16) -> Listen {
        Listen::Tcp { host, port }
    }

    fn named(name: &str) -> Host {
        Host::Named(name.to_owned())
    }

    #[test]
    fn the_forms_of_both_originals() {
        let cases = [
            (":5000", tcp(Host::Any, 5000)),
            ("*:5000", tcp(Host::Any, 5000)),
            ("0.0.0.0:5000", tcp(named("0.0.0.0"), 5000)),
            ("localhost:0", tcp(named("localhost"), 0)),
            ("127.0.0.1:5000:ssl", tcp(named("127.0.0.1"), 5000)),
            (":5000:SSL", tcp(Host::Any, 5000)),
            ("[::1]:5000", tcp(named("::1"), 5000)),
            ("[::1]:5000:ssl", tcp(named("::1"), 5000)),
            ("::1:5000", tcp(named("::1"), 5000)),
            ("tcp[::1]:5000", tcp(named("::1"), 5000)),
            ("[127.0.0.1]:80", tcp(named("127.0.0.1"), 80)),
            ("!4:80", tcp(Host::AnyV4, 80)),
            ("!6:80", tcp(Host::AnyV6, 80)),
            ("/run/nix-serve.sock", Listen::Unix("/run/nix-serve.sock".into())),
            ("/run/a:1.sock", Listen::Unix("/run/a:1.sock".into())),
            ("unix:/run/a.sock", Listen::Unix("/run/a.sock".into())),
            ("sock", Listen::Unix("sock".into())),
        ];
        for (text, want) in cases {
            assert_eq!(text.parse::<Listen>(), Ok(want), "{text}");
        }
    }

    #[test]
    fn invalid_addresses_are_refused() {
        let long = "/".repeat(108);
        for text in ["", ":", ":http", ":65536", ":-1", "a b:80", "[::1:80", "[zz]x:1", "1:2:3", "unix:", &long] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_error_says_what_is_allowed() {
        let error = ":http".parse::<Listen>().unwrap_err().to_string();
        assert!(error.contains("'http'") && error.contains("HOST:PORT"), "{error}");
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        for text in ["*:5000", "[::1]:80", "localhost:1", "/run/x"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
    }
}
