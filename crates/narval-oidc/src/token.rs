//! The format of a token, before it is verified.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::Algorithm;
use serde_json::{Map, Value};
use zeroize::Zeroizing;

use crate::error::OidcError;
use crate::limits::TOKEN_LEN_MAX;

/// The unverified contents of a token.
#[derive(Debug)]
pub(super) struct Unverified {
    pub(super) algorithm: Algorithm,
    pub(super) kid: String,
    pub(super) issuer: String,
    audience: Option<Value>,
}

impl Unverified {
    /// Parses the compact serialization (RFC 7515 section 7.1).
    pub(super) fn parse(token: &str) -> Result<Self, OidcError> {
        if token.len() > TOKEN_LEN_MAX {
            return Err(OidcError::TooLong);
        }
        let malformed = |what: &str| OidcError::Malformed(what.to_owned());
        let mut parts = token.split('.');
        let (Some(header), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(malformed("it does not have three parts"));
        };
        let header = object(header).ok_or_else(|| malformed("its header is not a JSON object"))?;
        let name = header.get("alg").and_then(Value::as_str).ok_or_else(|| malformed("its header has no algorithm"))?;
        // We define the list: the token chooses from it, and the key must fit the chosen algorithm.
        let algorithm = match name {
            "RS256" => Algorithm::RS256,
            "ES256" => Algorithm::ES256,
            other => return Err(OidcError::Algorithm(short(other))),
        };
        // RFC 7515 section 4.1.11: a token with an unknown extension must be rejected.
        if header.contains_key("crit") {
            return Err(malformed("its header requires extensions"));
        }
        let kid =
            header.get("kid").and_then(Value::as_str).ok_or_else(|| malformed("its header has no key id ('kid')"))?;
        let claims = object(payload).ok_or_else(|| malformed("its claims are not a JSON object"))?;
        let issuer = claims.get("iss").and_then(Value::as_str).ok_or_else(|| OidcError::Claim("iss".to_owned()))?;
        Ok(Self { algorithm, kid: kid.to_owned(), issuer: issuer.to_owned(), audience: claims.get("aud").cloned() })
    }

    /// Whether it says that it was issued for this audience.
    pub(super) fn is_for(&self, audience: &str) -> bool {
        match &self.audience {
            Some(Value::Array(all)) => all.iter().any(|one| one == audience),
            Some(one) => one == audience,
            None => false,
        }
    }
}

/// A text that may be an identity token: neither empty nor long, nor with anything that no token has. Blanks around it are left out.
pub fn identity_token(text: &str) -> Option<Zeroizing<String>> {
    let text = text.trim();
    let is_token = (1..=TOKEN_LEN_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_token.then(|| Zeroizing::new(text.to_owned()))
}

fn object(part: &str) -> Option<Map<String, Value>> {
    let bytes = URL_SAFE_NO_PAD.decode(part).ok()?;
    serde_json::from_slice(&bytes).ok()
}

/// Shortens a client's text for a message.
pub(super) fn short(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(100).collect()
}
