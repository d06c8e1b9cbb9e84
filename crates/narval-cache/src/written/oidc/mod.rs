//! OpenID Connect: a CI job proves who it is with a token of its platform, and is allowed what the rules say of it.
//!
//! An [`Issuer`] is a platform whose tokens are accepted, for one audience, by [`Rule`]s over its claims. [`Verifier::verify`] takes a JWT
//! (RFC 7519) and says what its bearer may do; the caller makes a short opaque token of it. There is no HTTP server in here.
//!
//! What is checked, in this order: size and form, algorithm (RS256 and ES256 alone: a token never chooses how it is verified), the issuer
//! (only those that were named are ever asked for keys), the key id, the signature, `exp` and `nbf`, the audience, the rules. Keys come from
//! the issuer's discovery document (OpenID Connect Discovery 1.0), over `https` unless the issuer is this machine.
//!
//! ```
//! use narval_cache::written::oidc::{Claim, Issuer, Rule, Verifier};
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

mod error;
mod issuer;
mod keys;
mod rule;
mod token;
mod verifier;

pub use error::{OidcError, RuleError};
pub use issuer::Issuer;
pub use rule::{Claim, Claims, Rule};
pub use verifier::{Verified, Verifier};

/// The longest token that is looked at, in bytes. GitHub's have 1.5 KB, GitLab's 2 KB.
pub const TOKEN_LEN_MAX: usize = 16 * 1024;
/// How far the clocks of the issuer and of this machine may differ, in seconds.
pub const LEEWAY_SECONDS: u64 = 60;
/// The longest discovery document, in bytes.
pub const DISCOVERY_LEN_MAX: u64 = 64 * 1024;
/// The longest set of keys, in bytes.
pub const KEYS_LEN_MAX: u64 = 256 * 1024;
/// The most keys of an issuer.
pub const KEYS_MAX: usize = 128;
/// How long keys are used before the issuer is asked again.
pub const KEYS_FRESH: std::time::Duration = std::time::Duration::from_secs(3600);
/// How long keys are used while the issuer cannot be asked.
pub const KEYS_STALE_MAX: std::time::Duration = std::time::Duration::from_secs(24 * 3600);
/// How often an issuer is asked for its keys at most, in each [`FETCH_WINDOW`]: tokens with made-up key ids come as often as
/// anybody likes.
pub const FETCHES_MAX: usize = 6;
/// See [`FETCHES_MAX`].
pub const FETCH_WINDOW: std::time::Duration = std::time::Duration::from_secs(60);
/// How long connecting to an issuer may take, and each wait for its next bytes.
pub const FETCH_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// How long the body of an answer of an issuer may take, and how long a token waits for keys that are being fetched.
pub const FETCH_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(20);
