//! Verifies tokens.

use std::sync::Arc;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode};
use narval_client::{Client, ClientOptions, Proxies};
use serde_json::Value;

use super::error::OidcError;
use super::issuer::Issuer;
use super::keys::Keys;
use super::rule::Claims;
use super::token::{Unverified, short};
use super::{FETCH_TIMEOUT, LEEWAY_SECONDS};

/// The longest label, in bytes.
const LABEL_LEN_MAX: usize = 120;

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
}

impl<T> Verifier<T> {
    /// Accepts tokens of these issuers. Nothing is fetched yet, so an issuer may be down when the server starts.
    pub fn new(issuers: Vec<Issuer<T>>) -> Self {
        let options = ClientOptions {
            proxies: Proxies::from_env(),
            connect_timeout: FETCH_TIMEOUT,
            stall_timeout: FETCH_TIMEOUT,
            ..ClientOptions::default()
        };
        let client = Arc::new(Client::new(options));
        let with_keys = |issuer: Issuer<T>| {
            let keys = Keys::new(&issuer.issuer, &issuer.url, &client);
            (issuer, keys)
        };
        Self { issuers: issuers.into_iter().map(with_keys).collect() }
    }

    /// What a token allows.
    ///
    /// # Errors
    /// It is rejected, or [`OidcError::Unavailable`].
    pub fn verify(&self, token: &str) -> Result<Verified<'_, T>, OidcError> {
        let token = token.trim();
        let unverified = Unverified::parse(token)?;
        let known = self.issuers.iter().find(|(issuer, _)| *issuer.issuer == *unverified.issuer);
        let (issuer, keys) = known.ok_or_else(|| OidcError::UnknownIssuer(short(&unverified.issuer)))?;
        let key = keys.find(&unverified.kid, unverified.algorithm)?;
        let mut validation = Validation::new(unverified.algorithm);
        validation.leeway = LEEWAY_SECONDS;
        validation.validate_nbf = true;
        validation.set_audience(&[&issuer.audience]);
        validation.set_issuer(&[&issuer.issuer]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        let claims = decode::<Claims>(token, &key, &validation).map_err(|error| explain(error.kind(), issuer))?.claims;
        // The library would also accept a list that contains the issuer.
        if claims.get("iss").and_then(Value::as_str) != Some(&issuer.issuer) {
            return Err(OidcError::Claim("iss".to_owned()));
        }
        let label = label(&issuer.name, &claims);
        match issuer.rules.iter().find(|rule| rule.is_met(&claims)) {
            Some(rule) => Ok(Verified { allows: &rule.allows, label, claims }),
            None => Err(OidcError::NoRule(label)),
        }
    }
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

/// `github: repo:our-org/cache:ref:refs/heads/main`.
fn label(issuer: &str, claims: &Claims) -> String {
    let subject = claims.get("sub").and_then(Value::as_str).unwrap_or("a token without a subject");
    let mut label = format!("{issuer}: {}", short(subject));
    label.truncate(label.floor_char_boundary(LABEL_LEN_MAX));
    label
}
