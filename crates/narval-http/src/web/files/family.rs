//! Which names are versions of the same file: build tools put a hash of the contents into the name (`app.3f2a9c.js`).

/// The shortest hash, if it is hexadecimal.
const HEX_LEN_MIN: usize = 4;
/// The shortest hash of other letters, and the length of those after a dash (`index-BxY12abc.js`).
const OTHER_LEN_MIN: usize = 8;
/// The longest hash.
const LEN_MAX: usize = 64;

/// What the names of all versions of a file have before and after the hash; `None` if the name has none, and all versions
/// have the same name.
///
/// ```
/// use narval_http::files::family;
///
/// assert_eq!((family("app.3f2a9c.js"), family("app.js")), (Some(("app.", ".js")), None));
/// ```
pub fn family(name: &str) -> Option<(&str, &str)> {
    let stem_end = name.find('.').filter(|&dot| dot > 0)?;
    // The last part between two dots that is a hash.
    let dots: Vec<usize> = name.match_indices('.').map(|(at, _)| at).collect();
    for (&from, &to) in dots.iter().zip(dots.iter().skip(1)).rev() {
        if name.get(from + 1..to).is_some_and(is_hash) {
            return Some((name.get(..=from)?, name.get(to..)?));
        }
    }
    // The end of the part before the first dot. Hashes in base64url may contain a dash, so the usual length comes first.
    let stem = name.get(..stem_end)?;
    let usual = stem.len().checked_sub(OTHER_LEN_MIN + 1).filter(|&at| at > 0);
    let dash = usual.filter(|&at| matches!(stem.as_bytes().get(at), Some(b'-' | b'_')));
    let dash = dash.or_else(|| stem.rfind('-').filter(|&at| at > 0))?;
    let is_family = stem.get(dash + 1..).is_some_and(is_hash);
    is_family.then_some((name.get(..=dash)?, name.get(stem_end..)?))
}

/// Whether a part of a name looks like a hash. A word is not one: it has no digit, and no capital after a small letter.
fn is_hash(part: &str) -> bool {
    let all = |is: fn(&u8) -> bool| part.bytes().all(|byte| is(&byte));
    let any = |is: fn(&u8) -> bool| part.bytes().any(|byte| is(&byte));
    let has_digit = any(u8::is_ascii_digit);
    let is_mixed = any(u8::is_ascii_lowercase) && any(u8::is_ascii_uppercase);
    let is_hex = part.len() >= HEX_LEN_MIN && all(u8::is_ascii_hexdigit) && has_digit;
    let is_other = part.len() >= OTHER_LEN_MIN
        && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        && (has_digit || is_mixed);
    part.len() <= LEN_MAX && (is_hex || is_other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_a_hash() {
        for (name, expected) in [
            ("app.3f2a.js", Some(("app.", ".js"))),
            ("app.3f2a9c1b.js.map", Some(("app.", ".js.map"))),
            ("vendor.main.0123456789abcdef0123.css", Some(("vendor.main.", ".css"))),
            ("app.3f2a.chunk.js", Some(("app.", ".chunk.js"))),
            ("index-BxY12abc.js", Some(("index-", ".js"))),
            ("index-B_x-1abc.js", Some(("index-", ".js"))),
            ("index-DiwrgTda.css", Some(("index-", ".css"))),
            ("main-3f2a9c.js", Some(("main-", ".js"))),
            ("app.js", None),
            ("bootstrap.min.js", None),
            ("jquery-3.7.1.js", None),
            ("app.production.js", None),
            ("my-component.js", None),
            ("README", None),
            (".3f2a.js", None),
            ("3f2a9c1b.js", None),
            ("a..js", None),
            ("-3f2a9c1b.js", None),
            ("ü.3f2a.é", Some(("ü.", ".é"))),
            ("", None),
        ] {
            assert_eq!(family(name), expected, "{name}");
        }
    }
}
