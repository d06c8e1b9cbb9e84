use std::borrow::Cow;
use std::error::Error;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

use crate::message::body::Body;
use crate::message::reject::{Reject, take_early};
use crate::message::response::Response;

/// What a handler may return.
///
/// Text is `text/plain; charset=utf-8`, bytes have no type, [`Json`] is what it says. `None` is a 404, `()` a 204.
/// A pair of a status and any of these has that status.
///
/// A handler that returns a `Result` can use `?`. A [`Reject`] and a [`Response`] in place of the error are answers; any
/// other error is a 500 without details, and a line in the log. [`Router::errors`](crate::Router::errors) sees them all but
/// the `Response`.
///
/// ```
/// use narval_http::{Json, Request, Response, StatusCode};
///
/// fn motd(_: Request) -> Result<Response, std::io::Error> {
///     Ok(Response::text(StatusCode::OK, std::fs::read_to_string("/etc/motd")?))
/// }
///
/// fn made() -> (StatusCode, &'static str) {
///     (StatusCode::CREATED, "made\n")
/// }
///
/// fn square(request: Request) -> Option<Json<u64>> {
///     let number: u64 = request.params().parse("number").ok()?;
///     number.checked_mul(number).map(Json)
/// }
/// # let _ = narval_http::Router::new().get("/", motd).post("/", made).get("/squares/@number", square).build().unwrap();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no response",
    note = "return text, bytes, `Json`, a `StatusCode`, a pair of a `StatusCode` and one of these, an `Option` or `Result`, or a `Response`"
)]
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

impl IntoResponse for () {
    fn into_response(self) -> Response {
        Response::new(StatusCode::NO_CONTENT)
    }
}

impl IntoResponse for Reject {
    fn into_response(self) -> Response {
        Response::failure(self)
    }
}

/// Implements the trait for types of text, or of bytes.
macro_rules! bodies {
    ($of:expr => $($kind:ty)*) => { $(
        impl IntoResponse for $kind {
            fn into_response(self) -> Response {
                $of(self)
            }
        }
    )* };
}

bodies!(|text| Response::text(StatusCode::OK, text) => &'static str String Cow<'static, str>);
bodies!(|bytes| Response::new(StatusCode::OK).body(Body::bytes(bytes)) => &'static [u8] Vec<u8> Bytes);
bodies!(|body| Response::new(StatusCode::OK).body(body) => Body);

/// A value as JSON: a response, with status 200. [`Response::json`] has another status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        Response::json(StatusCode::OK, &self.0)
    }
}

/// `None`: 404.
impl<R: IntoResponse> IntoResponse for Option<R> {
    fn into_response(self) -> Response {
        self.map_or_else(|| Response::failure(Reject::new(StatusCode::NOT_FOUND, "not found")), R::into_response)
    }
}

impl<R: IntoResponse> IntoResponse for (StatusCode, R) {
    fn into_response(self) -> Response {
        let status = self.0;
        self.1.into_response().map(move |response| response.with_status(status))
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
    /// A value as JSON. A value that cannot be serialized is a [`failure`](Self::failure).
    ///
    /// ```
    /// use narval_http::{Response, StatusCode};
    ///
    /// let response = Response::json(StatusCode::CREATED, &[1, 2, 3]).header("location", "/lists/1");
    /// assert_eq!(response.into_bytes(100)?, "[1,2,3]");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn json(status: StatusCode, value: &(impl Serialize + ?Sized)) -> Self {
        Self::json_as(HeaderValue::from_static("application/json"), status, value)
    }

    pub(crate) fn json_as(content_type: HeaderValue, status: StatusCode, value: &(impl Serialize + ?Sized)) -> Self {
        match serde_json::to_vec(value) {
            Ok(json) => Self::new(status).header(header::CONTENT_TYPE, content_type).body(Body::bytes(json)),
            Err(error) => Self::failure(error),
        }
    }

    /// A page: `text/html; charset=utf-8`.
    pub fn html(status: StatusCode, html: impl Into<String>) -> Self {
        let content_type = HeaderValue::from_static("text/html; charset=utf-8");
        Self::new(status).header(header::CONTENT_TYPE, content_type).body(Body::bytes(html.into()))
    }

    /// The response for an error: the status and reason of a [`Reject`], also if an [`io::Error`](std::io::Error) carries it,
    /// or a 500 without details, which is logged. The router's [`errors`](crate::Router::errors) get the error.
    pub fn failure(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        let error = error.into();
        if let Some(early) = take_early(&*error) {
            return early;
        }
        let reject = Reject::of(&*error);
        if reject.status() == StatusCode::INTERNAL_SERVER_ERROR && !error.is::<Reject>() {
            tracing::error!("a handler failed: {error}");
        }
        let mut response = reject.plain();
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
    use crate::http1::ProtoError;

    fn seen(response: impl IntoResponse) -> (u16, Bytes) {
        let response = response.into_response();
        (response.status().as_u16(), response.into_bytes(1000).expect("from memory"))
    }

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

    #[test]
    fn values_become_responses() {
        assert_eq!(seen(()), (204, Bytes::new()));
        assert_eq!(seen(Json([1, 2])), (200, "[1,2]".into()));
        assert_eq!(seen((StatusCode::CREATED, "made")), (201, "made".into()));
        assert_eq!(seen((StatusCode::ACCEPTED, Json("x"))), (202, "\"x\"".into()));
        assert_eq!(seen(None::<String>), (404, "not found\n".into()));
        assert_eq!(seen(Some(vec![1u8])), (200, Bytes::from_static(&[1])));
        assert_eq!(seen(Cow::Borrowed("text")), (200, "text".into()));
        let unserializable = std::collections::HashMap::from([((1, 2), 3)]);
        assert_eq!(seen(Json(unserializable)), (500, "internal server error\n".into()));
        let response = Json(1).into_response();
        assert_eq!(response.header_value(&header::CONTENT_TYPE).expect("has one"), "application/json");
    }

    #[test]
    fn a_response_or_a_reject_ends_a_handler_early() {
        fn early(with: u8) -> Result<&'static str, Box<dyn Error + Send + Sync>> {
            match with {
                0 => Err(Response::text(StatusCode::IM_A_TEAPOT, "a teapot"))?,
                1 => Err(Reject::new(StatusCode::CONFLICT, format!("{} of them", 2)))?,
                2 => Err(std::io::Error::from(Reject::new(StatusCode::GONE, "gone")))?,
                _ => Ok("late"),
            }
        }
        assert_eq!(seen(early(0)), (418, "a teapot".into()));
        assert_eq!(seen(early(1)), (409, "2 of them\n".into()));
        assert_eq!(seen(early(2)), (410, "gone\n".into()));
        assert_eq!(seen(early(3)), (200, "late".into()));
        let response: Result<(), Response> = Err(Response::new(StatusCode::FOUND).header("location", "/"));
        assert_eq!(response.into_response().header_value(&header::LOCATION).expect("kept"), "/");
        let reject = Reject::new(StatusCode::UNAUTHORIZED, "who?");
        let reject = reject.header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        assert_eq!(reject.into_response().header_value(&header::WWW_AUTHENTICATE).expect("kept"), "Bearer");
    }
}
