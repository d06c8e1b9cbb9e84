//! Requests for `s3://` addresses: a [`Buckets`] locates the bucket and signs, the client sends.

use super::client::{Client, Method, Request, Response};
use super::head::Head;
use super::url::Url;
use super::{Body, HttpError};

/// Additional fields and parameters of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra<'a> {
    /// Field lines in order, with names in lower case.
    pub fields: &'a [(&'a str, &'a str)],
    /// Query parameters of a request to a bucket, in order, not encoded.
    pub query: &'a [(&'a str, &'a str)],
    /// Whether the URL contains a signature, so that no credentials are sent.
    pub is_signed: bool,
}

/// The maximum size of an error document. S3's are below 1 KiB.
const ERROR_LEN_MAX: u64 = 64 * 1024;

/// Handles `s3://` addresses (`ClientOptions::buckets`).
pub trait Buckets: Send + Sync {
    /// Returns the HTTP URL for a request for an object, signed for this method and for the fields and the query of
    /// `extra`. Credentials that must be fetched are fetched with `client`.
    ///
    /// # Errors If the address names no bucket, or the credentials are not available.
    fn sign(&self, client: &Client, method: Method, url: &Url, extra: Extra<'_>) -> Result<Url, HttpError>;

    /// Interprets an unsuccessful response: returns the status that it means.
    ///
    /// # Errors Why the request failed, if it was not answered.
    fn refusal(&self, url: &Url, head: &Head, body: &[u8]) -> Result<u16, HttpError>;
}

impl Client {
    /// Sends a request for an `s3` address.
    pub(crate) fn send_to_bucket(&self, request: &Request<'_>) -> Result<Response, HttpError> {
        let url = self.sign(request.method, request.url, request.extra)?;
        let extra = Extra { is_signed: true, ..request.extra };
        let Response { head, body } = self.send_once(&Request { url: &url, extra, ..request.clone() })?;
        if matches!(head.status, 200..=299) {
            return Ok(Response { head, body });
        }
        let document = body.read_all(ERROR_LEN_MAX).unwrap_or_default();
        Ok(Response { head: Head::local(self.bucket_refusal(request.url, &head, &document)?), body: Body::empty() })
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

    pub(crate) fn bucket_refusal(&self, url: &Url, head: &Head, document: &[u8]) -> Result<u16, HttpError> {
        match &self.options().buckets {
            Some(buckets) => buckets.refusal(url, head, document),
            None => Ok(head.status),
        }
    }
}
