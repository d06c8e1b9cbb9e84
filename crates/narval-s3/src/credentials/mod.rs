//! Credentials for buckets, found in the same way as AWS's tools do.
//!
//! The first of these that exists: the environment (`AWS_ACCESS_KEY_ID`), the profile of the files (`AWS_PROFILE`, else
//! `default`), a web identity (`AWS_WEB_IDENTITY_TOKEN_FILE`), the container's endpoint
//! (`AWS_CONTAINER_CREDENTIALS_…`), the instance's metadata. An address with a profile (`profile=`) only uses that one.
//! Without credentials, requests are not signed, so public buckets can be read.
//!
//! Source: AWS SDKs and Tools Reference Guide, "Standardized credential providers".

mod container;
mod document;
mod environment;
mod instance;
mod profile;
mod provider;
mod web_identity;

use std::fmt;
use std::time::SystemTime;

use thiserror::Error;
use zeroize::Zeroizing;

pub use environment::Environment;
pub use provider::Provider;

/// An access key. Its secrets are wiped when it is dropped, and not printed.
pub struct Keys {
    /// The access key's id, which is no secret.
    pub id: String,
    /// The secret access key.
    pub secret: Zeroizing<String>,
    /// The session token of keys that expire.
    pub token: Option<Zeroizing<String>>,
    /// When they expire.
    pub expires: Option<SystemTime>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("id", &self.id).field("expires", &self.expires).finish_non_exhaustive()
    }
}

/// Why configured credentials are not available.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum CredentialsError {
    /// A setting or a file is invalid.
    #[error("{0}")]
    Setting(String),
    /// Their provider failed, possibly temporarily.
    #[error("{0}")]
    Passing(String),
}

impl CredentialsError {
    /// Whether another attempt can help.
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Passing(_))
    }
}
