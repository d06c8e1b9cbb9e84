//! The HTTP client for binary caches: with decoders for their content codings, and with signatures for buckets.

use std::sync::Arc;

use narval_client::{Buckets, Client, ClientOptions};

use crate::bucket::BucketSigner;
use crate::bucket::credentials::Environment;
use crate::codings::CODINGS;

/// A client for binary caches: it decodes the content codings that they use. Requests to buckets (`s3://`) are signed
/// with the credentials of this process's environment, unless `options` has a signer.
pub fn client(options: ClientOptions) -> Client {
    let of_process = || Arc::new(BucketSigner::new(Environment::of_process())) as Arc<dyn Buckets>;
    let buckets = options.buckets.clone().unwrap_or_else(of_process);
    Client::new(ClientOptions { codings: CODINGS, buckets: Some(buckets), ..options })
}
