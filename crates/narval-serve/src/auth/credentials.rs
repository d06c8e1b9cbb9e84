//! The token in an `Authorization` field (RFC 9110 section 11.6.2).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use narval_http::HeadRef;

/// Credentials longer than this are malformed.
const LEN_MAX: usize = 4096;

/// The contents of the field.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Credentials {
    /// The request has no such field.
    None,
    /// A Bearer token, or the password of Basic credentials: Nix can send nothing else from a netrc file.
    Token(Vec<u8>),
    /// Another scheme, or malformed credentials.
    Malformed,
}

pub(super) fn credentials(head: &HeadRef<'_>) -> Credentials {
    let Some(value) = head.header_bytes("authorization") else { return Credentials::None };
    parse(value).map_or(Credentials::Malformed, Credentials::Token)
}

fn parse(value: &[u8]) -> Option<Vec<u8>> {
    let value = std::str::from_utf8(value).ok().filter(|value| value.len() <= LEN_MAX)?;
    let (scheme, rest) = value.split_once(' ')?;
    let rest = rest.trim_matches(' ');
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.as_bytes().to_vec());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = STANDARD.decode(rest).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    decoded.get(colon + 1..).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_schemes() {
        assert_eq!(parse(b"Bearer nv1_a_b"), Some(b"nv1_a_b".to_vec()));
        assert_eq!(parse(b"bearer  nv1_a_b"), Some(b"nv1_a_b".to_vec()));
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text)).into_bytes();
        assert_eq!(parse(&basic("any:nv1_a_b")), Some(b"nv1_a_b".to_vec()));
        assert_eq!(parse(&basic(":a:b")), Some(b"a:b".to_vec()));
        assert_eq!(parse(&basic("nopassword")), None);
        for malformed in [&b"Bearer"[..], b"", b"Digest x", b"Basic ?", b"Bearer \xff", &[b'x'; LEN_MAX + 1]] {
            assert_eq!(parse(malformed), None);
        }
    }
}
