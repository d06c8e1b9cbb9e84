//! Paths and queries of request targets: decoded exactly once, checked before use.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::http1::ProtoError;

/// Decodes the percent-encoded bytes of `text` (RFC 3986 section 2.1), once. Borrows if there are none.
///
/// # Errors
/// 400 for a percent sign that is not followed by two hex digits.
pub fn percent_decode(text: &str) -> Result<Cow<'_, [u8]>, ProtoError> {
    if !text.contains('%') {
        return Ok(Cow::Borrowed(text.as_bytes()));
    }
    let complete = text
        .split('%')
        .skip(1)
        .all(|after| matches!(after.as_bytes(), [a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit()));
    if !complete {
        return Err(ProtoError::bad_request("a percent sign in the path is not followed by two hex digits"));
    }
    Ok(percent_encoding::percent_decode_str(text).into())
}

/// Like [`percent_decode`], for text.
///
/// # Errors
/// 400, also for bytes that are not UTF-8.
pub fn percent_decode_text(text: &str) -> Result<Cow<'_, str>, ProtoError> {
    let not_utf8 = ProtoError::bad_request("the path is not UTF-8");
    match percent_decode(text)? {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| not_utf8),
        Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).map_err(|_| not_utf8),
    }
}

/// The path of a request, as a path below some folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePath {
    relative: PathBuf,
    /// Whether the request's path ends with a slash, and so names a folder.
    pub names_folder: bool,
}

impl FilePath {
    /// Decodes `path`, the percent-encoded path of a request target, segment by segment.
    ///
    /// A segment that could lead elsewhere is rejected, not resolved: `.`, `..`, and any that contains a NUL or an
    /// encoded slash. Empty segments (`//`) are skipped.
    ///
    /// # Errors
    /// 400 with the rule that is broken.
    ///
    /// ```
    /// use narval_http::semantics::path::FilePath;
    ///
    /// assert_eq!(FilePath::decode("/css/a%20b.css")?.relative(), "css/a b.css");
    /// assert!(FilePath::decode("/%2e%2e/etc/passwd").is_err());
    /// # Ok::<(), narval_http::semantics::ProtoError>(())
    /// ```
    pub fn decode(path: &str) -> Result<Self, ProtoError> {
        let mut relative = Vec::with_capacity(path.len());
        for segment in path.split('/').filter(|segment| !segment.is_empty()) {
            let segment = percent_decode(segment)?;
            match segment.as_ref() {
                b"." | b".." => return Err(ProtoError::bad_request("the path has a . or .. segment")),
                bytes if bytes.contains(&0) => return Err(ProtoError::bad_request("the path holds a NUL")),
                bytes if bytes.contains(&b'/') => {
                    return Err(ProtoError::bad_request("the path holds an encoded slash"));
                }
                bytes => {
                    if !relative.is_empty() {
                        relative.push(b'/');
                    }
                    relative.extend_from_slice(bytes);
                }
            }
        }
        Ok(Self { relative: OsString::from_vec(relative).into(), names_folder: path.ends_with('/') })
    }

    /// The path, relative, without `.` and `..`; empty for `/`.
    pub fn relative(&self) -> &Path {
        &self.relative
    }
}

/// The name-value pairs of a query or a form (`application/x-www-form-urlencoded`), decoded, in order. A name without
/// `=` has an empty value; bytes that are not UTF-8 are replaced by U+FFFD.
///
/// ```
/// use narval_http::semantics::path::query_pairs;
///
/// let pairs: Vec<_> = query_pairs("q=two+words&tag=a%26b&flag").collect();
/// assert_eq!(pairs, [("q".into(), "two words".into()), ("tag".into(), "a&b".into()), ("flag".into(), "".into())]);
/// ```
pub fn query_pairs(query: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    form_urlencoded::parse(query.as_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn decodes_exactly_once() {
        assert_eq!(percent_decode("/a").expect("fine").as_ref(), b"/a");
        assert_eq!(percent_decode("a%20b%2F%ff").expect("fine").as_ref(), b"a b/\xff");
        assert_eq!(percent_decode("%252e").expect("fine").as_ref(), b"%2e");
        assert_eq!(percent_decode("a+b").expect("fine").as_ref(), b"a+b");
    }

    #[test]
    fn refuses_malformed_percent_encoding() {
        for bad in ["%", "a%", "%2", "%zz", "%%20", "%2%20", "% 20"] {
            assert!(percent_decode(bad).is_err(), "{bad}");
        }
        assert!(percent_decode_text("%ff").is_err());
        assert_eq!(percent_decode_text("%c3%a9").expect("UTF-8"), "é");
    }

    #[test]
    fn file_paths() {
        let path = |path| FilePath::decode(path).expect("fine");
        assert_eq!(path("/").relative(), Path::new(""));
        assert!(path("/").names_folder);
        assert_eq!(path("/a/b").relative(), Path::new("a/b"));
        assert!(!path("/a/b").names_folder && path("/a/b/").names_folder);
        assert_eq!(path("//a///b/").relative(), Path::new("a/b"));
        assert_eq!(path("/%61/...").relative(), Path::new("a/..."));
        assert_eq!(path("/%ff").relative().as_os_str().as_encoded_bytes(), b"\xff");
    }

    #[test]
    fn file_paths_that_could_lead_elsewhere() {
        for bad in [
            "/..",
            "/../x",
            "/a/../b",
            "/a/..",
            "/.",
            "/a/./b",
            "/%2e%2e/x",
            "/.%2E/x",
            "/%2e",
            "/a%00b",
            "/a%2fb",
            "/..%2f..%2fx",
            "/%2F",
            "/%zz",
        ] {
            assert!(FilePath::decode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn query_pairs_are_lenient() {
        let pairs = |query| query_pairs(query).map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>();
        assert_eq!(pairs(""), [""; 0]);
        assert_eq!(pairs("&&a=1&&b"), ["a=1", "b="]);
        assert_eq!(pairs("a=%zz&b=%ff"), ["a=%zz", "b=\u{fffd}"]);
        assert_eq!(pairs("a=b=c"), ["a=b=c"]);
    }

    proptest! {
        #[test]
        fn file_paths_stay_below(path in "(/|%2e|%2f|%00|\\.|[a-z%]|%5c){0,20}") {
            if let Ok(path) = FilePath::decode(&path) {
                prop_assert!(path.relative().components().all(|part| matches!(part, std::path::Component::Normal(_))));
            }
        }
    }
}
