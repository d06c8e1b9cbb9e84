//! Verifies tokens.

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde_json::Value;

use crate::error::OidcError;
use crate::fetch::client;
use crate::issuer::Issuer;
use crate::keys::Keys;
use crate::limits::LEEWAY_SECONDS;
use crate::rule::{Claims, Rule};
use crate::token::{Unverified, short};

/// The longest label, in bytes.
const LABEL_LEN_MAX: usize = 120;
/// The claims that say what a person is called.
const PEOPLE: [&str; 2] = ["email", "preferred_username"];
/// Claims that tokens of jobs have: a job chooses the audience of its token, so it must not be taken for the person who started it.
const OF_JOBS: [&str; 6] =
    ["project_path", "pipeline_id", "pipeline_slug", "repository", "job_workflow_ref", "kubernetes.io"];

/// Verifies tokens of several issuers. Can be shared between threads. `T` is what rules allow.
pub struct Verifier<T> {
    issuers: Vec<(Issuer<T>, Keys)>,
}

/// What a token allows.
#[derive(Debug)]
pub struct Verified<'a, T> {
    /// What the matching rule allows.
    pub allows: &'a T,
    /// The bearer, for logs and lists: the issuer's name and the token's subject.
    pub label: String,
    /// All of its claims.
    pub claims: Claims,
    /// Its issuer.
    pub issuer: &'a str,
}

impl<T> Verified<'_, T> {
    /// Its claim `jti`, which no other token of the issuer has.
    pub fn id(&self) -> Option<&str> {
        self.claims.get("jti").and_then(Value::as_str).filter(|id| !id.is_empty())
    }

    /// When it expires, in seconds since 1970.
    pub fn expires(&self) -> u64 {
        self.claims.get("exp").and_then(Value::as_f64).map_or(0, |time| time as u64)
    }
}

impl<T> Verifier<T> {
    /// Accepts tokens of these issuers. Nothing is fetched yet, so an issuer may be down when the server starts.
    pub fn new(issuers: Vec<Issuer<T>>) -> Self {
        let client = client();
        let with_keys = |issuer: Issuer<T>| {
            let keys = Keys::new(&issuer.issuer, &issuer.url, &client);
            (issuer, keys)
        };
        Self { issuers: issuers.into_iter().map(with_keys).collect() }
    }

    /// What a token allows. May wait for its issuer.
    ///
    /// # Errors
    /// It is rejected, or [`OidcError::Unavailable`].
    pub fn verify(&self, token: &str) -> Result<Verified<'_, T>, OidcError> {
        let (unverified, issuer, keys) = self.look_at(token)?;
        let key = keys.find(&unverified.kid, unverified.algorithm)?;
        check(token, issuer, unverified.algorithm, &key)
    }

    /// As [`verify`](Self::verify), but waits for nobody. Returns `None` if the issuer must be asked for its keys.
    ///
    /// # Errors
    /// It is rejected.
    pub fn verify_now(&self, token: &str) -> Option<Result<Verified<'_, T>, OidcError>> {
        match self.look_at(token) {
            Ok((unverified, issuer, keys)) => {
                let key = keys.find_now(&unverified.kid, unverified.algorithm)?;
                Some(check(token, issuer, unverified.algorithm, &key))
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// The verified claims of a token, its issuer's name, and all rules of that, whether they match or not. May wait for the issuer.
    ///
    /// # Errors
    /// It is rejected for another reason than that no rule matches, or [`OidcError::Unavailable`].
    pub fn claims(&self, token: &str) -> Result<(Claims, &str, &[Rule<T>]), OidcError> {
        let (unverified, issuer, keys) = self.look_at(token)?;
        let key = keys.find(&unverified.kid, unverified.algorithm)?;
        Ok((claims_of(token, issuer, unverified.algorithm, &key)?, &issuer.name, &issuer.rules))
    }

    fn look_at(&self, token: &str) -> Result<(Unverified, &Issuer<T>, &Keys), OidcError> {
        let unverified = Unverified::parse(token.trim())?;
        // One issuer may have an audience for jobs, and another one for people.
        let known = || self.issuers.iter().filter(|(issuer, _)| *issuer.issuer == *unverified.issuer);
        let meant = known().find(|(issuer, _)| unverified.is_for(&issuer.audience)).or_else(|| known().next());
        let (issuer, keys) = meant.ok_or_else(|| OidcError::UnknownIssuer(short(&unverified.issuer)))?;
        Ok((unverified, issuer, keys))
    }
}

/// Checks the signature, the claims that every token has, and the rules.
fn check<'a, T>(
    token: &str,
    issuer: &'a Issuer<T>,
    algorithm: Algorithm,
    key: &DecodingKey,
) -> Result<Verified<'a, T>, OidcError> {
    let claims = claims_of(token, issuer, algorithm, key)?;
    if let Some(claim) =
        issuer.is_of_people.then(|| OF_JOBS.iter().find(|claim| claims.contains_key(**claim))).flatten()
    {
        return Err(OidcError::Job((*claim).to_owned()));
    }
    let label = label(issuer, &claims);
    match issuer.rules.iter().find(|rule| rule.is_met(&claims)) {
        Some(rule) => Ok(Verified { allows: &rule.allows, label, claims, issuer: &issuer.issuer }),
        None => Err(OidcError::NoRule(label)),
    }
}

/// Checks the signature, and the claims that every token has.
fn claims_of<T>(token: &str, issuer: &Issuer<T>, algorithm: Algorithm, key: &DecodingKey) -> Result<Claims, OidcError> {
    let mut validation = Validation::new(algorithm);
    validation.leeway = LEEWAY_SECONDS;
    validation.validate_nbf = true;
    validation.set_audience(&[&issuer.audience]);
    validation.set_issuer(&[&issuer.issuer]);
    validation.set_required_spec_claims(&["exp", "iss", "aud"]);
    let claims =
        decode::<Claims>(token.trim(), key, &validation).map_err(|error| explain(error.kind(), issuer))?.claims;
    // The library would also accept a list that contains the issuer.
    if claims.get("iss").and_then(Value::as_str) != Some(&issuer.issuer) {
        return Err(OidcError::Claim("iss".to_owned()));
    }
    Ok(claims)
}

fn explain<T>(error: &ErrorKind, issuer: &Issuer<T>) -> OidcError {
    match error {
        ErrorKind::InvalidSignature => OidcError::Signature,
        ErrorKind::ExpiredSignature => OidcError::Expired,
        ErrorKind::ImmatureSignature => OidcError::NotYet,
        ErrorKind::InvalidAudience => OidcError::Audience(issuer.audience.to_string()),
        ErrorKind::InvalidIssuer => OidcError::Claim("iss".to_owned()),
        ErrorKind::MissingRequiredClaim(claim) | ErrorKind::InvalidClaimFormat(claim) => {
            OidcError::Claim(claim.clone())
        }
        _ => OidcError::Malformed("its parts cannot be decoded".to_owned()),
    }
}

/// `github: repo:our-org/cache:ref:refs/heads/main`; `our-org: 00u1a2b3 ann@our.org`.
fn label<T>(issuer: &Issuer<T>, claims: &Claims) -> String {
    let text = |name: &str| claims.get(name).and_then(Value::as_str).map(short);
    let subject = text("sub").unwrap_or_else(|| "a token without a subject".to_owned());
    let mut label = format!("{}: {subject}", issuer.name);
    // Their subjects are numbers, which nobody knows by heart.
    if let Some(person) = PEOPLE.iter().find_map(|name| text(name)).filter(|_| issuer.is_of_people) {
        label.push_str(&format!(" {person}"));
    }
    label.truncate(label.floor_char_boundary(LABEL_LEN_MAX));
    label
}
