//! What a request says about deltas: the NAR that the client has (RFC 9842, sections 2.2 and 2.3), and how long it waits for one that
//! is not ready (`Prefer: wait=SECONDS`, RFC 7240, section 4.3).

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use narval_http::HeadRef;
use narval_nix::{HashPart, NarHash, Sha256};

/// The content coding.
const CODING: &[u8] = b"dcz";
const AVAILABLE_DICTIONARY: &str = "available-dictionary";
/// How long a request waits for a delta if it does not say.
const WAIT: Duration = Duration::from_secs(5);
/// The longest time that a request waits for a delta. It holds a worker, and clients and proxies give up after 30 s without data.
const WAIT_MAX: Duration = Duration::from_secs(25);

/// The base of a delta: the client has a path with this hash part and NAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeltaRequest {
    pub(crate) base: HashPart,
    pub(crate) base_hash: NarHash,
    /// How long the client waits for the delta.
    pub(crate) patience: Duration,
}

impl DeltaRequest {
    /// Returns the base if the client accepts a delta and names a base. Fields that do not parse are ignored, as RFC 9651 says.
    pub(crate) fn of(head: &HeadRef<'_>) -> Option<Self> {
        let hash = head.header_bytes(AVAILABLE_DICTIONARY)?;
        let base_hash = byte_sequence(hash)?;
        let base = HashPart::parse(string(head.header_bytes("dictionary-id")?)?).ok()?;
        let accepts = head.header_all("accept-encoding").flat_map(|value| value.split(|byte| *byte == b','));
        let patience = head.header_all("prefer").flat_map(|value| value.split(|byte| *byte == b',')).find_map(wait);
        let patience = patience.unwrap_or(WAIT).min(WAIT_MAX);
        accepts.into_iter().any(names_coding).then_some(Self { base, base_hash, patience })
    }

    /// Whether a request may be for a delta: nothing else is parsed.
    pub(crate) fn is_possible(head: &HeadRef<'_>) -> bool {
        head.header_bytes(AVAILABLE_DICTIONARY).is_some()
    }
}

/// Whether an element of `Accept-Encoding` names the coding, with a quality other than 0.
fn names_coding(element: &[u8]) -> bool {
    let mut parts = element.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let is_named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(CODING));
    let quality = parts.find_map(|part| part.strip_prefix(b"q=").or_else(|| part.strip_prefix(b"Q=")));
    is_named && quality.is_none_or(|quality| quality.iter().any(|digit| (b'1'..=b'9').contains(digit)))
}

/// The seconds of the preference `wait=SECONDS`.
fn wait(preference: &[u8]) -> Option<Duration> {
    let (name, value) = str::from_utf8(preference.split(|byte| *byte == b';').next()?).ok()?.split_once('=')?;
    let seconds = value.trim().trim_matches('"').parse().ok()?;
    name.trim().eq_ignore_ascii_case("wait").then_some(Duration::from_secs(seconds))
}

/// The SHA-256 in a structured field: `:base64:`.
fn byte_sequence(value: &[u8]) -> Option<Sha256> {
    let text = value.trim_ascii().strip_prefix(b":")?.strip_suffix(b":")?;
    let bytes: [u8; 32] = STANDARD.decode(text).ok()?.try_into().ok()?;
    Some(Sha256::from_bytes(bytes))
}

/// The text in a structured field: `"text"`. No hash part contains an escaped character.
fn string(value: &[u8]) -> Option<&[u8]> {
    value.trim_ascii().strip_prefix(b"\"")?.strip_suffix(b"\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_parse_or_are_ignored() {
        let hash = Sha256::of(b"nar");
        let text = format!(":{}:", STANDARD.encode(hash.as_bytes()));
        assert_eq!(byte_sequence(text.as_bytes()), Some(hash));
        assert_eq!(byte_sequence(format!(" {text} ").as_bytes()), Some(hash));
        for wrong in [&text[1..], &text[..10], ":AAAA:", "::", ":", ""] {
            assert_eq!(byte_sequence(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(string(b"\"00bgd045z0d4icpbc2yyz4gx48ak44la\""), Some(&b"00bgd045z0d4icpbc2yyz4gx48ak44la"[..]));
        assert_eq!((string(b"\""), string(b"x"), string(b"")), (None, None, None));
        for (element, named) in [
            ("dcz", true),
            (" DCZ;q=0.5", true),
            ("dcz;q=0", false),
            ("dcz; q=0.0", false),
            ("zstd", false),
            ("", false),
        ] {
            assert_eq!(names_coding(element.as_bytes()), named, "{element}");
        }
        for (preference, seconds) in [
            ("wait=10", Some(10)),
            (" Wait = \"0\" ; foo=bar", Some(0)),
            ("wait=-1", None),
            ("wait", None),
            ("handling=lenient", None),
            ("wait=99999999999999999999", None),
        ] {
            assert_eq!(wait(preference.as_bytes()), seconds.map(Duration::from_secs), "{preference}");
        }
    }
}
