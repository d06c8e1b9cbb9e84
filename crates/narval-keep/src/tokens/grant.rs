//! Permissions: scopes, and the caches that they apply to.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use globset::{Glob, GlobSet, GlobSetBuilder};
use thiserror::Error;

use crate::{CacheName, Refusal, RefusalKind};

/// The maximum number of caches or patterns of one token.
pub const PATTERNS_MAX: usize = 64;

/// The longest pattern, in bytes.
const PATTERN_LEN_MAX: usize = 128;

/// A permission that a token may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Read a cache that is not public.
    Pull,
    /// Upload.
    Push,
    /// Have the cache sign uploaded paths.
    Sign,
    /// Add and remove pins.
    Pin,
    /// Delete paths.
    Delete,
    /// Replace the contents of a path.
    Replace,
    /// All of these, and managing tokens.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 7] =
        [Self::Pull, Self::Push, Self::Sign, Self::Pin, Self::Delete, Self::Replace, Self::Admin];

    /// The name, as in `narval token create --<name>`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Sign => "sign",
            Self::Pin => "pin",
            Self::Delete => "delete",
            Self::Replace => "replace",
            Self::Admin => "admin",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// An unknown scope.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown scope '{0}' (known: pull, push, sign, pin, delete, replace, admin)")]
pub struct UnknownScope(String);

/// A set of scopes.
///
/// ```
/// use narval_keep::{Scope, Scopes};
/// let scopes: Scopes = "pull,push".parse().unwrap();
/// assert!(scopes.has(Scope::Push) && !scopes.has(Scope::Delete));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Scopes(u8);

impl Scopes {
    /// Whether a scope is among them; [`Scope::Admin`] includes all.
    pub const fn has(self, scope: Scope) -> bool {
        self.0 & (scope.bit() | Scope::Admin.bit()) != 0
    }

    /// These and one more.
    #[must_use]
    pub const fn with(self, scope: Scope) -> Self {
        Self(self.0 | scope.bit())
    }

    /// These without one. [`Scope::Admin`] includes all others: without it, those that are named remain.
    #[must_use]
    pub const fn without(self, scope: Scope) -> Self {
        Self(self.0 & !scope.bit())
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        scopes.into_iter().fold(Self::default(), Self::with)
    }
}

impl fmt::Display for Scopes {
    /// Names, separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scopes = Scope::ALL.into_iter().filter(|scope| self.0 & scope.bit() != 0);
        for (index, scope) in scopes.enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{}", scope.name())?;
        }
        Ok(())
    }
}

impl FromStr for Scopes {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        let scope = |name: &str| Scope::ALL.into_iter().find(|scope| scope.name() == name);
        let names = text.split(',').filter(|name| !name.is_empty());
        names.map(|name| scope(name).ok_or_else(|| UnknownScope(name.to_owned()))).collect()
    }
}

/// Why texts are not valid patterns for cache names.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PatternError {
    /// Not a glob.
    #[error("'{0}' is not a pattern for cache names (such as 'team-*')")]
    Glob(String),
    /// More than [`PATTERNS_MAX`].
    #[error("a token can have at most {PATTERNS_MAX} caches or patterns")]
    TooMany,
}

/// Names of caches, or globs for them.
#[derive(Debug, Clone)]
pub struct CachePatterns {
    texts: Arc<[String]>,
    globs: GlobSet,
}

impl CachePatterns {
    /// Patterns such as `default` and `team-*`.
    ///
    /// # Errors
    /// If one is malformed or there are too many.
    pub fn new<S: AsRef<str>>(patterns: &[S]) -> Result<Self, PatternError> {
        if patterns.len() > PATTERNS_MAX {
            return Err(PatternError::TooMany);
        }
        let mut globs = GlobSetBuilder::new();
        for pattern in patterns.iter().map(AsRef::as_ref) {
            // They are stored as a list separated by blanks.
            let legal = !pattern.is_empty()
                && pattern.len() <= PATTERN_LEN_MAX
                && pattern.bytes().all(|byte| byte.is_ascii_graphic());
            let glob = Glob::new(pattern).ok().filter(|_| legal);
            globs.add(glob.ok_or_else(|| PatternError::Glob(pattern.to_owned()))?);
        }
        let globs = globs.build().map_err(|error| PatternError::Glob(error.to_string()))?;
        Ok(Self { texts: patterns.iter().map(|pattern| pattern.as_ref().to_owned()).collect(), globs })
    }

    /// Every cache.
    pub fn all() -> Self {
        let texts = Arc::from(["*".to_owned()]);
        // This glob is valid.
        let globs = Glob::new("*").and_then(|glob| GlobSetBuilder::new().add(glob).build());
        Self { texts, globs: globs.unwrap_or_default() }
    }

    /// Whether a cache matches.
    pub fn matches(&self, cache: &CacheName) -> bool {
        self.globs.is_match(cache.as_str())
    }

    /// Whether every cache that matches another pattern surely matches one of these: a pattern is covered by `*`, by itself, and if it is
    /// a name, by the patterns that it matches.
    ///
    /// ```
    /// use narval_keep::CachePatterns;
    /// let patterns = CachePatterns::new(&["team-*", "default"]).unwrap();
    /// assert!(patterns.cover("team-a") && patterns.cover("team-*"));
    /// assert!(!patterns.cover("*") && !patterns.cover("other") && !patterns.cover("team-?*"));
    /// ```
    pub fn cover(&self, pattern: &str) -> bool {
        let is_known = |text: &String| text == "*" || text == pattern;
        self.texts.iter().any(is_known) || pattern.parse().is_ok_and(|name: CacheName| self.matches(&name))
    }

    /// The patterns.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }
}

/// What a verified token allows its bearer.
#[derive(Debug, Clone)]
pub struct Grant {
    /// The token's id, which is not secret; empty for this machine's administrator.
    pub token: String,
    /// The label of the token.
    pub label: String,
    /// The caches that it applies to.
    pub caches: CachePatterns,
    /// Its scopes.
    pub scopes: Scopes,
    /// When it expires, in seconds since 1970.
    pub expires: Option<u64>,
    /// The address of the client, for the audit log.
    pub peer: Option<String>,
}

impl Grant {
    /// The grant of an administrator, who can write to the data folder: everything.
    pub fn administrator(label: &str) -> Self {
        Self {
            token: String::new(),
            label: label.to_owned(),
            caches: CachePatterns::all(),
            scopes: Scopes::default().with(Scope::Admin),
            expires: None,
            peer: None,
        }
    }

    /// The grant as used by a request from this address.
    #[must_use]
    pub fn from_peer(self, peer: impl fmt::Display) -> Self {
        Self { peer: Some(peer.to_string()), ..self }
    }

    /// Whether it allows something in a cache.
    pub fn allows(&self, cache: &CacheName, scope: Scope) -> bool {
        self.scopes.has(scope) && self.caches.matches(cache)
    }

    /// Like [`Grant::allows`]; the refusal names the missing scope.
    ///
    /// # Errors
    /// [`RefusalKind::Forbidden`].
    pub fn require(&self, cache: &CacheName, scope: Scope) -> Result<(), Refusal> {
        if self.allows(cache, scope) {
            return Ok(());
        }
        let (id, scope, is_for) = (&self.token, (scope.name(), self.scopes.has(scope)), self.caches.matches(cache));
        let (lacks, change) = match (scope, is_for) {
            ((scope, false), true) => (format!("lacks the scope '{scope}'"), format!("--add-scope {scope}")),
            ((_, true), _) => (format!("is not valid for the cache '{cache}'"), format!("--add-cache {cache}")),
            ((scope, false), false) => (
                format!("lacks the scope '{scope}', and is not valid for the cache '{cache}'"),
                format!("--add-scope {scope} --add-cache {cache}"),
            ),
        };
        let (caches, scopes) = (self.caches.texts().join(", "), self.scopes);
        let message = format!(
            "token '{id}' {lacks}: it allows {scopes} in {caches}; the cache's operator changes that with 'narval token change {id} \
             {change}'"
        );
        Err(Refusal::new(RefusalKind::Forbidden, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_as_text() {
        let scopes: Scopes = "push,pull".parse().unwrap();
        assert_eq!(scopes.to_string(), "pull,push");
        assert!(scopes.has(Scope::Push) && !scopes.has(Scope::Admin) && !scopes.has(Scope::Sign));
        assert!(Scopes::default().with(Scope::Admin).has(Scope::Delete));
        assert!("pull,write".parse::<Scopes>().is_err());
        assert!("".parse::<Scopes>().unwrap().is_empty());
    }

    #[test]
    fn caches_of_a_grant() {
        let caches = CachePatterns::new(&["team-*", "default"]).unwrap();
        let grant = Grant { caches, scopes: "push".parse().unwrap(), ..Grant::administrator("test") };
        let name = |text: &str| text.parse::<CacheName>().unwrap();
        assert!(grant.allows(&name("team-a"), Scope::Push) && grant.allows(&name("default"), Scope::Push));
        assert!(!grant.allows(&name("other"), Scope::Push) && !grant.allows(&name("team-a"), Scope::Pull));
        assert_eq!(grant.require(&name("other"), Scope::Push).unwrap_err().kind, RefusalKind::Forbidden);
        assert!(Grant::administrator("test").allows(&name("other"), Scope::Replace));
        assert!(CachePatterns::new(&["[a"]).is_err() && CachePatterns::new(&["a b"]).is_err());
        assert!(CachePatterns::new(&vec!["a"; PATTERNS_MAX + 1]).is_err());
    }
}
