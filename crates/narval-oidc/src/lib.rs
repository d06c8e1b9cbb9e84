//! OpenID Connect: a CI job, or a person, is identified by a token of its issuer, and rules determine what it may do.
//!
//! An [`Issuer`] is a platform whose tokens are accepted, for one audience, by [`Rule`]s over its claims.
//! [`Verifier::verify`] takes a JWT (RFC 7519) and returns what its bearer may do; the caller exchanges it for an
//! opaque token. [`Device`] gets the token of a person. There is no HTTP server in this crate.
//!
//! The checks, in this order: size and format, algorithm (only RS256 and ES256: a token never chooses how it is
//! verified), the issuer (only configured ones are ever queried for keys), the key id, the signature, `exp` and `nbf`,
//! the audience, the rules. Keys come from the issuer's discovery document (OpenID Connect Discovery 1.0), over `https`
//! unless the issuer is this machine.
//!
//! ```
//! use narval_oidc::{Claim, Issuer, Rule, Verifier};
//!
//! let main_of_ours = vec![
//!     Claim::new("repository", &["our-org/*"])?,
//!     Claim::new("ref", &["refs/heads/main"])?,
//! ];
//! let rule = Rule::new(main_of_ours, "pushes from main")?;
//! let github = Issuer::new("github", "https://token.actions.githubusercontent.com", "https://cache.example.org", vec![rule])?;
//! let verifier = Verifier::new(vec![github]);
//! assert!(verifier.verify("not.a.token").is_err());
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod device;
mod error;
mod fetch;
mod issuer;
mod keys;
mod limits;
mod rule;
mod token;
mod verifier;

pub use device::{Device, DeviceCode, SignIn, SignedIn, renew, revoke};
pub use error::{DeviceError, OidcError, RuleError};
pub use fetch::token_of_runner;
pub use issuer::{Issuer, is_safe};
pub use limits::{
    ANSWER_LEN_MAX, CODE_LEN_MAX, DISCOVERY_LEN_MAX, FETCH_TIME_MAX, FETCH_TIMEOUT, FETCH_WINDOW, FETCHES_MAX,
    INTERVAL_MAX, KEYS_FRESH, KEYS_LEN_MAX, KEYS_MAX, KEYS_STALE_MAX, LEEWAY_SECONDS, SHOWN_LEN_MAX, SIGN_IN_TIME_MAX,
    TOKEN_LEN_MAX,
};
pub use rule::{Claim, Claims, Rule};
pub use token::identity_token;
pub use verifier::{Verified, Verifier};
