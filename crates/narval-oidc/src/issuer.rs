//! Platforms whose tokens are accepted.

use std::net::IpAddr;

use narval_client::{Scheme, Url};

use crate::error::RuleError;
use crate::rule::{Identity, Rule};
use crate::token::short;

/// A platform whose tokens are accepted. `T` is the type of what its rules allow.
#[derive(Clone, Debug)]
pub struct Issuer<T> {
    pub(super) name: Box<str>,
    /// Must be equal to the claim `iss` and to the discovery document, byte for byte.
    pub(super) issuer: Box<str>,
    pub(super) url: Url,
    pub(super) audience: Box<str>,
    /// Whether its tokens are those of people, and not of jobs.
    pub(super) is_of_people: bool,
    pub(super) rules: Vec<Rule<T>>,
}

/// The claim is the owner alone.
const fn whole(claim: &'static str) -> Identity {
    Identity { claim, prefix: "", delimiter: None }
}

/// In the claim, the owner comes after a prefix and before a delimiter.
const fn after(claim: &'static str, prefix: &'static str, delimiter: char) -> Identity {
    Identity { claim, prefix, delimiter: Some(delimiter) }
}

/// Platforms where everybody can run jobs, and the claims that identify their owners. GitHub's `job_workflow_ref` is none: anybody can call a
/// public reusable workflow.
const SHARED: [(&str, &[Identity]); 2] = [
    (
        "https://token.actions.githubusercontent.com",
        &[
            after("sub", "repo:", '/'),
            // Subjects can be customized: <https://docs.github.com/en/actions/reference/security/oidc>.
            after("sub", "repository:", '/'),
            after("sub", "repository_id:", ':'),
            after("sub", "repository_owner:", ':'),
            after("sub", "repository_owner_id:", ':'),
            after("repository", "", '/'),
            whole("repository_id"),
            whole("repository_owner"),
            whole("repository_owner_id"),
            after("workflow_ref", "", '/'),
        ],
    ),
    (
        "https://gitlab.com",
        &[
            after("sub", "project_path:", '/'),
            after("project_path", "", '/'),
            whole("project_id"),
            whole("namespace_path"),
            after("namespace_path", "", '/'),
            whole("namespace_id"),
        ],
    ),
];

impl<T> Issuer<T> {
    /// Accepts tokens that `issuer` issued for `audience`, according to the first matching rule. `name` is its name in
    /// logs.
    ///
    /// # Errors
    /// An address that is not `https` (or `http` on this machine), no audience, no rule, and for GitHub and
    /// GitLab a rule that does not restrict whose jobs match.
    pub fn new(name: &str, issuer: &str, audience: &str, rules: Vec<Rule<T>>) -> Result<Self, RuleError> {
        let url = address(issuer)?;
        if audience.is_empty() {
            return Err(RuleError::NoAudience(issuer.to_owned()));
        }
        if rules.is_empty() {
            return Err(RuleError::NoRules(issuer.to_owned()));
        }
        if let Some((_, identities)) = SHARED.iter().find(|(shared, _)| *shared == issuer.trim_end_matches('/'))
            && !rules.iter().all(|rule| rule.claims.iter().any(|claim| claim.names_somebody(identities)))
        {
            let mut claims: Vec<_> = identities.iter().map(|identity| identity.claim).collect();
            claims.dedup();
            return Err(RuleError::Anybody { issuer: issuer.to_owned(), claims: claims.join(", ") });
        }
        let (name, issuer, audience) = (name.into(), issuer.into(), audience.into());
        Ok(Self { name, issuer, url, audience, is_of_people: false, rules })
    }

    /// Its tokens are those of people who sign in: the token of a job, whoever started that, is refused.
    #[must_use]
    pub fn of_people(self) -> Self {
        Self { is_of_people: true, ..self }
    }
}

/// The address of an issuer.
pub(super) fn address(issuer: &str) -> Result<Url, RuleError> {
    let wrong = |reason: &str| RuleError::Address { url: short(issuer), reason: reason.to_owned() };
    let url = Url::parse(issuer).map_err(|error| wrong(&error.to_string()))?;
    if !is_safe(&url) {
        return Err(wrong("give an https:// address (http:// is only allowed for this machine)"));
    }
    if url.userinfo().is_some() || issuer.contains(['?', '#']) {
        return Err(wrong("it has parts that are not allowed in an issuer"));
    }
    Ok(url)
}

/// Whether secrets may be sent there, and answers are authentic: over TLS, or within this machine.
pub fn is_safe(url: &Url) -> bool {
    match url.scheme() {
        Scheme::Https => true,
        Scheme::Http => is_here(url),
        Scheme::File | Scheme::S3 => false,
    }
}

/// Whether it is a server of this machine.
pub(super) fn is_here(url: &Url) -> bool {
    let host = url.origin().host.trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Claim;

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
            "http://127.0.0.1.example.org",
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
        let (github, gitlab) = ("https://token.actions.githubusercontent.com", "https://gitlab.com");
        for (url, claim, pattern) in [
            (github, "sub", "repo:our-org/*"),
            (github, "sub", "repo:our-org/app:ref:refs/heads/main"),
            (github, "sub", "repo:our-org/**"),
            (github, "sub", "repository_owner:our-org:*"),
            (github, "repository", "our-org/*"),
            (github, "repository", "our-org/cache"),
            (github, "repository_owner", "our-org"),
            (github, "repository_owner_id", "65"),
            (github, "repository_id", "74"),
            (github, "workflow_ref", "our-org/app/.github/workflows/*"),
            (gitlab, "project_path", "group/*"),
            (gitlab, "project_path", "group/**"),
            (gitlab, "namespace_path", "group"),
            (gitlab, "namespace_path", "group/**"),
            (gitlab, "project_id", "74"),
            (gitlab, "sub", "project_path:group/app:ref_type:branch:ref:main"),
            ("https://gitlab.com/", "namespace_id", "72"),
            ("https://gitlab.example.org", "ref_protected", "true"),
            ("https://gitlab.example.org", "sub", "**"),
        ] {
            assert!(issuer(url, claim, pattern).is_ok(), "{url} {claim} = {pattern}");
        }
        for (url, claim, pattern) in [
            (github, "sub", "**"),
            (github, "sub", "repo:**"),
            (github, "sub", "repo:*/*:ref:refs/heads/main"),
            (github, "sub", "repo:our-org*/*"),
            (github, "sub", "repo:{our-org,*}/app:*"),
            (github, "sub", "repo:our-or?/app"),
            (github, "sub", "repo:/**"),
            (github, "sub", "rep*"),
            (github, "sub", "repository_owner:our-org*"),
            (github, "repository", "*/cache"),
            (github, "repository", "**"),
            (github, "repository", "our-org*"),
            (github, "repository", "our-org*/*"),
            (github, "repository", "[a-z]*/*"),
            (github, "repository", "/*"),
            (github, "repository_owner", "our-*"),
            (github, "repository_owner", "our-or[g]"),
            (github, "repository_owner_id", "6*"),
            (github, "repository_id", "7?"),
            (github, "workflow_ref", "our-org**"),
            (github, "job_workflow_ref", "our-org/app/.github/workflows/push.yml@refs/heads/main"),
            (github, "ref", "refs/heads/main"),
            (github, "environment", "production"),
            (gitlab, "project_path", "group*"),
            (gitlab, "namespace_path", "group*"),
            (gitlab, "namespace_path", "*"),
            (gitlab, "project_id", "7*"),
            (gitlab, "sub", "project_path:**"),
            (gitlab, "sub", "project_path:group*:ref:main"),
            ("https://gitlab.com/", "ref_protected", "true"),
        ] {
            assert!(matches!(issuer(url, claim, pattern), Err(RuleError::Anybody { .. })), "{url} {claim} = {pattern}");
        }
    }

    #[test]
    fn each_pattern_of_a_claim_names_somebody_and_a_shared_workflow_needs_one_of_them_besides() {
        let github = "https://token.actions.githubusercontent.com";
        let with = |claims: &[(&str, &[&str])]| {
            let claims = claims.iter().map(|(name, patterns)| Claim::new(name, patterns).unwrap()).collect();
            Issuer::new("test", github, "us", vec![Rule::new(claims, ()).unwrap()])
        };
        let workflow: (&str, &[&str]) = ("job_workflow_ref", &["our-org/ci/.github/workflows/push.yml@*"]);
        assert!(with(&[("repository", &["our-org/*", "other-org/app"])]).is_ok());
        assert!(with(&[("repository", &["our-org/*", "*/app"])]).is_err());
        assert!(with(&[workflow]).is_err() && with(&[workflow, ("ref", &["refs/heads/main"])]).is_err());
        for (claim, pattern) in [
            ("repository", "our-org/*"),
            ("repository_owner", "our-org"),
            ("repository_owner_id", "65"),
            ("sub", "repo:our-org/app:*"),
        ] {
            assert!(with(&[workflow, (claim, &[pattern])]).is_ok(), "{claim}");
        }
    }

    #[test]
    fn no_audience_and_no_rules() {
        let rule = || Rule::new(vec![Claim::new("ref", &["main"]).unwrap()], ()).unwrap();
        assert!(matches!(Issuer::new("t", "https://a.org", "", vec![rule()]), Err(RuleError::NoAudience(_))));
        assert!(matches!(Issuer::<()>::new("t", "https://a.org", "us", Vec::new()), Err(RuleError::NoRules(_))));
    }
}
