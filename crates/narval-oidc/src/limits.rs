//! How much is read of an issuer, and how long it is believed.

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
