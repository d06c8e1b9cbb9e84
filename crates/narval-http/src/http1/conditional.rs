//! Conditional requests (RFC 9110 section 13): whether to proceed, or to answer 304 or 412.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE};
use http::{HeaderValue, Method};

use super::date;
use super::head_parts::HeadRef;

/// An entity tag (RFC 9110 section 8.8.3).
#[derive(Clone, Copy, Debug)]
pub struct EntityTag<'a> {
    weak: bool,
    /// The text between the quotes.
    opaque: &'a [u8],
}

impl<'a> EntityTag<'a> {
    /// Parses `"…"` or `W/"…"`, and nothing else.
    pub fn parse(value: &'a [u8]) -> Option<Self> {
        let (tag, rest) = Self::read(value)?;
        rest.is_empty().then_some(tag)
    }

    /// Parses a tag at the start of `text`; also returns the rest.
    fn read(text: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (weak, quoted) = match text.strip_prefix(b"W/") {
            Some(quoted) => (true, quoted),
            None => (false, text),
        };
        let inner = quoted.strip_prefix(b"\"")?;
        let end = memchr::memchr(b'"', inner)?;
        let opaque = inner.get(..end)?;
        let valid = opaque.iter().all(|&byte| byte > 0x20 && byte != 0x7f);
        valid.then_some((Self { weak, opaque }, inner.get(end + 1..)?))
    }

    /// Strong comparison: equal and both strong.
    pub fn strong_eq(self, other: Self) -> bool {
        !self.weak && !other.weak && self.opaque == other.opaque
    }

    /// Weak comparison: equal, whether weak or strong.
    pub fn weak_eq(self, other: Self) -> bool {
        self.opaque == other.opaque
    }
}

/// The validators of the current representation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Validators<'a> {
    /// Its entity tag, as in the `ETag` field.
    pub etag: Option<&'a HeaderValue>,
    /// When it was last modified; only whole seconds count.
    pub last_modified: Option<SystemTime>,
}

impl Validators<'_> {
    fn tag(&self) -> Option<EntityTag<'_>> {
        EntityTag::parse(self.etag?.as_bytes())
    }

    fn modified_second(&self) -> Option<u64> {
        self.last_modified.map(second)
    }
}

/// The outcome of a request's conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Process the request.
    Proceed,
    /// Answer 304 with the fields that a 200 would have had (`ETag`, `Cache-Control`, …), without a body.
    NotModified,
    /// Answer 412, and do nothing else.
    PreconditionFailed,
}

/// Evaluates the conditions of a request in the order of RFC 9110 section 13.2.2. `current` is `None` if the target has
/// no representation yet (a PUT that would create it).
///
/// ```
/// # use narval_http::{HeadRef, Request, StatusCode, Response, HeaderValue, header};
/// use narval_http::semantics::conditional::{Outcome, Validators, evaluate};
///
/// fn answer(head: &HeadRef<'_>) -> Response {
///     let etag = HeaderValue::from_static("\"v1\"");
///     let current = Validators { etag: Some(&etag), last_modified: None };
///     match evaluate(head, Some(&current)) {
///         Outcome::Proceed => Response::text(StatusCode::OK, "hello").header(header::ETAG, etag),
///         Outcome::NotModified => Response::new(StatusCode::NOT_MODIFIED).header(header::ETAG, etag),
///         Outcome::PreconditionFailed => Response::new(StatusCode::PRECONDITION_FAILED),
///     }
/// }
/// ```
pub fn evaluate(head: &HeadRef<'_>, current: Option<&Validators<'_>>) -> Outcome {
    if !head.may_have_conditions() {
        return Outcome::Proceed;
    }
    let is_read = *head.method() == Method::GET || *head.method() == Method::HEAD;
    let modified = current.and_then(Validators::modified_second);

    if head.header_bytes(IF_MATCH.as_str()).is_some() {
        if !any_tag(head, IF_MATCH.as_str(), current, EntityTag::strong_eq) {
            return Outcome::PreconditionFailed;
        }
    } else if let (Some(limit), Some(modified)) = (single_date(head, IF_UNMODIFIED_SINCE.as_str()), modified)
        && modified > limit
    {
        return Outcome::PreconditionFailed;
    }

    if head.header_bytes(IF_NONE_MATCH.as_str()).is_some() {
        if any_tag(head, IF_NONE_MATCH.as_str(), current, EntityTag::weak_eq) {
            return if is_read { Outcome::NotModified } else { Outcome::PreconditionFailed };
        }
    } else if is_read
        && let (Some(limit), Some(modified)) = (single_date(head, IF_MODIFIED_SINCE.as_str()), modified)
        && modified <= limit
    {
        return Outcome::NotModified;
    }
    Outcome::Proceed
}

/// Whether the `Range` field applies: there is no `If-Range`, or it matches the current representation (RFC 9110
/// section 13.1.5: strong comparison, or the exact date). A date in the current second is not a strong validator
/// (section 8.8.2.2): there may be another change in that second.
pub fn range_applies(head: &HeadRef<'_>, current: &Validators<'_>) -> bool {
    if head.header_bytes(IF_RANGE.as_str()).is_none() {
        return true;
    }
    let Some(value) = head.header_once(IF_RANGE.as_str()) else { return false };
    match EntityTag::parse(value) {
        Some(tag) => current.tag().is_some_and(|have| have.strong_eq(tag)),
        None => date::parse(value)
            .map(second)
            .is_some_and(|date| current.modified_second() == Some(date) && date < second(SystemTime::now())),
    }
}

/// Whether any entity tag of a list matches. Parsing stops at the first malformed one.
fn any_tag<'a>(
    head: &HeadRef<'a>,
    name: &str,
    current: Option<&'a Validators<'a>>,
    matches: fn(EntityTag<'a>, EntityTag<'a>) -> bool,
) -> bool {
    let Some(current) = current else {
        return false;
    };
    let have = current.tag();
    head.header_all(name).any(|value| {
        let mut rest = value.trim_ascii();
        if rest == b"*" {
            return true;
        }
        loop {
            rest = skip_separators(rest);
            let Some((tag, after)) = EntityTag::read(rest) else {
                return false;
            };
            if have.is_some_and(|have| matches(have, tag)) {
                return true;
            }
            rest = after;
        }
    })
}

fn skip_separators(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| !matches!(byte, b',' | b' ' | b'\t')).unwrap_or(text.len());
    text.get(start..).unwrap_or_default()
}

/// A date field's value in seconds; `None` if it is missing, repeated or malformed (such a field is ignored).
fn single_date(head: &HeadRef<'_>, name: &str) -> Option<u64> {
    date::parse(head.header_once(name)?).map(second)
}

fn second(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::head::{HeadLimits, parse_head};
    use crate::peer::Peer;

    const OLD: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const NEW: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    fn with_head<T>(method: &str, fields: &[(&str, &str)], test: impl FnOnce(&HeadRef<'_>) -> T) -> T {
        let fields: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("{method} / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        let parsed = parse_head(head.as_bytes(), &HeadLimits::default()).expect("well-formed").expect("complete");
        test(&HeadRef::new(head.as_bytes(), &parsed.parts, &Peer::Unix.into()))
    }

    /// The outcome for a representation with the tag `"a"`, modified at [`NOW`] and half a second.
    fn outcome(method: &str, fields: &[(&str, &str)]) -> Outcome {
        let etag = HeaderValue::from_static("\"a\"");
        let last_modified = date::parse(NOW.as_bytes()).map(|time| time + Duration::from_millis(500));
        with_head(method, fields, |head| evaluate(head, Some(&Validators { etag: Some(&etag), last_modified })))
    }

    #[test]
    fn without_conditions_it_goes_on() {
        assert_eq!(outcome("GET", &[]), Outcome::Proceed);
    }

    #[test]
    fn if_none_match_compares_weakly() {
        for (value, expected) in [
            ("\"a\"", Outcome::NotModified),
            ("W/\"a\"", Outcome::NotModified),
            ("\"b\", \"a\"", Outcome::NotModified),
            ("\"b\",W/\"a\" ", Outcome::NotModified),
            ("*", Outcome::NotModified),
            ("\"b\"", Outcome::Proceed),
            ("\"A\"", Outcome::Proceed),
            ("a", Outcome::Proceed),
            ("\"a", Outcome::Proceed),
            ("", Outcome::Proceed),
            ("\"b, \"a\"", Outcome::Proceed),
        ] {
            assert_eq!(outcome("GET", &[("If-None-Match", value)]), expected, "{value}");
        }
        assert_eq!(outcome("HEAD", &[("If-None-Match", "*")]), Outcome::NotModified);
        assert_eq!(outcome("PUT", &[("If-None-Match", "*")]), Outcome::PreconditionFailed);
        assert_eq!(outcome("GET", &[("If-None-Match", "\"b\""), ("If-None-Match", "\"a\"")]), Outcome::NotModified);
    }

    #[test]
    fn if_match_compares_strongly() {
        for (value, expected) in [
            ("\"a\"", Outcome::Proceed),
            ("*", Outcome::Proceed),
            ("\"b\", \"a\"", Outcome::Proceed),
            ("W/\"a\"", Outcome::PreconditionFailed),
            ("\"b\"", Outcome::PreconditionFailed),
            ("x", Outcome::PreconditionFailed),
        ] {
            assert_eq!(outcome("PUT", &[("If-Match", value)]), expected, "{value}");
        }
    }

    #[test]
    fn if_modified_since_is_for_reads() {
        assert_eq!(outcome("GET", &[("If-Modified-Since", OLD)]), Outcome::Proceed);
        assert_eq!(outcome("GET", &[("If-Modified-Since", NOW)]), Outcome::NotModified);
        assert_eq!(outcome("HEAD", &[("If-Modified-Since", NEW)]), Outcome::NotModified);
        assert_eq!(outcome("POST", &[("If-Modified-Since", NEW)]), Outcome::Proceed);
        assert_eq!(outcome("GET", &[("If-Modified-Since", "tomorrow")]), Outcome::Proceed);
        assert_eq!(outcome("GET", &[("If-Modified-Since", NEW), ("If-Modified-Since", NEW)]), Outcome::Proceed);
    }

    #[test]
    fn if_unmodified_since() {
        assert_eq!(outcome("PUT", &[("If-Unmodified-Since", OLD)]), Outcome::PreconditionFailed);
        assert_eq!(outcome("PUT", &[("If-Unmodified-Since", NOW)]), Outcome::Proceed);
        assert_eq!(outcome("PUT", &[("If-Unmodified-Since", "x")]), Outcome::Proceed);
    }

    #[test]
    fn tags_take_precedence_over_dates() {
        assert_eq!(outcome("GET", &[("If-None-Match", "\"b\""), ("If-Modified-Since", NEW)]), Outcome::Proceed);
        assert_eq!(outcome("PUT", &[("If-Match", "\"a\""), ("If-Unmodified-Since", OLD)]), Outcome::Proceed);
    }

    #[test]
    fn preconditions_come_before_cache_validation() {
        let fields = [("If-Match", "\"b\""), ("If-None-Match", "\"a\"")];
        assert_eq!(outcome("GET", &fields), Outcome::PreconditionFailed);
        let fields = [("If-Unmodified-Since", OLD), ("If-None-Match", "\"a\"")];
        assert_eq!(outcome("GET", &fields), Outcome::PreconditionFailed);
    }

    #[test]
    fn without_a_representation_only_if_match_fails() {
        let none = |fields: &[(&str, &str)]| with_head("PUT", fields, |head| evaluate(head, None));
        assert_eq!(none(&[("If-None-Match", "*")]), Outcome::Proceed);
        assert_eq!(none(&[("If-Match", "*")]), Outcome::PreconditionFailed);
        assert_eq!(none(&[("If-Unmodified-Since", OLD)]), Outcome::Proceed);
    }

    #[test]
    fn if_range_wants_the_very_same_representation() {
        let applies = |etag: &'static str, fields: &[(&str, &str)]| {
            let etag = HeaderValue::from_static(etag);
            let validators = Validators { etag: Some(&etag), last_modified: date::parse(NOW.as_bytes()) };
            with_head("GET", fields, |head| range_applies(head, &validators))
        };
        assert!(applies("\"a\"", &[]));
        assert!(applies("\"a\"", &[("If-Range", "\"a\"")]));
        assert!(!applies("\"a\"", &[("If-Range", "\"b\"")]));
        assert!(!applies("\"a\"", &[("If-Range", "W/\"a\"")]));
        assert!(!applies("W/\"a\"", &[("If-Range", "W/\"a\"")]));
        assert!(applies("\"a\"", &[("If-Range", NOW)]));
        assert!(!applies("\"a\"", &[("If-Range", OLD)]));
        assert!(!applies("\"a\"", &[("If-Range", NEW)]));
        assert!(!applies("\"a\"", &[("If-Range", "x")]));
        assert!(!applies("\"a\"", &[("If-Range", "\"a\""), ("If-Range", "\"a\"")]));
    }

    #[test]
    fn a_date_of_this_second_is_not_strong() {
        // A time in the future stands for now: no clock can pass it during the test.
        for (age, strong) in [(-3600, false), (3600, true)] {
            let time = UNIX_EPOCH + Duration::from_secs(second(SystemTime::now()).saturating_add_signed(-age));
            let validators = Validators { etag: None, last_modified: Some(time) };
            let text = httpdate::fmt_http_date(time);
            assert_eq!(with_head("GET", &[("If-Range", &text)], |head| range_applies(head, &validators)), strong);
        }
    }
}
