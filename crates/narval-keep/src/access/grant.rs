//! Permissions: scopes, and the caches that they apply to.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use globset::{Glob, GlobSet, GlobSetBuilder};
use narval_nix::release::ReleaseName;
use thiserror::Error;

use crate::name::{CacheName, MachineName};
use crate::rejection::{Rejection, RejectionKind};

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
    /// Report what a machine runs, under any name.
    Report,
    /// All of these, and managing tokens.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 8] =
        [Self::Pull, Self::Push, Self::Sign, Self::Pin, Self::Delete, Self::Replace, Self::Report, Self::Admin];

    /// The name, as in `narval token create --<name>`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Sign => "sign",
            Self::Pin => "pin",
            Self::Delete => "delete",
            Self::Replace => "replace",
            Self::Report => "report",
            Self::Admin => "admin",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// How the scope of releases is written: with the pattern of their names after it.
const RELEASE: &str = "release:";
/// The same for the names of machines.
const REPORT: &str = "report:";

/// An unknown scope.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnknownScope {
    /// Neither a scope nor one of releases.
    #[error(
        "unknown scope '{0}' (known: pull, push, sign, pin, delete, replace, report, admin, and release:PATTERN, report:PATTERN)"
    )]
    Unknown(String),
    /// Not a pattern for names of releases or machines.
    #[error(
        "'{0}' is not a pattern for names of releases or machines: use letters, digits, and . _ + - with * and ? (such as 'release:api-*')"
    )]
    Pattern(String),
    /// More than [`PATTERNS_MAX`].
    #[error("a token can have at most {PATTERNS_MAX} patterns for names of releases and machines")]
    TooMany,
}

/// A set of scopes, and patterns for the names of releases and machines.
///
/// ```
/// use narval_keep::{Scope, Scopes};
/// let scopes: Scopes = "pull,push,release:api-*".parse().unwrap();
/// assert!(scopes.has(Scope::Push) && !scopes.has(Scope::Delete));
/// assert!(scopes.may_release("api-1") && !scopes.may_release("web"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scopes {
    bits: u8,
    /// Scopes for some names, such as `release:api-*`.
    named: BTreeSet<Box<str>>,
}

impl Scopes {
    /// Whether a scope is among them; [`Scope::Admin`] includes all.
    pub const fn has(&self, scope: Scope) -> bool {
        self.bits & (scope.bit() | Scope::Admin.bit()) != 0
    }

    /// Whether releases of this name may be recorded; [`Scope::Admin`] includes all.
    pub fn may_release(&self, name: &str) -> bool {
        self.has(Scope::Admin) || self.may(RELEASE, name)
    }

    /// Whether a machine of this name may be reported for; [`Scope::Report`] includes all.
    pub fn may_report(&self, name: &str) -> bool {
        self.has(Scope::Report) || self.may(REPORT, name)
    }

    fn may(&self, prefix: &str, name: &str) -> bool {
        let mut patterns = self.named.iter().filter_map(|named| named.strip_prefix(prefix));
        patterns.any(|pattern| matches_name(pattern, name))
    }

    /// These and one more.
    #[must_use]
    pub fn with(self, scope: Scope) -> Self {
        Self { bits: self.bits | scope.bit(), ..self }
    }

    /// These without one. [`Scope::Admin`] includes all others: without it, those that are named remain.
    #[must_use]
    pub fn without(self, scope: Scope) -> Self {
        Self { bits: self.bits & !scope.bit(), ..self }
    }

    /// These and others.
    ///
    /// # Errors
    /// If there are too many patterns.
    pub fn and(mut self, others: &Self) -> Result<Self, UnknownScope> {
        self.named.extend(others.named.iter().cloned());
        if self.named.len() > PATTERNS_MAX {
            return Err(UnknownScope::TooMany);
        }
        Ok(Self { bits: self.bits | others.bits, ..self })
    }

    /// These without others.
    #[must_use]
    pub fn except(self, others: &Self) -> Self {
        let named = self.named.difference(&others.named).cloned().collect();
        Self { bits: self.bits & !others.bits, named }
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.bits == 0 && self.named.is_empty()
    }
}

/// Whether a name matches a pattern, in which `*` stands for any text and `?` for a character.
fn matches_name(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut of) = (0, 0);
    // Where the last `*` is, and what it stands for ends.
    let mut star: Option<(usize, usize)> = None;
    while let Some(byte) = name.get(at) {
        match (pattern.get(of), star) {
            (Some(b'*'), _) => {
                star = Some((of, at));
                of += 1;
            }
            (Some(wanted), _) if wanted == byte || *wanted == b'?' => (at, of) = (at + 1, of + 1),
            (_, Some((begin, end))) => {
                star = Some((begin, end + 1));
                (at, of) = (end + 1, begin + 1);
            }
            (_, None) => return false,
        }
    }
    pattern.get(of..).is_some_and(|rest| rest.iter().all(|byte| *byte == b'*'))
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        scopes.into_iter().fold(Self::default(), Self::with)
    }
}

impl fmt::Display for Scopes {
    /// Names, separated by commas.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scopes = Scope::ALL.into_iter().filter(|scope| self.bits & scope.bit() != 0);
        let names = scopes.map(|scope| scope.name().to_owned());
        f.write_str(&names.chain(self.named.iter().map(ToString::to_string)).collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Scopes {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        let mut scopes = Self::default();
        for name in text.split(',').filter(|name| !name.is_empty()) {
            if let Some(pattern) = name.strip_prefix(RELEASE).or_else(|| name.strip_prefix(REPORT)) {
                let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-*?".contains(&byte);
                if pattern.is_empty() || pattern.len() > PATTERN_LEN_MAX || !pattern.bytes().all(is_legal) {
                    return Err(UnknownScope::Pattern(pattern.to_owned()));
                }
                scopes.named.insert(name.into());
                continue;
            }
            let scope = Scope::ALL.into_iter().find(|scope| scope.name() == name);
            scopes = scopes.with(scope.ok_or_else(|| UnknownScope::Unknown(name.to_owned()))?);
        }
        if scopes.named.len() > PATTERNS_MAX { Err(UnknownScope::TooMany) } else { Ok(scopes) }
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
    /// [`RejectionKind::Forbidden`].
    pub fn require(&self, cache: &CacheName, scope: Scope) -> Result<(), Rejection> {
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
        let (caches, scopes) = (self.caches.texts().join(", "), &self.scopes);
        let message = format!(
            "token '{id}' {lacks}: it allows {scopes} in {caches}; the cache's operator changes that with 'narval token change {id} \
             {change}'"
        );
        Err(Rejection::new(RejectionKind::Forbidden, message))
    }

    /// Whether releases of a name may be recorded in a cache.
    ///
    /// # Errors
    /// [`RejectionKind::Forbidden`].
    pub fn require_release(&self, cache: &CacheName, name: &ReleaseName) -> Result<(), Rejection> {
        let is_allowed = self.scopes.may_release(name.as_str());
        self.require_named(cache, is_allowed, "record releases", (RELEASE, name.as_str()))
    }

    /// Whether a cache takes reports about a machine.
    ///
    /// # Errors
    /// [`RejectionKind::Forbidden`].
    pub fn require_report(&self, cache: &CacheName, name: &MachineName) -> Result<(), Rejection> {
        let is_allowed = self.scopes.may_report(name.as_str());
        self.require_named(cache, is_allowed, "report for the machine", (REPORT, name.as_str()))
    }

    fn require_named(
        &self,
        cache: &CacheName,
        is_allowed: bool,
        what: &str,
        (scope, name): (&str, &str),
    ) -> Result<(), Rejection> {
        if is_allowed && self.caches.matches(cache) {
            return Ok(());
        }
        let (id, caches) = (&self.token, self.caches.texts().join(", "));
        let change = if self.caches.matches(cache) {
            format!("--add-scope {scope}{name}")
        } else {
            format!("--add-cache {cache}")
        };
        let message = format!(
            "token '{id}' may not {what} '{name}' in the cache '{cache}': it allows {} in {caches}; the cache's operator changes that \
             with 'narval token change {id} {change}'",
            self.scopes
        );
        Err(Rejection::new(RejectionKind::Forbidden, message))
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
    fn names_of_releases() {
        let scopes: Scopes = "release:web,push,release:api-*".parse().unwrap();
        assert_eq!(scopes.to_string(), "push,release:api-*,release:web");
        assert!(scopes.may_release("api-") && scopes.may_release("api-x-1") && scopes.may_release("web"));
        assert!(!scopes.may_release("api") && !scopes.may_release("web2") && !scopes.may_release("prod"));
        let only: Scopes = "push".parse().unwrap();
        assert!(!only.may_release("api") && Scopes::default().with(Scope::Admin).may_release("api"));
        assert_eq!(scopes.clone().except(&"push,release:web".parse().unwrap()).to_string(), "release:api-*");
        assert_eq!(only.and(&scopes).unwrap(), scopes);
        for (pattern, name, expected) in [
            ("*", "a", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "ab", false),
            ("?", "a", true),
            ("?", "ab", false),
            ("a**", "a", true),
        ] {
            assert_eq!(matches_name(pattern, name), expected, "{pattern} {name}");
        }
        let report: Scopes = "report:web-*,release:api".parse().unwrap();
        assert!(report.may_report("web-1") && !report.may_report("api") && !report.may_release("web-1"));
        assert!(!report.has(Scope::Report) && report.to_string() == "release:api,report:web-*");
        let any: Scopes = "report".parse().unwrap();
        assert!(any.may_report("x") && !any.may_release("x") && !any.has(Scope::Pull) && !any.has(Scope::Admin));
        for bad in
            ["report:", "report:a/b", "release:", "release:a b", "release:{a}", "release:a/b", "releases:a", "release"]
        {
            assert!(bad.parse::<Scopes>().is_err(), "{bad}");
        }
        let many = (0..=PATTERNS_MAX).map(|n| format!("release:a{n}")).collect::<Vec<_>>().join(",");
        assert_eq!(many.parse::<Scopes>(), Err(UnknownScope::TooMany));
    }

    #[test]
    fn caches_of_a_grant() {
        let caches = CachePatterns::new(&["team-*", "default"]).unwrap();
        let grant = Grant { caches, scopes: "push".parse().unwrap(), ..Grant::administrator("test") };
        let name = |text: &str| text.parse::<CacheName>().unwrap();
        assert!(grant.allows(&name("team-a"), Scope::Push) && grant.allows(&name("default"), Scope::Push));
        assert!(!grant.allows(&name("other"), Scope::Push) && !grant.allows(&name("team-a"), Scope::Pull));
        assert_eq!(grant.require(&name("other"), Scope::Push).unwrap_err().kind, RejectionKind::Forbidden);
        assert!(Grant::administrator("test").allows(&name("other"), Scope::Replace));
        assert!(CachePatterns::new(&["[a"]).is_err() && CachePatterns::new(&["a b"]).is_err());
        assert!(CachePatterns::new(&vec!["a"; PATTERNS_MAX + 1]).is_err());
    }
}
