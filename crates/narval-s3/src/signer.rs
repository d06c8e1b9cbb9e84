//! Signs requests to buckets (AWS Signature Version 4, in the query).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use narval_client::{Buckets, Client, Extra, Head, HttpError, Method, Url};
use parking_lot::Mutex;
use rusty_s3::{Bucket, UrlStyle};

use crate::address::{AddressingStyle, BucketAddress};
use crate::credentials::{CredentialsError, Environment, Provider};
use crate::error_response::ErrorResponse;

/// The validity of a signed address: long enough for a request to wait for its turn, and for a slow upload to start.
const VALID_FOR_SECONDS: u64 = 3600;

/// Signs requests with the credentials for each bucket. Secrets are never logged, and wiped from memory when dropped.
pub struct BucketSigner {
    environment: Arc<Environment>,
    /// By profile.
    providers: Mutex<HashMap<Option<String>, Arc<Provider>>>,
    /// Whether a denied access was already logged.
    warned: AtomicBool,
}

impl BucketSigner {
    /// A signer that searches credentials in this environment when they are first needed.
    pub fn new(environment: Environment) -> Self {
        Self { environment: Arc::new(environment), providers: Mutex::default(), warned: AtomicBool::new(false) }
    }

    fn provider(&self, place: &BucketAddress) -> Arc<Provider> {
        let mut providers = self.providers.lock();
        let provider = providers.entry(place.profile.clone());
        Arc::clone(
            provider.or_insert_with(|| Arc::new(Provider::new(Arc::clone(&self.environment), place.profile.clone()))),
        )
    }
}

impl Buckets for BucketSigner {
    fn sign(&self, client: &Client, method: Method, url: &Url, extra: Extra<'_>) -> Result<Url, HttpError> {
        let place = place_of(url)?;
        let keys = self.provider(&place).keys(client).map_err(|error| unusable(&place, &error))?;
        let (_, key) = url.bucket_and_key();
        let object = bucket_of(&place)?.object_url(&key);
        let (query, fields) = (extra.query.iter().copied(), extra.fields.iter().copied());
        let (from, seconds) = match extra.valid {
            None => (Timestamp::now(), VALID_FOR_SECONDS),
            Some(valid) => {
                let from = Timestamp::try_from(valid.from).map_err(|error| permanent(format!("the clock: {error}")))?;
                (from, valid.seconds.into())
            }
        };
        let signed = match keys {
            Some(keys) => rusty_s3::signing::sign(
                &from,
                method_of(method),
                object,
                &keys.id,
                &keys.secret,
                keys.token.as_ref().map(|token| token.as_str()),
                &place.region,
                seconds,
                query,
                fields,
            ),
            None => {
                let mut object = object;
                if !extra.query.is_empty() {
                    object.query_pairs_mut().extend_pairs(extra.query);
                }
                object
            }
        };
        Ok(Url::parse(signed.as_str())?)
    }

    fn interpret_error(&self, url: &Url, head: &Head, body: &[u8]) -> Result<u16, HttpError> {
        let place = place_of(url)?;
        let (error_response, provider) = (ErrorResponse::read(head, body), self.provider(&place));
        if let Some(status) = error_response.status() {
            if status == 403 && !self.warned.swap(true, Ordering::Relaxed) {
                let meant = error_response.into_error(&place, provider.is_anonymous());
                tracing::warn!("{meant} (denied objects count as absent)");
            }
            return Ok(status);
        }
        if error_response.is_expired() {
            provider.forget();
        }
        Err(error_response.into_error(&place, provider.is_anonymous()))
    }
}

fn place_of(url: &Url) -> Result<BucketAddress, HttpError> {
    BucketAddress::of(url).map_err(|error| permanent(error.to_string()))
}

fn bucket_of(place: &BucketAddress) -> Result<Bucket, HttpError> {
    let style = match place.style {
        AddressingStyle::Path => UrlStyle::Path,
        AddressingStyle::VirtualHost => UrlStyle::VirtualHost,
    };
    let broken = |reason: String| permanent(format!("the bucket '{}' at {}: {reason}", place.bucket, place.endpoint));
    let endpoint = place.endpoint.parse().map_err(|error: url::ParseError| broken(error.to_string()))?;
    Bucket::new(endpoint, style, place.bucket.clone(), place.region.clone()).map_err(|error| broken(error.to_string()))
}

const fn method_of(method: Method) -> rusty_s3::Method {
    match method {
        Method::Get => rusty_s3::Method::Get,
        Method::Head => rusty_s3::Method::Head,
        // Nothing patches an object; a bucket would refuse the signature.
        Method::Post | Method::Patch => rusty_s3::Method::Post,
        Method::Put => rusty_s3::Method::Put,
        Method::Delete => rusty_s3::Method::Delete,
    }
}

fn unusable(place: &BucketAddress, error: &CredentialsError) -> HttpError {
    let message = format!("credentials for the bucket '{}': {error}", place.bucket);
    HttpError::Bucket { status: 0, message, retry_after: None, is_retryable: error.is_passing() }
}

const fn permanent(message: String) -> HttpError {
    HttpError::Bucket { status: 0, message, retry_after: None, is_retryable: false }
}
