//! The platforms in the configuration file whose tokens are exchanged.

use std::time::Duration;

use narval_keep::oidc::{Claim, Issuer, Rule};
use narval_keep::{CachePatterns, Scope, Scopes};
use narval_serve::OidcGrant;

use crate::config::{ConfigError, OidcSection};

/// The default lifetime of a token: longer than most jobs.
const LIFETIME_DEFAULT: Duration = Duration::from_secs(3600);

/// The issuers in a configuration file.
///
/// # Errors
/// The first invalid one, with its line.
pub(crate) fn issuers(file: &str, sections: &[OidcSection]) -> Result<Vec<Issuer<OidcGrant>>, ConfigError> {
    sections.iter().map(|section| issuer(file, section)).collect()
}

fn issuer(file: &str, section: &OidcSection) -> Result<Issuer<OidcGrant>, ConfigError> {
    let wrong = |line: usize, message: String| ConfigError { file: file.to_owned(), line: Some(line), message };
    let lifetime = section.token_lifetime.unwrap_or(LIFETIME_DEFAULT);
    let requires_id = section.require_jti.unwrap_or(true);
    let mut rules = Vec::new();
    for rule in &section.rules {
        let failed = |error: &dyn std::fmt::Display| wrong(rule.line, format!("oidc.rule: {error}"));
        let scopes: Scopes = rule.scopes.join(",").parse().map_err(|error| failed(&error))?;
        if scopes.has(Scope::Admin) {
            return Err(failed(&"scopes: a job cannot have the scope 'admin'"));
        }
        if scopes.is_empty() {
            return Err(failed(&"key 'scopes' is missing: one or more of pull, push, sign, pin, delete, replace"));
        }
        let caches = match rule.caches.as_slice() {
            [] => CachePatterns::all(),
            patterns => CachePatterns::new(patterns).map_err(|error| failed(&error))?,
        };
        let claims = rule.claims.iter().map(|(name, patterns)| Claim::new(name, patterns));
        let claims = claims.collect::<Result<Vec<_>, _>>().map_err(|error| failed(&error))?;
        rules.push(
            Rule::new(claims, OidcGrant { caches, scopes, lifetime, requires_id }).map_err(|error| failed(&error))?,
        );
    }
    let name = section.name.as_deref().unwrap_or(&section.issuer);
    let issuer = Issuer::new(name, &section.issuer, &section.audience, rules);
    issuer.map_err(|error| wrong(section.line, format!("oidc: {error}")))
}
