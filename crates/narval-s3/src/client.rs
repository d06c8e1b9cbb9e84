//! The HTTP client for binary caches: with decoders for their content codings, and with signatures for buckets.

use std::sync::Arc;

use narval_client::{Buckets, Client, ClientOptions};

use crate::credentials::Environment;
use crate::signer::BucketSigner;
use narval_codec::CODINGS;

/// A client for binary caches: it decodes the content codings that they use. Requests to buckets (`s3://`) are signed
/// with the credentials of this process's environment, unless `options` has a signer.
pub fn client(options: ClientOptions) -> Client {
    let of_process = || Arc::new(BucketSigner::new(environment())) as Arc<dyn Buckets>;
    let buckets = options.buckets.clone().unwrap_or_else(of_process);
    Client::new(ClientOptions { codings: CODINGS, buckets: Some(buckets), ..options })
}

#[cfg(not(any(test, feature = "simulation")))]
fn environment() -> Environment {
    Environment::of_process()
}

/// The variables that tests use in place of those of the process, which other tests read at the same time.
#[cfg(any(test, feature = "simulation"))]
pub static ENVIRONMENT: std::sync::OnceLock<Vec<(String, String)>> = std::sync::OnceLock::new();

#[cfg(any(test, feature = "simulation"))]
fn environment() -> Environment {
    ENVIRONMENT.get().map_or_else(Environment::of_process, |variables| Environment::of(variables.clone()))
}
