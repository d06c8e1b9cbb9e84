use std::fmt;
use std::sync::Arc;

/// A path pattern: segments between slashes, each of them literal or one of these.
///
/// | segment | matches |
/// |---|---|
/// | `@name` | any one segment, captured as a [path parameter](crate::PathParams) |
/// | `*` | any one segment |
/// | `*x`, `x*`, `*x*` | one segment that ends with, starts with, or contains `x` |
/// | `**` | one or more segments; not followed by `*`, `**` or `@name` |
///
/// An asterisk elsewhere (`a*b`) is literal. Segments are compared after percent-decoding, so `%2F` never separates
/// any. An empty segment is a segment: `/a/` is not `/a`, but `/a/*` matches it.
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
        }
    }

    /// Whether it surely matches every path that another pattern matches.
    pub(super) fn covers(&self, other: &Self) -> bool {
        covers(&self.segments, &other.segments)
    }

    /// Whether a path with these decoded segments matches. The segment index of each parameter is put into `captures`.
    ///
    /// The last `**` passed takes one more segment whenever what follows it does not match, which finds every match in
    /// at most segments × pattern steps.
    pub(super) fn matches<'p>(&'p self, path: &[impl AsRef<str>], captures: &mut Vec<(&'p Arc<str>, usize)>) -> bool {
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
                (Some(segment), Some(part)) if segment.matches(part) => {
                    if let Segment::Param(name) = segment {
                        captures.push((name, taken));
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

fn covers(segments: &[Segment], others: &[Segment]) -> bool {
    match (segments.split_first(), others.split_first()) {
        (None, None) => true,
        (None, Some(_)) | (Some(_), None) => false,
        // It takes this segment, or all of these, and perhaps more.
        (Some((Segment::Many, rest)), Some((_, behind))) => covers(rest, behind) || covers(segments, behind),
        (Some((segment, rest)), Some((other, behind))) => segment.covers(other) && covers(rest, behind),
    }
}

impl Segment {
    /// Whether it matches every segment that another one matches; not called for `**`.
    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Many) => false,
            (Self::Any | Self::Param(_) | Self::Many, _) => true,
            (_, Self::Any | Self::Param(_)) => false,
            (Self::Literal(_), Self::Literal(text)) => self.matches(text),
            (Self::Prefix(_), Self::Literal(text) | Self::Prefix(text)) => self.matches(text),
            (Self::Suffix(_), Self::Literal(text) | Self::Suffix(text)) => self.matches(text),
            (Self::Infix(_), Self::Literal(text) | Self::Prefix(text) | Self::Suffix(text) | Self::Infix(text)) => {
                self.matches(text)
            }
            (Self::Literal(_) | Self::Prefix(_) | Self::Suffix(_), _) => false,
        }
    }

    fn parse(text: &str) -> Self {
        match text {
            "*" => Self::Any,
            "**" => Self::Many,
            _ => match (text.strip_prefix('@'), text.strip_prefix('*'), text.strip_suffix('*')) {
                (Some(name), ..) if !name.is_empty() => Self::Param(name.into()),
                (_, Some(rest), Some(_)) => Self::Infix(rest.strip_suffix('*').unwrap_or(rest).into()),
                (_, Some(suffix), None) => Self::Suffix(suffix.into()),
                (_, None, Some(prefix)) => Self::Prefix(prefix.into()),
                _ => Self::Literal(text.into()),
            },
        }
    }

    /// Whether one segment of a path matches; not called for `**`.
    fn matches(&self, part: &str) -> bool {
        match self {
            Self::Literal(text) => **text == *part,
            Self::Prefix(prefix) => part.starts_with(&**prefix),
            Self::Suffix(suffix) => part.ends_with(&**suffix),
            Self::Infix(infix) => part.contains(&**infix),
            Self::Any | Self::Param(_) | Self::Many => true,
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
        match after.split_first() {
            Some((_, next)) => rest = next,
            None => return Ok(()),
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
