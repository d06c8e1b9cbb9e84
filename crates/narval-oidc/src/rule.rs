//! Rules: which claims a token must have.

use std::fmt;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde_json::{Map, Value};

use crate::error::RuleError;

/// The claims of a token whose signature was verified.
pub type Claims = Map<String, Value>;

/// The longest pattern, in bytes.
const PATTERN_LEN_MAX: usize = 512;
/// The maximum length of a compared claim, in bytes.
const CLAIM_LEN_MAX: usize = 4096;

/// A condition on a claim: it must match one of several patterns.
///
/// A pattern is a glob over the whole text: `*` and `?` stand for anything but `/`, `**` for anything. Numbers and booleans are compared as
/// JSON writes them; of a list, one entry is enough.
#[derive(Clone, Debug)]
pub struct Claim {
    name: Box<str>,
    patterns: Vec<Box<str>>,
    globs: GlobSet,
}

impl Claim {
    /// The claim `name` must match one of `patterns`.
    ///
    /// # Errors
    /// [`RuleError::Pattern`], also for no pattern at all.
    pub fn new<S: AsRef<str>>(name: &str, patterns: &[S]) -> Result<Self, RuleError> {
        let wrong = |pattern: &str, reason: &dyn fmt::Display| RuleError::Pattern {
            claim: name.to_owned(),
            pattern: pattern.to_owned(),
            reason: reason.to_string(),
        };
        let mut globs = GlobSetBuilder::new();
        for pattern in patterns.iter().map(AsRef::as_ref) {
            if pattern.is_empty() || pattern.len() > PATTERN_LEN_MAX {
                return Err(wrong(pattern, &format!("it must have 1 to {PATTERN_LEN_MAX} bytes")));
            }
            let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build();
            globs.add(glob.map_err(|error| wrong(pattern, error.kind()))?);
        }
        if patterns.is_empty() {
            return Err(wrong("", &"give at least one"));
        }
        let globs = globs.build().map_err(|error| wrong("", error.kind()))?;
        Ok(Self { name: name.into(), patterns: patterns.iter().map(|text| text.as_ref().into()).collect(), globs })
    }

    fn is_met(&self, claims: &Claims) -> bool {
        match claims.get(&*self.name) {
            Some(Value::Array(values)) => values.iter().any(|value| self.matches(value)),
            Some(value) => self.matches(value),
            None => false,
        }
    }

    fn matches(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => text.len() <= CLAIM_LEN_MAX && self.globs.is_match(text),
            Value::Bool(_) | Value::Number(_) => self.globs.is_match(value.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => false,
        }
    }

    /// Whether it restricts whose jobs match: it is one of these claims, and each of its patterns names an owner.
    pub(super) fn names_somebody(&self, identities: &[Identity]) -> bool {
        let names = |identity: &Identity| self.patterns.iter().all(|pattern| identity.is_named_by(pattern));
        identities.iter().any(|identity| identity.claim == &*self.name && names(identity))
    }
}

/// A claim that says whose a job is.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) claim: &'static str,
    /// What it begins with; behind it come the owner and a [`delimiter`](Self::delimiter).
    pub(super) prefix: &'static str,
    /// `None`: the owner is all of it.
    pub(super) delimiter: Option<char>,
}

impl Identity {
    /// Whether a pattern has the owner and its delimiter before its first wildcard: without the delimiter, it would match other owners whose
    /// names begin like this one.
    fn is_named_by(&self, pattern: &str) -> bool {
        let fixed = pattern.split(['*', '?', '[', '{', '\\']).next().unwrap_or_default();
        let Some(rest) = fixed.strip_prefix(self.prefix) else { return false };
        match self.delimiter {
            None => !rest.is_empty() && fixed.len() == pattern.len(),
            Some(delimiter) => rest.split_once(delimiter).is_some_and(|(owner, _)| !owner.is_empty()),
        }
    }
}

/// A rule: all of its claims must match. `T` is what it then allows.
#[derive(Clone, Debug)]
pub struct Rule<T> {
    pub(super) claims: Vec<Claim>,
    pub(super) allows: T,
}

impl<T> Rule<T> {
    /// A rule that allows something to tokens that match all claims.
    ///
    /// # Errors
    /// [`RuleError::Empty`]: a rule that everybody would match.
    pub fn new(claims: Vec<Claim>, allows: T) -> Result<Self, RuleError> {
        if claims.is_empty() {
            return Err(RuleError::Empty);
        }
        Ok(Self { claims, allows })
    }

    /// For each claim that a token does not match: its name, what the token has, and the patterns. For the operator of the server.
    pub fn unmet<'a>(
        &'a self,
        claims: &'a Claims,
    ) -> impl Iterator<Item = (&'a str, Option<&'a Value>, &'a [Box<str>])> {
        let unmet = self.claims.iter().filter(|claim| !claim.is_met(claims));
        unmet.map(|claim| (&*claim.name, claims.get(&*claim.name), &*claim.patterns))
    }

    /// What it allows to those that match.
    pub const fn allows(&self) -> &T {
        &self.allows
    }

    /// Whether a token matches all claims.
    pub fn is_met(&self, claims: &Claims) -> bool {
        self.claims.iter().all(|claim| claim.is_met(claims))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn meets(patterns: &[&str], value: Value) -> bool {
        let mut claims = Claims::new();
        claims.insert("claim".to_owned(), value);
        Claim::new("claim", patterns).unwrap().is_met(&claims)
    }

    #[test]
    fn patterns_stand_for_whole_claims() {
        assert!(meets(&["our-org/*"], json!("our-org/cache")));
        assert!(
            !meets(&["our-org/*"], json!("our-org/cache/fork")) && !meets(&["our-org/*"], json!("not-our-org/cache"))
        );
        assert!(meets(&["our-org/**"], json!("our-org/cache/fork")));
        assert!(!meets(&["main"], json!("main2")) && !meets(&["main"], json!("Main")));
        assert!(meets(&["a", "b"], json!("b")) && !meets(&["a", "b"], json!("c")));
    }

    #[test]
    fn claims_that_are_not_strings() {
        assert!(meets(&["true"], json!(true)) && meets(&["true"], json!("true")) && meets(&["17"], json!(17)));
        assert!(meets(&["admins"], json!(["users", "admins"])) && !meets(&["admins"], json!(["users", ["admins"]])));
        assert!(!meets(&["**"], json!(null)) && !meets(&["**"], json!({})) && !meets(&["**"], json!([])));
        assert!(!meets(&["**"], json!("a".repeat(CLAIM_LEN_MAX + 1))));
        assert!(!Claim::new("claim", &["**"]).unwrap().is_met(&Claims::new()), "absent");
    }

    #[test]
    fn invalid_rules_are_refused() {
        assert_eq!(Rule::new(Vec::new(), ()).unwrap_err(), RuleError::Empty);
        for patterns in [&["a[".to_owned()][..], &["".to_owned()], &["a".repeat(513)], &[]] {
            assert!(matches!(Claim::new("ref", patterns), Err(RuleError::Pattern { .. })), "{patterns:?}");
        }
    }
}
