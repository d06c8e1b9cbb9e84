use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A path pattern: segments between slashes, each of them literal or one of these.
///
/// | segment | matches |
/// |---|---|
/// | `@name` | any one segment but an empty one, captured as a [path parameter](crate::PathParams) |
/// | `@name..` | the rest of the path, captured: one or more segments, of which the first is not empty; the last of a pattern |
/// | `*` | any one segment |
/// | `*x`, `x*`, `*x*` | one segment that ends with, starts with, or contains `x` |
/// | `**` | one or more segments; not followed by `*`, `**` or `@name` |
///
/// An asterisk elsewhere (`a*b`) is literal. Segments are compared after percent-decoding, so `%2F` never separates
/// any. An empty segment is a segment: `/a/` is not `/a`, but `/a/*` matches it.
///
/// Of two patterns that match a path, the more precise one answers: at the first segment where they differ, a literal comes
/// before `x*` and `*x`, then `*x*` (in each case a longer `x` first), then `@name`, `*`, and at last `@name..` and `**`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(Box<str>),
    Prefix(Box<str>),
    Suffix(Box<str>),
    Infix(Box<str>),
    Any,
    Param(Arc<str>),
    Many,
    Rest(Arc<str>),
}

/// Segments of a path that a parameter took.
pub(super) struct Capture<'p> {
    pub(super) name: &'p Arc<str>,
    pub(super) segments: Range<usize>,
}

/// Why a pattern is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// It is empty.
    #[error("a route pattern cannot be empty")]
    Empty,
    /// It does not start with a slash.
    #[error("a route pattern must start with a slash")]
    NoLeadingSlash,
    /// `**` is followed by `*`, `**` or `@name`, which would be ambiguous.
    #[error("** cannot be followed by *, ** or @name")]
    WildcardAfterMany,
    /// `@name..` is not the last segment.
    #[error("@name.. must be the last segment")]
    RestNotLast,
    /// Two parameters have the same name.
    #[error("two parameters have the same name")]
    NameTwice,
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// See [`PatternError`].
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        check(text.as_bytes())?;
        Ok(Self { segments: text.split('/').skip(1).map(Segment::parse).collect() })
    }

    /// Checks a literal pattern at compile time; use it through [`route!`](crate::route).
    #[doc(hidden)]
    #[expect(clippy::panic, reason = "in a const block, where a panic is a compiler error")]
    pub const fn checked(text: &'static str) -> &'static str {
        match check(text.as_bytes()) {
            Ok(()) => text,
            Err(PatternError::Empty) => panic!("a route pattern cannot be empty"),
            Err(PatternError::NoLeadingSlash) => panic!("a route pattern must start with a slash"),
            Err(PatternError::WildcardAfterMany) => panic!("** cannot be followed by *, ** or @name"),
            Err(PatternError::RestNotLast) => panic!("@name.. must be the last segment"),
            Err(PatternError::NameTwice) => panic!("two parameters have the same name"),
        }
    }

    /// The pattern of all paths.
    pub(super) fn everything() -> Self {
        Self { segments: vec![Segment::Many] }
    }

    /// The more precise pattern is less.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        let precision = |pattern: &Self| pattern.segments.iter().map(Segment::precision).collect::<Vec<_>>();
        let (ours, theirs) = (precision(self), precision(other));
        let difference = ours.iter().zip(&theirs).map(|(ours, theirs)| ours.cmp(theirs)).find(|order| order.is_ne());
        difference.unwrap_or_else(|| theirs.len().cmp(&ours.len()))
    }

    /// Whether they are the same but for the names of parameters.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let is_like = |(ours, theirs): (&Segment, &Segment)| ours == theirs || ours.is_alike(theirs);
        self.segments.len() == other.segments.len() && self.segments.iter().zip(&other.segments).all(is_like)
    }

    /// Whether a path with these decoded segments matches. What each parameter takes is put into `captures`.
    ///
    /// The last `**` passed takes one more segment whenever what follows it does not match, which finds every match in
    /// at most segments × pattern steps.
    pub(super) fn matches<'p>(&'p self, path: &[impl AsRef<str>], captures: &mut Vec<Capture<'p>>) -> bool {
        captures.clear();
        let (mut at, mut taken) = (0, 0);
        // After the last `**`: the pattern's next segment, the path's next segment, the captures before it.
        let mut retry: Option<(usize, usize, usize)> = None;
        loop {
            let segment = self.segments.get(at);
            let part = path.get(taken).map(AsRef::as_ref);
            match (segment, part) {
                (None, None) => return true,
                (Some(Segment::Many), Some(_)) => retry = Some((at + 1, taken + 1, captures.len())),
                (Some(Segment::Rest(name)), Some(part)) if !part.is_empty() => {
                    captures.push(Capture { name, segments: taken..path.len() });
                    return true;
                }
                (Some(segment), Some(part)) if segment.matches(part) => {
                    if let Segment::Param(name) = segment {
                        captures.push(Capture { name, segments: taken..taken + 1 });
                    }
                }
                (Some(_), None) => return false,
                _ => {
                    let Some((behind, next, kept)) = retry.as_mut() else { return false };
                    *next += 1;
                    captures.truncate(*kept);
                    (at, taken) = (*behind, *next);
                    continue;
                }
            }
            at += 1;
            taken += 1;
        }
    }
}

impl Segment {
    fn parse(text: &str) -> Self {
        match text {
            "*" => Self::Any,
            "**" => Self::Many,
            _ => match (text.strip_prefix('@'), text.strip_prefix('*'), text.strip_suffix('*')) {
                (Some(name), ..) if !name.is_empty() => match name.strip_suffix("..") {
                    Some(rest) if !rest.is_empty() => Self::Rest(rest.into()),
                    _ => Self::Param(name.into()),
                },
                (_, Some(rest), Some(_)) => Self::Infix(rest.strip_suffix('*').unwrap_or(rest).into()),
                (_, Some(suffix), None) => Self::Suffix(suffix.into()),
                (_, None, Some(prefix)) => Self::Prefix(prefix.into()),
                _ => Self::Literal(text.into()),
            },
        }
    }

    /// Less is more precise.
    fn precision(&self) -> (u8, Reverse<usize>) {
        match self {
            Self::Literal(_) => (0, Reverse(0)),
            Self::Prefix(text) | Self::Suffix(text) => (1, Reverse(text.len())),
            Self::Infix(text) => (2, Reverse(text.len())),
            Self::Param(_) => (3, Reverse(0)),
            Self::Any => (4, Reverse(0)),
            Self::Many | Self::Rest(_) => (5, Reverse(0)),
        }
    }

    /// Whether they match the same, under whatever name.
    fn is_alike(&self, other: &Self) -> bool {
        matches!(
            (self, other),
            (Self::Param(_), Self::Param(_)) | (Self::Many | Self::Rest(_), Self::Many | Self::Rest(_))
        )
    }

    /// Whether one segment of a path matches; not called for the last two.
    fn matches(&self, part: &str) -> bool {
        match self {
            Self::Literal(text) => **text == *part,
            Self::Prefix(prefix) => part.starts_with(&**prefix),
            Self::Suffix(suffix) => part.ends_with(&**suffix),
            Self::Infix(infix) => part.contains(&**infix),
            Self::Param(_) | Self::Rest(_) => !part.is_empty(),
            Self::Any | Self::Many => true,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            match segment {
                Segment::Literal(text) => write!(f, "/{text}")?,
                Segment::Prefix(text) => write!(f, "/{text}*")?,
                Segment::Suffix(text) => write!(f, "/*{text}")?,
                Segment::Infix(text) => write!(f, "/*{text}*")?,
                Segment::Any => f.write_str("/*")?,
                Segment::Param(name) => write!(f, "/@{name}")?,
                Segment::Many => f.write_str("/**")?,
                Segment::Rest(name) => write!(f, "/@{name}..")?,
            }
        }
        Ok(())
    }
}

/// The rules, as a function that can run at compile time.
const fn check(text: &[u8]) -> Result<(), PatternError> {
    let Some((first, mut rest)) = text.split_first() else {
        return Err(PatternError::Empty);
    };
    if *first != b'/' {
        return Err(PatternError::NoLeadingSlash);
    }
    let mut behind_many = false;
    loop {
        let length = segment_length(rest);
        let (segment, after) = rest.split_at(length);
        let is_wildcard = matches!(segment, b"*" | b"**" | [b'@', _, ..]);
        if behind_many && is_wildcard {
            return Err(PatternError::WildcardAfterMany);
        }
        behind_many = matches!(segment, b"**");
        if let Some((name, is_rest)) = name_of(segment) {
            if is_rest && !after.is_empty() {
                return Err(PatternError::RestNotLast);
            }
            if has_name(after, name) {
                return Err(PatternError::NameTwice);
            }
        }
        match after.split_first() {
            Some((_, next)) => rest = next,
            None => return Ok(()),
        }
    }
}

/// The name of a parameter, and whether it takes the rest of the path.
const fn name_of(segment: &[u8]) -> Option<(&[u8], bool)> {
    match segment {
        [b'@', name @ .., b'.', b'.'] if !name.is_empty() => Some((name, true)),
        [b'@', name @ ..] if !name.is_empty() => Some((name, false)),
        _ => None,
    }
}

/// Whether a parameter has this name, in segments that each follow a slash.
const fn has_name(mut rest: &[u8], name: &[u8]) -> bool {
    while let Some((_, next)) = rest.split_first() {
        let (segment, after) = next.split_at(segment_length(next));
        if let Some((other, _)) = name_of(segment)
            && is_equal(other, name)
        {
            return true;
        }
        rest = after;
    }
    false
}

const fn is_equal(mut one: &[u8], mut other: &[u8]) -> bool {
    loop {
        match (one.split_first(), other.split_first()) {
            (None, None) => return true,
            (Some((a, rest)), Some((b, others))) if *a == *b => (one, other) = (rest, others),
            _ => return false,
        }
    }
}

const fn segment_length(text: &[u8]) -> usize {
    let (mut length, mut rest) = (0, text);
    while let Some((byte, next)) = rest.split_first() {
        if *byte == b'/' {
            break;
        }
        length += 1;
        rest = next;
    }
    length
}

/// A route pattern that is checked at compile time.
///
/// ```
/// use narval_http::{Router, route};
///
/// let router = Router::new().get(route!("/objects/@id"), || "an object\n");
/// ```
///
/// ```compile_fail
/// narval_http::route!("/**/*");
/// ```
#[macro_export]
macro_rules! route {
    ($pattern:literal) => {
        const { $crate::Pattern::checked($pattern) }
    };
}
