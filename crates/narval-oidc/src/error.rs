//! Errors of tokens, rules and issuers.

use thiserror::Error;

use crate::limits::{LEEWAY_SECONDS, TOKEN_LEN_MAX};

/// Why a token is rejected. The messages are for the client, and only contain what is public or in the token.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OidcError {
    /// It is not a JWT.
    #[error("this is not an OpenID Connect token: {0}")]
    Malformed(String),
    /// It is too long.
    #[error("the token is longer than {TOKEN_LEN_MAX} bytes")]
    TooLong,
    /// An algorithm that is not accepted, such as `none` or `HS256`.
    #[error("tokens signed with '{0}' are not accepted; RS256 and ES256 are")]
    Algorithm(String),
    /// Its issuer is not accepted.
    #[error("tokens of the issuer '{0}' are not accepted here")]
    UnknownIssuer(String),
    /// The issuer has no such key.
    #[error("the issuer '{issuer}' has no key '{kid}' for {algorithm}")]
    UnknownKey {
        /// The issuer.
        issuer: String,
        /// The key id.
        kid: String,
        /// The algorithm.
        algorithm: String,
    },
    /// The signature is not the issuer's.
    #[error("the signature of the token is invalid")]
    Signature,
    /// It has expired.
    #[error("the token has expired (more than {LEEWAY_SECONDS} s ago); request it right before it is used")]
    Expired,
    /// It is not valid yet.
    #[error("the token is not valid yet (by more than {LEEWAY_SECONDS} s); check the clocks")]
    NotYet,
    /// It was issued for another audience.
    #[error("the token is not for the audience '{0}'; request it for that one")]
    Audience(String),
    /// A claim that every token must have is missing or malformed.
    #[error("the claim '{0}' of the token is missing or malformed")]
    Claim(String),
    /// It has no id, so it could be exchanged again and again.
    #[error("the token has no claim 'jti', so it could be used again: the server can allow that (require-jti = false)")]
    NoId,
    /// It was exchanged before.
    #[error("the token was exchanged before: request another one")]
    Used,
    /// It lives so long that nobody remembers that it was exchanged.
    #[error("the token expires in {0} hours: request one that lives shorter, or allow its reuse (require-jti = false)")]
    TooLongLived(u64),
    /// It is that of a job, where people sign in.
    #[error("the token has the claim '{0}', so it is that of a job, and only people sign in with this issuer here")]
    Job(String),
    /// No rule matches it.
    #[error("no rule of this server matches the token of {0}")]
    NoRule(String),
    /// The keys of the issuer cannot be fetched now. The client may try again.
    #[error("the keys of the issuer '{issuer}' cannot be fetched now; try again later")]
    Unavailable {
        /// The issuer.
        issuer: String,
        /// Why, for the log: it may reveal details of the server's network.
        reason: String,
    },
}

impl OidcError {
    /// Whether the same token may be accepted later.
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

/// Why a person was not signed in. What the issuer says is printable.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The issuer cannot be asked, or its answers are not what they must be.
    #[error("cannot sign in: {0}")]
    Issuer(String),
    /// The issuer refuses, in its words.
    #[error("the issuer refuses to sign anybody in: {0}")]
    Refused(String),
    /// The person said no.
    #[error("access was denied at the issuer")]
    Denied,
    /// Nobody entered the code in time.
    #[error("the code was not entered in time: start again")]
    Expired,
    /// There is no usable identity token in the answer.
    #[error("the issuer gave no identity token: the scopes that the cache asks for must contain 'openid'")]
    NoIdentity,
}

/// An invalid issuer or rule.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RuleError {
    /// The pattern is malformed.
    #[error("'{pattern}' is not a pattern for the claim '{claim}': {reason}")]
    Pattern {
        /// The claim.
        claim: String,
        /// The pattern.
        pattern: String,
        /// Why.
        reason: String,
    },
    /// A rule without claims would match everybody.
    #[error("a rule needs at least one claim: without one it would match every user of the platform")]
    Empty,
    /// A rule for a platform that everybody can use does not restrict whose jobs match.
    #[error(
        "a rule for {issuer} needs a claim that says whose jobs it means, with the owner in full before the first wildcard \
         ('owner/*'): one of {claims}"
    )]
    Anybody {
        /// The issuer.
        issuer: String,
        /// The claims.
        claims: String,
    },
    /// The address is invalid, or not safe.
    #[error("'{url}' cannot be an issuer: {reason}")]
    Address {
        /// The address.
        url: String,
        /// Why.
        reason: String,
    },
    /// Without an audience, a token made for another service would be accepted.
    #[error("the issuer '{0}' needs an audience: give the address of this server")]
    NoAudience(String),
    /// No rule, so that no token is ever accepted.
    #[error("the issuer '{0}' needs a rule")]
    NoRules(String),
}
