//! `[[oidc]]`: the platforms whose jobs get tokens (OpenID Connect).

use std::time::Duration;

use narval_keep::{CachePatterns, Scope, Scopes};
use narval_oidc::{Claim, Issuer, Rule};
use narval_serve::OidcGrant;

use super::limits::TIMEOUT_MAX;
use crate::config::error::ConfigError;
use crate::config::field::{AnyKeys, Nested, table};
use crate::config::kinds::{boolean, duration, text};

table! {
    /// A CI platform whose jobs get tokens.
    Oidc {
        /// Its name in logs
        name: Option<String> = text().or_else("the issuer"),
        /// Address of a CI platform whose jobs get tokens (docs/pushing.md#from-ci-without-a-secret)
        issuer: String = text().nix("webUrl"),
        /// Audience that the platform's tokens must have, for example the address of this server
        audience: String = text(),
        /// Lifetime of the tokens of this cache
        // Longer than most jobs.
        token_lifetime: Duration = duration(Duration::from_secs(60)..=TIMEOUT_MAX).or("1h"),
        /// Whether the platform's tokens must have an id (`jti`); `false` for a platform without it, whose tokens can be exchanged again until
        /// they expire
        require_jti: bool = boolean().or("true"),
        /// The first rule that matches applies.
        rule: Vec<OidcRule> = Nested::Table(None),
    }
}

table! {
    /// Which jobs may do what.
    OidcRule {
        /// Claims, each with one or more patterns; all claims must match
        claims: Vec<(String, Vec<String>)> = AnyKeys(text()),
        /// Names or patterns of caches
        caches: Vec<String> = text().or_else("all"),
        /// What a token may do: `pull`, `push`, `sign`, `pin`, `delete`, `replace`, and `release:PATTERN` for releases of these names
        scopes: Vec<String> = text().nix("(types.strMatching \"pull|push|sign|pin|delete|replace|release:.+\")"),
    }
}

impl Oidc {
    /// The issuer with its rules.
    ///
    /// # Errors
    /// The first of its keys that is wrong.
    pub fn issuer(&self) -> Result<Issuer<OidcGrant>, ConfigError> {
        let rules = self.rule.iter().map(|rule| rule.rule(self.token_lifetime, self.require_jti));
        let rules = rules.collect::<Result<_, _>>()?;
        let name = self.name.as_deref().unwrap_or(&self.issuer);
        let issuer = Issuer::new(name, &self.issuer, &self.audience, rules);
        issuer.map_err(|error| self.origin.error("oidc", error))
    }
}

impl OidcRule {
    fn rule(&self, lifetime: Duration, requires_id: bool) -> Result<Rule<OidcGrant>, ConfigError> {
        let failed = |error: &dyn std::fmt::Display| self.origin.error("oidc.rule", error);
        let scopes: Scopes = self.scopes.join(",").parse().map_err(|error| failed(&error))?;
        if scopes.has(Scope::Admin) {
            return Err(failed(&"scopes: a job cannot have the scope 'admin'"));
        }
        if scopes.is_empty() {
            return Err(failed(&"key 'scopes' is missing: one or more of pull, push, sign, pin, delete, replace"));
        }
        let caches = match self.caches.as_slice() {
            [] => CachePatterns::all(),
            patterns => CachePatterns::new(patterns).map_err(|error| failed(&error))?,
        };
        let claims = self.claims.iter().map(|(name, patterns)| Claim::new(name, patterns));
        let claims = claims.collect::<Result<Vec<_>, _>>().map_err(|error| failed(&error))?;
        Rule::new(claims, OidcGrant { caches, scopes, lifetime, requires_id }).map_err(|error| failed(&error))
    }
}
