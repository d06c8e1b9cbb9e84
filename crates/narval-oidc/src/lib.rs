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
mod rule;
mod token;
mod verifier;

pub use device::{Device, DeviceCode, SignIn, SignedIn, renew, revoke};
pub use error::{DeviceError, OidcError, RuleError};
pub use fetch::token_of_runner;
pub use issuer::{Issuer, is_safe};
pub use rule::{Claim, Claims, Rule};
pub use token::identity_token;
pub use verifier::{Verified, Verifier};

/// The maximum size of a token in bytes. GitHub's have 1.5 KB, GitLab's 2 KB.
pub const TOKEN_LEN_MAX: usize = 16 * 1024;
/// How far the clocks of the issuer and of this machine may differ, in seconds.
pub const LEEWAY_SECONDS: u64 = 60;
/// The maximum size of a discovery document in bytes.
pub const DISCOVERY_LEN_MAX: u64 = 64 * 1024;
/// The maximum size of a key set in bytes.
pub const KEYS_LEN_MAX: u64 = 256 * 1024;
/// The maximum number of keys of an issuer.
pub const KEYS_MAX: usize = 128;
/// How long keys are used before the issuer is queried again.
pub const KEYS_FRESH: std::time::Duration = std::time::Duration::from_secs(3600);
/// How long keys are used while the issuer is unavailable.
pub const KEYS_STALE_MAX: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
/// The maximum number of key requests to an issuer per [`FETCH_WINDOW`]: anybody can send tokens with made-up key ids.
pub const FETCHES_MAX: usize = 6;
/// See [`FETCHES_MAX`].
pub const FETCH_WINDOW: std::time::Duration = std::time::Duration::from_secs(60);
/// The timeout for connecting to an issuer, and for each wait for its next bytes.
pub const FETCH_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// How long a token waits for keys that are being fetched.
pub const FETCH_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(20);
/// The maximum size of an answer to somebody who signs in, in bytes.
pub const ANSWER_LEN_MAX: u64 = 64 * 1024;
/// The longest code that a person enters, in bytes.
pub const CODE_LEN_MAX: usize = 64;
/// The longest text that an issuer or a cache has this program show or send on, such as an address, in bytes.
pub const SHOWN_LEN_MAX: usize = 2048;
/// How long a person has to sign in, whatever the issuer says.
pub const SIGN_IN_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(30 * 60);
/// The longest time between two questions whether the person has signed in.
pub const INTERVAL_MAX: std::time::Duration = std::time::Duration::from_secs(60);
