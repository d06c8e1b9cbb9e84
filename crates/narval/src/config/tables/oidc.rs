//! `[[oidc]]`: the platforms whose jobs get tokens, and the issuer that people sign in with (OpenID Connect).

use std::time::Duration;

use narval_keep::{CachePatterns, Scope, Scopes};
use narval_oidc::{Claim, Issuer, Rule, SignIn};
use narval_serve::OidcGrant;

use super::limits::TIMEOUT_MAX;
use crate::config::error::ConfigError;
use crate::config::field::{AnyKeys, Nested, table};
use crate::config::kinds::{boolean, duration, text};

table! {
    /// A CI platform whose jobs get tokens, or the issuer that people sign in with.
    Oidc {
        /// Its name in logs
        name: Option<String> = text().or_else("the issuer"),
        /// Address of a CI platform whose jobs get tokens (docs/pushing.md#from-ci-without-a-secret)
        issuer: String = text().nix("webUrl"),
        /// Audience that the platform's tokens must have, for example the address of this server
        audience: Option<String> = text().or_else("`client-id`"),
        /// Id of a public client of the issuer, with which people sign in by `narval login` (device flow). The tokens are those of people then,
        /// and may have the scope `admin` (docs/api.md#people-who-sign-in)
        client_id: Option<String> = text(),
        /// Scopes of OpenID Connect that they ask the issuer for: those that bring the claims of the rules
        client_scopes: Vec<String> = text().or("openid"),
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
        /// What a token may do: `pull`, `push`, `sign`, `pin`, `delete`, `replace`, and `release:PATTERN` for releases of these names; with
        /// `client-id` also `admin`
        scopes: Vec<String> = text().nix("(types.strMatching \"pull|push|sign|pin|delete|replace|admin|release:.+\")"),
    }
}

impl Oidc {
    /// The issuer with its rules.
    ///
    /// # Errors
    /// The first of its keys that is wrong.
    pub fn issuer(&self) -> Result<Issuer<OidcGrant>, ConfigError> {
        let rules = self.rule.iter().map(|rule| rule.rule(self));
        let rules = rules.collect::<Result<_, _>>()?;
        let name = self.name.as_deref().unwrap_or(&self.issuer);
        let wrong = |error: &dyn std::fmt::Display| self.origin.error("oidc", error);
        // Identity tokens that are given to a client are for that client.
        let audience = match (&self.audience, &self.client_id) {
            (Some(audience), Some(client)) if audience != client => {
                return Err(wrong(
                    &"audience: people's tokens are for the client: leave it out, or give the client-id",
                ));
            }
            (None, None) => return Err(wrong(&"key 'audience' is missing")),
            (audience, client) => client.as_ref().or(audience.as_ref()).map_or("", String::as_str),
        };
        let issuer = Issuer::new(name, &self.issuer, audience, rules).map_err(|error| wrong(&error))?;
        Ok(if self.client_id.is_some() { issuer.of_people() } else { issuer })
    }

    /// How people sign in, if they do with this issuer.
    pub fn sign_in(&self) -> Option<SignIn> {
        let mut scopes: Vec<_> = self.client_scopes.iter().map(String::as_str).collect();
        if !scopes.contains(&"openid") {
            scopes.push("openid");
        }
        let (issuer, client_id) = (self.issuer.clone(), self.client_id.clone()?);
        Some(SignIn { issuer, client_id, scope: scopes.join(" ") })
    }

    /// What contradicts each other in all of them.
    pub(in crate::config) fn check(all: &[Self]) -> Vec<ConfigError> {
        let mut wrong: Vec<_> = all.iter().filter_map(|oidc| oidc.issuer().err()).collect();
        if let Some(second) = all.iter().filter(|oidc| oidc.client_id.is_some()).nth(1) {
            wrong.push(second.origin.error("client-id", "people sign in with one issuer"));
        }
        wrong
    }
}

impl OidcRule {
    fn rule(&self, of: &Oidc) -> Result<Rule<OidcGrant>, ConfigError> {
        let (lifetime, requires_id) = (of.token_lifetime, of.require_jti);
        let failed = |error: &dyn std::fmt::Display| self.origin.error("oidc.rule", error);
        let scopes: Scopes = self.scopes.join(",").parse().map_err(|error| failed(&error))?;
        if scopes.has(Scope::Admin) && of.client_id.is_none() {
            return Err(failed(&"scopes: a job cannot have the scope 'admin'; people can, who sign in (client-id)"));
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
