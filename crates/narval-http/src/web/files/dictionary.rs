//! Compression Dictionary Transport (RFC 9842): which previous version of a file a client has, whether a delta from it
//! may be sent, and where a response is a dictionary for later ones.

use std::fmt::Write;
use std::path::{Component, Path};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;

use super::SiteOptions;
use super::family::family;
use super::folder::Stamp;
use crate::http1::accept::Coding;
use crate::http1::head_parts::HeadRef;
use crate::peer::Peer;

/// The SHA-256 of a dictionary: of a previous version of a file.
pub(super) type DictionaryHash = [u8; 32];

/// The magic number of `dcz` (RFC 9842 section 5): a zstd frame that decoders skip, which has the hash.
const DCZ_MAGIC: [u8; 8] = [0x5e, 0x2a, 0x4d, 0x18, 0x20, 0, 0, 0];
/// The length of the header: the magic number and the hash.
pub(super) const DCZ_HEADER_LEN: usize = DCZ_MAGIC.len() + size_of::<DictionaryHash>();
/// The length of an `Available-Dictionary` field: 44 characters of base64 between colons.
const FIELD_LEN: usize = 46;
/// The hexadecimal digits of a dictionary's hash in an entity tag.
const TAG_DIGITS: usize = 16;

/// The header of a `dcz` delta.
pub(super) fn dcz_header(hash: &DictionaryHash) -> [u8; DCZ_HEADER_LEN] {
    let mut header = [0; DCZ_HEADER_LEN];
    let (magic, rest) = header.split_at_mut(DCZ_MAGIC.len());
    magic.copy_from_slice(&DCZ_MAGIC);
    rest.copy_from_slice(hash);
    header
}

/// What is appended to a file's name for its delta: `.<SHA-256 of the dictionary>.dcz`.
pub fn delta_ending(hash: &[u8; 32]) -> String {
    format!(".{}.dcz", hex(hash))
}

/// Lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The entity tag of a delta: one for each state of the file and each dictionary. It decodes to the same bytes however
/// it was compressed, and has no ranges.
pub(super) fn delta_etag(source: &Stamp, hash: &DictionaryHash) -> HeaderValue {
    let digits = hex(hash);
    let tag = format!("{}{}\"", delta_etag_start(source), digits.get(..TAG_DIGITS).unwrap_or_default());
    HeaderValue::try_from(tag).unwrap_or(HeaderValue::from_static("\"\""))
}

fn delta_etag_start(source: &Stamp) -> String {
    format!("\"{:x}-{:x}-{}-", source.modified_ns(), source.size, Coding::Dcz.name())
}

/// The entity tag in `If-None-Match` of any delta of the file in this state. A browser that got the file as a delta
/// revalidates it with that tag, but then has another dictionary: the file itself.
pub(super) fn delta_etag_named(head: &HeadRef<'_>, source: &Stamp) -> Option<HeaderValue> {
    head.header_bytes("if-none-match")?;
    let start = delta_etag_start(source);
    head.header_all("if-none-match").find_map(|value| {
        let at = memchr::memmem::find(value, start.as_bytes())?;
        let tag = value.get(at..at + start.len() + TAG_DIGITS + 1)?;
        let (digits, end) = tag.get(start.len()..)?.split_at_checked(TAG_DIGITS)?;
        let is_tag = digits.iter().all(u8::is_ascii_hexdigit) && end == b"\"";
        is_tag.then(|| HeaderValue::from_bytes(tag).ok()).flatten()
    })
}

/// The dictionary that the client has, if an answer may be a delta from it.
pub(super) fn dictionary_asked(head: &HeadRef<'_>, is_secure: bool) -> Option<DictionaryHash> {
    // A second field would make it a list, which it is not.
    let value = head.header_once("available-dictionary").filter(|_| head.header_bytes("range").is_none())?;
    let hash = parse_available_dictionary(value)?;
    ((is_secure || is_local(head.peer())) && is_readable(head)).then_some(hash)
}

/// An `Available-Dictionary` field (RFC 9842 section 2.2): a structured byte sequence without parameters (RFC 9651
/// section 3.3.5).
fn parse_available_dictionary(value: &[u8]) -> Option<DictionaryHash> {
    let value = value.trim_ascii();
    let encoded = (value.len() == FIELD_LEN).then_some(value)?.strip_prefix(b":")?.strip_suffix(b":")?;
    STANDARD.decode(encoded).ok()?.try_into().ok()
}

/// Whether the connection does not leave this machine. Behind a proxy on it, HTTPS ends there.
fn is_local(peer: &Peer) -> bool {
    match peer {
        Peer::Tcp(address) => address.ip().to_canonical().is_loopback(),
        Peer::Unix => true,
    }
}

/// Whether the page that asks may read the answer (RFC 9842 section 9.3.3); otherwise its size must not depend on
/// dictionaries. Requests with `cors` are refused in any case: whether they may is not known here.
fn is_readable(head: &HeadRef<'_>) -> bool {
    let field = |name: &str| head.header_bytes(name).map(<[u8]>::trim_ascii);
    match (field("sec-fetch-site"), field("sec-fetch-mode")) {
        (None | Some(b"same-origin"), _) | (_, None) => true,
        (_, Some(mode)) => mode == b"navigate" || mode == b"same-origin",
    }
}

/// The `Use-As-Dictionary` field of a file (RFC 9842 section 2.1): a dictionary for the versions of the same file. `None`
/// if no option asks for it.
pub(super) fn use_as_dictionary(path: &Path, options: &SiteOptions) -> Option<HeaderValue> {
    if !options.dictionaries.iter().any(|glob| glob.matches(path)) {
        return None;
    }
    let mut pattern = String::new();
    let mut components = path.components().peekable();
    while let Some(Component::Normal(name)) = components.next() {
        pattern.push('/');
        let name = name.to_str()?;
        if components.peek().is_some() {
            push_literal(&mut pattern, name);
        } else if !options.index.iter().any(|index| index == name) {
            match family(name) {
                Some((before, after)) => {
                    push_literal(&mut pattern, before);
                    pattern.push('*');
                    push_literal(&mut pattern, after);
                }
                None => push_literal(&mut pattern, name),
            }
        }
    }
    // A structured string (RFC 9651 section 3.3.3). Quotes do not occur in the pattern.
    HeaderValue::try_from(format!("match=\"{}\"", pattern.replace('\\', "\\\\"))).ok()
}

/// Appends a name as it is in the path of a URL, with what has a meaning in a URL pattern escaped.
fn push_literal(pattern: &mut String, name: &str) {
    for &byte in name.as_bytes() {
        match byte {
            b'*' | b'+' | b':' | b'(' | b')' => pattern.extend(['\\', byte.into()]),
            b'"' | b'#' | b'%' | b'<' | b'>' | b'?' | b'\\' | b'^' | b'`' | b'{' | b'}' => percent(pattern, byte),
            0x21..=0x7e => pattern.push(byte.into()),
            _ => percent(pattern, byte),
        }
    }
}

fn percent(pattern: &mut String, byte: u8) {
    // Writing to a string cannot fail.
    let _ = write!(pattern, "%{byte:02X}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::head::{HeadLimits, parse_head};
    use crate::web::files::PathGlob;

    const FIELD: &str = ":N0ptv0cH2dlPi8dSmR3fVTTNkdJlEZcmp4bPxNS6kD8=:";

    fn with_head<T>(fields: &[(&str, &str)], peer: &Peer, test: impl FnOnce(&HeadRef<'_>) -> T) -> T {
        let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let parsed = parse_head(head.as_bytes(), &HeadLimits::default()).unwrap().unwrap();
        test(&HeadRef::new(head.as_bytes(), &parsed.parts, &peer.clone().into()))
    }

    #[test]
    fn only_one_hash_of_32_bytes_is_a_dictionary() {
        let hash = parse_available_dictionary(FIELD.as_bytes()).unwrap();
        assert_eq!(hex(&hash), "374a6dbf4707d9d94f8bc752991ddf5534cd91d265119726a786cfc4d4ba903f");
        assert_eq!(parse_available_dictionary(format!(" {FIELD}\t").as_bytes()), Some(hash));
        for wrong in [
            "",
            ":",
            "::",
            &FIELD[1..],
            &FIELD[..45],
            &FIELD.replace(':', "\""),
            &FIELD.replace("=:", ":"),
            &FIELD.replace("D8=:", "D8E:"),
            &FIELD.replace("N0p", "N_p"),
            &FIELD.replace("D8=", "D9="),
            &format!("{FIELD};a=1"),
            &format!("{FIELD}, {FIELD}"),
            &format!(":{}:", "A".repeat(60_000)),
        ] {
            assert_eq!(parse_available_dictionary(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(parse_available_dictionary(&[0xff; FIELD_LEN]), None);
    }

    #[test]
    fn who_may_have_a_delta() {
        let far = Peer::Tcp("192.0.2.1:4000".parse().unwrap());
        let mapped = Peer::Tcp("[::ffff:127.0.0.1]:4000".parse().unwrap());
        let asked = |fields: &[(&str, &str)], peer: &Peer, is_secure: bool| {
            let fields = [&[("Available-Dictionary", FIELD)], fields].concat();
            with_head(&fields, peer, |head| dictionary_asked(head, is_secure)).is_some()
        };
        assert!(asked(&[], &Peer::Unix, false) && asked(&[], &mapped, false) && asked(&[], &far, true));
        assert!(!asked(&[], &far, false));
        assert!(!asked(&[("Range", "bytes=0-1")], &far, true));
        assert!(!asked(&[("available-dictionary", FIELD)], &far, true), "twice");
        for (site, mode, expected) in [
            ("same-origin", Some("no-cors"), true),
            ("same-origin", Some("cors"), true),
            ("cross-site", None, true),
            ("cross-site", Some("navigate"), true),
            ("same-site", Some("same-origin"), true),
            ("cross-site", Some("no-cors"), false),
            ("same-site", Some("no-cors"), false),
            ("none", Some("no-cors"), false),
            ("cross-site", Some("cors"), false),
            ("", Some(""), false),
        ] {
            let mut fields = vec![("Sec-Fetch-Site", site)];
            fields.extend(mode.map(|mode| ("Sec-Fetch-Mode", mode)));
            assert_eq!(asked(&fields, &far, true), expected, "{site} {mode:?}");
        }
    }

    #[test]
    fn which_paths_a_dictionary_is_for() {
        let options = SiteOptions {
            dictionaries: vec![PathGlob::parse("assets/**").unwrap(), PathGlob::parse("/*.html").unwrap()],
            ..SiteOptions::default()
        };
        for (path, expected) in [
            ("assets/app.3f2a.js", Some(r#"match="/assets/app.*.js""#)),
            ("assets/app.js", Some(r#"match="/assets/app.js""#)),
            ("assets/a b/(x)+%\"é\\.css", Some(r#"match="/assets/a%20b/\\(x\\)\\+%25%22%C3%A9%5C.css""#)),
            ("assets/index.html", Some(r#"match="/assets/""#)),
            ("index.html", Some(r#"match="/""#)),
            ("other.html", Some(r#"match="/other.html""#)),
            ("other.js", None),
            ("sub/assets/app.js", None),
        ] {
            let field = use_as_dictionary(Path::new(path), &options);
            assert_eq!(field.as_ref().map(|value| value.to_str().unwrap()), expected, "{path}");
        }
    }
}
