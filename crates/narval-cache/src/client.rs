//! The HTTP client as binary caches need it: with decoders for their content codings, and with signatures for buckets.

use std::sync::Arc;

use narval_client::{Buckets, Client, ClientOptions};

use crate::bucket::BucketSigner;
use crate::bucket::credentials::Environment;
use crate::codings::CODINGS;

/// A client for binary caches: it decodes the content codings that they use. Requests to buckets (`s3://`) are signed with
/// the credentials that this process' environment leads to, unless `options` says how.
pub fn client(options: ClientOptions) -> Client {
    let of_process = || Arc::new(BucketSigner::new(Environment::of_process())) as Arc<dyn Buckets>;
    let buckets = options.buckets.clone().unwrap_or_else(of_process);
    Client::new(ClientOptions { codings: CODINGS, buckets: Some(buckets), ..options })
}
