//! Requests for `s3://` addresses: somebody else knows where a bucket is and signs, the client sends.

use super::client::{Client, Method, Request, Response};
use super::head::Head;
use super::url::Url;
use super::{Body, HttpError};

/// What a request has besides the usual.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra<'a> {
    /// Field lines: names in lower case, in their order.
    pub fields: &'a [(&'a str, &'a str)],
    /// Of a request to a bucket: query parameters, in their order, not encoded.
    pub query: &'a [(&'a str, &'a str)],
    /// Whether the address carries a signature, so that no credentials are sent.
    pub is_signed: bool,
}

/// The longest error document that is read. S3's are below 1 KiB.
const ERROR_LEN_MAX: u64 = 64 * 1024;

/// Answers for `s3://` addresses (`ClientOptions::buckets`).
pub trait Buckets: Send + Sync {
    /// The address over HTTP at which a request for an object is made, signed for this method, and for the fields and the
    /// query of `extra`. Credentials that have to be fetched are fetched with `client`.
    ///
    /// # Errors
    /// If the address names no bucket, or there is trouble with the credentials.
    fn sign(&self, client: &Client, method: Method, url: &Url, extra: Extra<'_>) -> Result<Url, HttpError>;

    /// What an answer that is not a success means: the status that it stands for, or why the request failed.
    ///
    /// # Errors
    /// If the answer is none to the question.
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
