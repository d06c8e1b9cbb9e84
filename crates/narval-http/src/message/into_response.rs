use std::error::Error;

use http::StatusCode;

use super::response::Response;
use crate::http1::ProtoError;
// The one error of a higher part that is known here: its response has fields of its own, and an error that a handler returns can only
// be asked for its type.
use crate::ws::UpgradeError;

/// What a handler may return.
///
/// A handler that returns a `Result` can use `?`: an error becomes a 500 and a log line, or the response of the
/// router's [`on_error`](crate::Router::on_error). A [`ProtoError`] (a malformed query, path or form) and an
/// [`UpgradeError`] become their own status.
///
/// ```
/// use narval_http::{Request, Response, StatusCode};
///
/// fn motd(_: Request) -> Result<Response, std::io::Error> {
///     Ok(Response::text(StatusCode::OK, std::fs::read_to_string("/etc/motd")?))
/// }
/// # let _: &dyn narval_http::Handler = &motd;
/// ```
pub trait IntoResponse {
    /// Converts the value to a response.
    fn into_response(self) -> Response;
}

impl IntoResponse for Response {
    fn into_response(self) -> Response {
        self
    }
}

impl IntoResponse for StatusCode {
    fn into_response(self) -> Response {
        Response::new(self)
    }
}

impl IntoResponse for &'static str {
    fn into_response(self) -> Response {
        Response::text(StatusCode::OK, self)
    }
}

impl IntoResponse for String {
    fn into_response(self) -> Response {
        Response::text(StatusCode::OK, self)
    }
}

impl<R, E> IntoResponse for Result<R, E>
where
    R: IntoResponse,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    fn into_response(self) -> Response {
        match self {
            Ok(response) => response.into_response(),
            Err(error) => Response::failure(error),
        }
    }
}

impl Response {
    /// The response for an error: a 500 without details, or the status and reason of a [`ProtoError`] or
    /// [`UpgradeError`]. The router's [`on_error`](crate::Router::on_error) gets the error.
    pub fn failure(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error = error.into();
        // Readers of bodies and forms return an io::Error; what matters is the error inside.
        let in_io =
            error.downcast_ref::<std::io::Error>().and_then(|error| error.get_ref()?.downcast_ref::<ProtoError>());
        let mut response = if let Some(error) = error.downcast_ref::<ProtoError>().or(in_io) {
            Self::text(error.status, format!("{}\n", error.reason))
        } else if let Some(error) = error.downcast_ref::<UpgradeError>() {
            Self::from(*error)
        } else {
            tracing::error!("a handler failed: {error}");
            Self::text(StatusCode::INTERNAL_SERVER_ERROR, "internal server error\n")
        };
        response.failure = Some(error);
        response
    }

    /// Takes the error of [`failure`](Response::failure).
    pub(crate) fn take_failure(&mut self) -> Option<Box<dyn Error + Send + Sync>> {
        self.failure.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_become_responses() {
        let fine: Result<&'static str, std::io::Error> = Ok("hello");
        assert_eq!(fine.into_response().status(), StatusCode::OK);
        let failed: Result<Response, _> = Err(std::io::Error::other("disk on fire"));
        let mut response = failed.into_response();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(response.take_failure().expect("kept").to_string(), "disk on fire");
        let malformed: Result<Response, _> = Err(ProtoError::bad_request("no"));
        assert_eq!(malformed.into_response().status(), StatusCode::BAD_REQUEST);
    }
}
