//! Content negotiation (RFC 9110 section 12.5): `Accept-Encoding` and `Accept`, by quality values.

use super::head_parts::HeadRef;

/// A content coding (RFC 9110 section 8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Coding {
    /// `zstd` (RFC 8878).
    Zstd,
    /// `br` (RFC 7932).
    Brotli,
    /// `gzip` (RFC 1952).
    Gzip,
    /// `deflate`: the zlib format (RFC 1950).
    Deflate,
    /// `dcz`: zstd with a dictionary that the client has (RFC 9842).
    Dcz,
    /// No coding.
    Identity,
}

impl Coding {
    /// The name, as in `Content-Encoding`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Dcz => "dcz",
            Self::Identity => "identity",
        }
    }

    /// Whether `name` names this coding; `x-gzip` is gzip (RFC 9110 section 8.4.1.3).
    fn is_named(self, name: &[u8]) -> bool {
        name.eq_ignore_ascii_case(self.name().as_bytes()) || self == Self::Gzip && name.eq_ignore_ascii_case(b"x-gzip")
    }
}

/// The coding for a response: of `available` (in the server's order of preference) and identity, the one the client
/// gives the highest quality; of several with the same, the first. `None` if the client accepts none of them, not even
/// identity.
///
/// A request without `Accept-Encoding` gets identity: clients that can decompress say so.
///
/// ```
/// # use narval_http::HeadRef;
/// use narval_http::semantics::accept::{Coding, negotiate_coding};
///
/// fn coding(head: &HeadRef<'_>) -> Coding {
///     negotiate_coding(head, &[Coding::Zstd, Coding::Gzip]).unwrap_or(Coding::Identity)
/// }
/// ```
pub fn negotiate_coding(head: &HeadRef<'_>, available: &[Coding]) -> Option<Coding> {
    negotiate_coding_values(head.header_all("accept-encoding"), available)
}

/// Like [`negotiate_coding`], from the values of the `Accept-Encoding` fields.
pub fn negotiate_coding_values<'a>(
    values: impl Iterator<Item = &'a [u8]> + Clone,
    available: &[Coding],
) -> Option<Coding> {
    let mut best: Option<(Coding, u16)> = None;
    let others = available.iter().copied().filter(|&coding| coding != Coding::Identity);
    for coding in others.chain([Coding::Identity]) {
        let quality = coding_quality(values.clone(), coding);
        if quality > best.map_or(0, |(_, quality)| quality) {
            best = Some((coding, quality));
        }
    }
    best.map(|(coding, _)| coding)
}

/// The quality in thousandths that the client gives `coding`. The coding's own entry counts before `*`; identity that is
/// not mentioned is acceptable, but least of all (RFC 9110 section 12.5.3).
fn coding_quality<'a>(values: impl Iterator<Item = &'a [u8]>, coding: Coding) -> u16 {
    let (mut own, mut any) = (None, None);
    for (name, quality) in values.flat_map(weighted) {
        if coding.is_named(name) {
            own = own.or(Some(quality));
        } else if name == b"*" {
            any = any.or(Some(quality));
        }
    }
    match (own, any) {
        (Some(quality), _) => quality,
        (None, Some(0)) => 0,
        // "*" without "identity": the client prefers any available coding.
        (None, _) if coding == Coding::Identity => 1,
        (None, Some(quality)) => quality,
        (None, None) => 0,
    }
}

/// The index of the media type in `offered` (lower-case `type/subtype`, in the server's order of preference) that the
/// client prefers; `None` if it accepts none of them. Without an `Accept` field, the first.
pub fn negotiate_media_type(head: &HeadRef<'_>, offered: &[&str]) -> Option<usize> {
    if head.header_bytes("accept").is_none() {
        return (!offered.is_empty()).then_some(0);
    }
    let mut best: Option<(usize, u16)> = None;
    for (index, media_type) in offered.iter().enumerate() {
        let quality = media_quality(head.header_all("accept"), media_type);
        if quality > best.map_or(0, |(_, quality)| quality) {
            best = Some((index, quality));
        }
    }
    best.map(|(index, _)| index)
}

/// The quality of a media type: that of the most specific range it lies in. Ranges with parameters are ignored.
fn media_quality<'a>(values: impl Iterator<Item = &'a [u8]>, media_type: &str) -> u16 {
    let main_type = media_type.split('/').next().unwrap_or_default();
    let (mut best_rank, mut best_quality) = (0, 0);
    for (range, quality) in values.flat_map(weighted) {
        let rank = if range.eq_ignore_ascii_case(media_type.as_bytes()) {
            3
        } else if range.strip_suffix(b"/*").is_some_and(|range| range.eq_ignore_ascii_case(main_type.as_bytes())) {
            2
        } else if range == b"*/*" {
            1
        } else {
            continue;
        };
        if rank > best_rank {
            (best_rank, best_quality) = (rank, quality);
        }
    }
    best_quality
}

/// The members of a list with weights: name and quality in thousandths. A member with a malformed weight is ignored.
fn weighted(value: &[u8]) -> impl Iterator<Item = (&[u8], u16)> {
    value.split(|&byte| byte == b',').filter_map(|member| {
        let mut parts = member.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let name = parts.next().filter(|name| !name.is_empty())?;
        match (parts.next(), parts.next()) {
            (None, _) => Some((name, 1000)),
            (Some([b'q' | b'Q', b'=', digits @ ..]), None) => Some((name, quality(digits)?)),
            _ => None,
        }
    })
}

/// A `qvalue` (RFC 9110 section 12.4.2) in thousandths.
fn quality(text: &[u8]) -> Option<u16> {
    let (one, fraction) = match text {
        [b'0'] => return Some(0),
        [b'1'] => return Some(1000),
        [b'0', b'.', fraction @ ..] => (false, fraction),
        [b'1', b'.', fraction @ ..] => (true, fraction),
        _ => return None,
    };
    if fraction.len() > 3 || !fraction.iter().all(|byte| byte.is_ascii_digit() && (!one || *byte == b'0')) {
        return None;
    }
    let digit = |index: usize| fraction.get(index).map_or(0, |byte| u16::from(byte - b'0'));
    Some(if one { 1000 } else { digit(0) * 100 + digit(1) * 10 + digit(2) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::head::{HeadLimits, parse_head};
    use crate::peer::Peer;

    const ALL: &[Coding] = &[Coding::Zstd, Coding::Brotli, Coding::Gzip, Coding::Deflate];

    fn with_head<T>(fields: &[(&str, &str)], test: impl FnOnce(&HeadRef<'_>) -> T) -> T {
        let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let parsed = parse_head(head.as_bytes(), &HeadLimits::default()).expect("well-formed").expect("complete");
        test(&HeadRef::new(head.as_bytes(), &parsed.parts, &Peer::Unix.into()))
    }

    fn coding(value: &str) -> Option<Coding> {
        with_head(&[("Accept-Encoding", value)], |head| negotiate_coding(head, ALL))
    }

    #[test]
    fn without_the_field_it_is_identity() {
        assert_eq!(with_head(&[], |head| negotiate_coding(head, ALL)), Some(Coding::Identity));
    }

    #[test]
    fn codings_by_quality_then_by_preference() {
        for (value, expected) in [
            ("", Coding::Identity),
            ("gzip", Coding::Gzip),
            ("gzip, deflate, br, zstd", Coding::Zstd),
            ("gzip, deflate, br", Coding::Brotli),
            ("gzip;q=1.0, br;q=0.5", Coding::Gzip),
            ("GZIP ; q=0.8 , zstd;Q=0.801", Coding::Zstd),
            ("x-gzip", Coding::Gzip),
            ("*", Coding::Zstd),
            ("*;q=0.5, zstd;q=0", Coding::Brotli),
            ("compress, snappy", Coding::Identity),
            ("gzip;q=0", Coding::Identity),
            ("gzip;q=0.5, identity", Coding::Identity),
            ("gzip;q=0.001", Coding::Gzip),
            ("gzip;q=2, deflate", Coding::Deflate),
            ("gzip;q=0.0001, br;q=x, deflate;level=1", Coding::Identity),
            ("*;q=0, gzip", Coding::Gzip),
        ] {
            assert_eq!(coding(value), Some(expected), "{value:?}");
        }
    }

    #[test]
    fn nothing_is_acceptable() {
        assert_eq!(coding("identity;q=0"), None);
        assert_eq!(coding("*;q=0"), None);
        assert_eq!(coding("*;q=0, identity"), Some(Coding::Identity));
        assert_eq!(coding("identity;q=0, gzip;q=0.1"), Some(Coding::Gzip));
    }

    #[test]
    fn several_fields_are_one_list() {
        let fields = [("Accept-Encoding", "gzip;q=0.5"), ("accept-encoding", "br")];
        assert_eq!(with_head(&fields, |head| negotiate_coding(head, ALL)), Some(Coding::Brotli));
    }

    #[test]
    fn only_what_is_available() {
        let value = [("Accept-Encoding", "br, gzip;q=0.1")];
        assert_eq!(with_head(&value, |head| negotiate_coding(head, &[Coding::Gzip])), Some(Coding::Gzip));
        assert_eq!(with_head(&value, |head| negotiate_coding(head, &[])), Some(Coding::Identity));
    }

    #[test]
    fn media_types() {
        let offered = ["text/html", "application/json"];
        for (value, expected) in [
            ("application/json", Some(1)),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", Some(0)),
            ("*/*", Some(0)),
            ("application/*, text/html;q=0.5", Some(1)),
            ("*/*;q=0.9, text/html;q=0.1", Some(1)),
            ("text/*;q=0, */*", Some(1)),
            ("image/png", None),
        ] {
            let chosen = with_head(&[("Accept", value)], |head| negotiate_media_type(head, &offered));
            assert_eq!(chosen, expected, "{value}");
        }
        assert_eq!(with_head(&[], |head| negotiate_media_type(head, &offered)), Some(0));
    }
}
