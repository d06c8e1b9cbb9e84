//! Platforms whose tokens are accepted.

use std::net::IpAddr;

use narval_client::{Scheme, Url};

use super::error::RuleError;
use super::rule::Rule;

/// A platform whose tokens are accepted. `T` is the type of what its rules allow.
#[derive(Clone, Debug)]
pub struct Issuer<T> {
    pub(super) name: Box<str>,
    /// Must be equal to the claim `iss` and to the discovery document, byte for byte.
    pub(super) issuer: Box<str>,
    pub(super) url: Url,
    pub(super) audience: Box<str>,
    pub(super) rules: Vec<Rule<T>>,
}

/// Platforms where everybody can run jobs, and the claims that identify their owners.
const SHARED: [(&str, &[&str]); 2] = [
    (
        "https://token.actions.githubusercontent.com",
        &[
            "sub",
            "repository",
            "repository_id",
            "repository_owner",
            "repository_owner_id",
            "job_workflow_ref",
            "workflow_ref",
        ],
    ),
    ("https://gitlab.com", &["sub", "project_path", "project_id", "namespace_path", "namespace_id"]),
];

impl<T> Issuer<T> {
    /// Accepts tokens that `issuer` issued for `audience`, according to the first matching rule. `name` is its name in
    /// logs.
    ///
    /// # Errors
    /// An address that is not `https` (or `http` on this machine), no audience, no rule, and for GitHub and
    /// GitLab a rule that does not restrict whose jobs match.
    pub fn new(name: &str, issuer: &str, audience: &str, rules: Vec<Rule<T>>) -> Result<Self, RuleError> {
        let address = |reason: &str| RuleError::Address { url: issuer.to_owned(), reason: reason.to_owned() };
        let url = Url::parse(issuer).map_err(|error| address(&error.to_string()))?;
        if !is_safe(&url) {
            return Err(address("give an https:// address (http:// is only allowed for this machine)"));
        }
        if url.userinfo().is_some() || issuer.contains(['?', '#']) {
            return Err(address("it has parts that are not allowed in an issuer"));
        }
        if audience.is_empty() {
            return Err(RuleError::NoAudience(issuer.to_owned()));
        }
        if rules.is_empty() {
            return Err(RuleError::NoRules(issuer.to_owned()));
        }
        if let Some((_, identities)) = SHARED.iter().find(|(shared, _)| *shared == issuer.trim_end_matches('/'))
            && !rules.iter().all(|rule| rule.claims.iter().any(|claim| claim.names_somebody(identities)))
        {
            return Err(RuleError::Anybody { issuer: issuer.to_owned(), claims: identities.join(", ") });
        }
        Ok(Self { name: name.into(), issuer: issuer.into(), url, audience: audience.into(), rules })
    }
}

/// Whether responses are authentic: over TLS, or from this machine.
pub(super) fn is_safe(url: &Url) -> bool {
    match url.scheme() {
        Scheme::Https => true,
        Scheme::Http => {
            let host = url.origin().host.trim_matches(['[', ']']);
            host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        }
        Scheme::File | Scheme::S3 => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Claim;
    use super::*;

    fn issuer(url: &str, claim: &str, pattern: &str) -> Result<Issuer<()>, RuleError> {
        let rule = Rule::new(vec![Claim::new(claim, &[pattern]).unwrap()], ()).unwrap();
        Issuer::new("test", url, "us", vec![rule])
    }

    #[test]
    fn only_safe_addresses() {
        for url in ["https://ci.example.org", "http://127.0.0.1:8080", "http://[::1]:1", "http://localhost/realms/a"] {
            assert!(issuer(url, "ref", "main").is_ok(), "{url}");
        }
        for url in [
            "http://ci.example.org",
            "http://10.0.0.1",
            "file:///etc",
            "ci.example.org",
            "https://a@b.org",
            "https://b.org?a",
        ] {
            assert!(matches!(issuer(url, "ref", "main"), Err(RuleError::Address { .. })), "{url}");
        }
    }

    #[test]
    fn rules_for_platforms_that_everybody_uses_say_whose_jobs_they_mean() {
        let github = "https://token.actions.githubusercontent.com";
        for (claim, pattern) in [("ref", "refs/heads/main"), ("repository", "*/cache"), ("repository", "**")] {
            assert!(matches!(issuer(github, claim, pattern), Err(RuleError::Anybody { .. })), "{claim} = {pattern}");
        }
        assert!(issuer(github, "repository", "our-org/*").is_ok());
        assert!(issuer("https://gitlab.com", "project_path", "group/*").is_ok());
        assert!(issuer("https://gitlab.com/", "ref_protected", "true").is_err());
        assert!(issuer("https://gitlab.example.org", "ref_protected", "true").is_ok());
    }

    #[test]
    fn no_audience_and_no_rules() {
        let rule = || Rule::new(vec![Claim::new("ref", &["main"]).unwrap()], ()).unwrap();
        assert!(matches!(Issuer::new("t", "https://a.org", "", vec![rule()]), Err(RuleError::NoAudience(_))));
        assert!(matches!(Issuer::<()>::new("t", "https://a.org", "us", Vec::new()), Err(RuleError::NoRules(_))));
    }
}
