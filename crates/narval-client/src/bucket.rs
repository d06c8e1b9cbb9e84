//! Requests for `s3://` addresses: a [`Buckets`] locates the bucket and signs, the client sends.

use std::time::{Duration, SystemTime};

use crate::error::HttpError;
use crate::exchange::body::Body;
use crate::exchange::client::Client;
use crate::exchange::request::{Extra, Method, Request, Response, Valid};
use crate::message::head::Head;
use crate::url::Url;

/// The maximum size of an error document. S3's are below 1 KiB.
const ERROR_LEN_MAX: u64 = 64 * 1024;

impl Client {
    /// Sends a request for an `s3` address.
    pub(crate) fn send_to_bucket(&self, request: &Request<'_>) -> Result<Response, HttpError> {
        let url = self.sign(request.method, request.url, request.extra)?;
        let extra = Extra { is_signed: true, ..request.extra };
        let Response { head, body } = self.send_once(&Request { url: &url, extra, ..request.clone() })?;
        if head.status < 500 {
            self.pool().answered(request.url.origin());
        }
        if matches!(head.status, 200..=299) {
            return Ok(Response { head, body });
        }
        if (request.method, head.status) == (Method::Head, 404) {
            // Without a body, it does not say what is missing.
            let Response { head, .. } = self.send_to_bucket(&Request { method: Method::Get, ..request.clone() })?;
            return Ok(Response { head, body: Body::empty() });
        }
        let document = body.read_all(ERROR_LEN_MAX).unwrap_or_default();
        Ok(Response {
            head: Head::local(self.interpret_bucket_error(request.url, &head, &document)?),
            body: Body::empty(),
        })
    }

    /// The signed address of a request for an `s3` address.
    pub(crate) fn sign(&self, method: Method, url: &Url, extra: Extra<'_>) -> Result<Url, HttpError> {
        match &self.options().buckets {
            _ if self.is_offline() => Err(HttpError::Offline),
            Some(buckets) => buckets.sign(self, method, url, extra),
            None => Err(HttpError::Bucket {
                status: 0,
                message: "this client has no access to buckets".to_owned(),
                retry_after: None,
                is_retryable: false,
            }),
        }
    }

    /// The address at which whoever has it can read an object for a while. A secret, as long as the bucket is private.
    ///
    /// # Errors
    /// If there are no usable credentials.
    pub fn presign(&self, url: &Url, valid_for: Duration) -> Result<String, HttpError> {
        let seconds = u32::try_from(valid_for.as_secs().max(1)).unwrap_or(u32::MAX);
        let valid = Some(Valid { from: SystemTime::now(), seconds });
        let signed = self.sign(Method::Get, url, Extra { valid, ..Extra::default() })?;
        Ok(format!("{}{}", signed.origin(), signed.target()))
    }

    pub(crate) fn interpret_bucket_error(&self, url: &Url, head: &Head, document: &[u8]) -> Result<u16, HttpError> {
        match &self.options().buckets {
            Some(buckets) => buckets.interpret_error(url, head, document),
            None => Ok(head.status),
        }
    }
}
