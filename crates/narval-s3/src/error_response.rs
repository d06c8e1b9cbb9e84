//! Error responses of an object store as one-line messages, with what to do.

use std::time::Duration;

use narval_client::{Head, HttpError};

use crate::address::BucketAddress;
use crate::checksums::REFUSED;
use crate::xml::element;

/// The maximum length of a displayed server message.
const MESSAGE_LEN_MAX: usize = 200;

/// A parsed error response.
pub(super) struct ErrorResponse {
    status: u16,
    /// S3's error code. Responses to HEAD have none.
    pub(super) code: String,
    message: String,
    /// The correct region, according to the store.
    region: Option<String>,
    retry_after: Option<Duration>,
}

impl ErrorResponse {
    pub(super) fn read(head: &Head, document: &[u8]) -> Self {
        let document = String::from_utf8_lossy(document);
        let region = element(&document, "Region").or_else(|| head.field("x-amz-bucket-region").map(str::to_owned));
        let printable = |text: String| -> String {
            text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MESSAGE_LEN_MAX).collect()
        };
        Self {
            status: head.status,
            code: printable(element(&document, "Code").unwrap_or_default()),
            message: printable(element(&document, "Message").unwrap_or_default()),
            region: region.map(printable),
            retry_after: head.retry_after(),
        }
    }

    /// Whether the credentials have expired, so new ones may help.
    pub(super) fn is_expired(&self) -> bool {
        matches!(
            self.code.as_str(),
            "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" | "RequestExpired"
        )
    }

    /// The status that the response means, if it is an answer to the request.
    pub(super) fn status(&self) -> Option<u16> {
        match (self.status, self.code.as_str()) {
            (304 | 416 | 412, _) => Some(self.status),
            // Only the store itself says so: a proxy, or another store, answers 404 in its own way, and a bucket can be missing.
            (404, "NoSuchKey") => Some(404),
            // The response for a missing object if the bucket may not be listed.
            (403, "" | "AccessDenied" | "Forbidden") => Some(403),
            _ => None,
        }
    }

    /// Converts the response to an error.
    pub(super) fn into_error(self, place: &BucketAddress, is_anonymous: bool) -> HttpError {
        let advice = self.advice(place, is_anonymous);
        let code = if self.code.is_empty() { String::new() } else { format!(" {}", self.code) };
        let message = format!("the bucket '{}' answered {}{code}: {advice}", place.bucket, self.status);
        let is_retryable = match self.code.as_str() {
            "SlowDown" | "InternalError" | "ServiceUnavailable" | "RequestTimeout" | "OperationAborted" => true,
            // The body was damaged in transit.
            "BadDigest" | "XAmzContentChecksumMismatch" | "IncompleteBody" => true,
            "NotImplemented" | "NoSuchBucket" => false,
            _ => self.is_expired() || matches!(self.status, 408 | 429 | 500 | 502 | 503 | 504),
        };
        HttpError::Bucket { status: self.status, message, retry_after: self.retry_after, is_retryable }
    }

    fn advice(&self, place: &BucketAddress, is_anonymous: bool) -> String {
        let BucketAddress { endpoint, region, .. } = place;
        let other_region = self.region.as_deref().filter(|other| other != region);
        match (self.code.as_str(), self.status) {
            ("NoSuchBucket", _) => format!("there is none at {endpoint}; check its name, region= and endpoint="),
            // The second name is versitygw's.
            ("InvalidAccessKeyId" | "XAdminUserNotFound", _) => {
                format!("{endpoint} does not know the access key; check AWS_ACCESS_KEY_ID, or the profile")
            }
            ("SignatureDoesNotMatch", _) => {
                "the secret key is wrong, or a proxy changes requests; check AWS_SECRET_ACCESS_KEY, or the profile"
                    .into()
            }
            ("RequestTimeTooSkewed", _) => "the clock of this machine is wrong; set it".into(),
            _ if self.is_expired() => "the credentials have expired; renew them".into(),
            ("InvalidToken", _) => "the session token is not valid; renew AWS_SESSION_TOKEN, or the profile".into(),
            ("SlowDown" | "ServiceUnavailable", _) | (_, 429 | 503) => {
                "the store is overloaded; try again later, or with fewer connections".into()
            }
            _ if other_region.is_some() => {
                format!("it is in another region; add region={}", other_region.unwrap_or(""))
            }
            ("AuthorizationHeaderMalformed" | "AuthorizationQueryParametersError", _) => {
                format!("region={region} may be wrong; {}", self.message)
            }
            ("PermanentRedirect" | "TemporaryRedirect", _) | ("", 300..=399) => {
                "it is elsewhere; check region= and endpoint=".into()
            }
            ("AccessDenied" | "AllAccessDisabled", _) | (_, 403) if is_anonymous => {
                "no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile".into()
            }
            ("AccessDenied" | "AllAccessDisabled", _) => "the credentials do not allow it".into(),
            ("BadDigest" | "XAmzContentChecksumMismatch", _) => "the data was damaged in transit".into(),
            ("EntityTooLarge", _) => "the object is larger than the store accepts".into(),
            ("QuotaExceeded" | "InsufficientStorage", _) | (_, 507) => "it has no space left".into(),
            ("InvalidArgument" | "InvalidRequest" | "NotImplemented", 400 | 501)
                if self.message.to_ascii_lowercase().contains("x-amz-checksum-") =>
            {
                format!("{REFUSED}; add checksums=off to its address")
            }
            ("NotImplemented" | "MethodNotAllowed", _) => "the store does not support a required operation".into(),
            ("", 404) => format!(
                "this is no answer of an object store; check endpoint= and whether a proxy is in the way of {endpoint}"
            ),
            ("", 400..) if self.message.is_empty() => {
                format!("{endpoint} gave no reason; check that it is an S3 endpoint, and scheme=")
            }
            _ if !self.message.is_empty() => self.message.clone(),
            _ => "no reason given".into(),
        }
    }
}
