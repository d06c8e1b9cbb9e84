use http::StatusCode;

/// A malformed HTTP message: the status to answer with, and the reason.
///
/// After such an error, request boundaries can no longer be trusted: answer once with `Connection: close`, then close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {reason}")]
pub struct ProtoError {
    /// The status to answer with, 4xx or 5xx.
    pub status: StatusCode,
    /// The rule that was broken, in one line; safe to show to the client.
    pub reason: &'static str,
}

impl ProtoError {
    /// 400 Bad Request for `reason`.
    pub const fn bad_request(reason: &'static str) -> Self {
        Self { status: StatusCode::BAD_REQUEST, reason }
    }

    /// `status` for `reason`.
    pub const fn new(status: StatusCode, reason: &'static str) -> Self {
        Self { status, reason }
    }
}

/// Lets `?` work in handlers that return [`std::io::Result`]; the response still has the status of the inner error.
impl From<ProtoError> for std::io::Error {
    fn from(error: ProtoError) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, error)
    }
}
