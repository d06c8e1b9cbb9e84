use http::StatusCode;

/// A message that breaks the rules of HTTP/1.1: what to answer, and why.
///
/// After one of these the connection can't be trusted to be in step: answer once with `Connection: close`, then close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {reason}")]
pub struct ProtoError {
    /// The status to answer with, 4xx or 5xx.
    pub status: StatusCode,
    /// One line that says which rule was broken; safe to show to the client.
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

/// So that `?` works in handlers that return [`std::io::Result`]; such an error still becomes the status it holds.
impl From<ProtoError> for std::io::Error {
    fn from(error: ProtoError) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, error)
    }
}
