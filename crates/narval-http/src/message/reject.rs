use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;

use http::{HeaderName, HeaderValue, StatusCode, header};

use crate::http1::ProtoError;
use crate::io::sync::Mutex;
use crate::message::response::Response;
use crate::message::upgrade_error::UpgradeError;

/// Ends a handler early, with `?`: a status, and a reason that the client may see.
///
/// The response is the reason as text, or what the router makes of it ([`Router::errors`](crate::Router::errors)). The
/// library's own functions reject a request with it: a malformed query, a body that is too large, a path that is not found.
///
/// ```
/// use narval_http::{Reject, Request, StatusCode};
///
/// fn price(request: Request) -> Result<String, Reject> {
///     let count: u32 = request.params().parse("count")?;
///     let total = count.checked_mul(42).ok_or(Reject::new(StatusCode::BAD_REQUEST, "so many do not exist"))?;
///     Ok(format!("{total}\n"))
/// }
/// # let _: &dyn narval_http::Handler = &price;
/// ```
#[derive(Clone, Debug)]
pub struct Reject {
    status: StatusCode,
    reason: Cow<'static, str>,
    fields: Vec<(HeaderName, HeaderValue)>,
}

impl Reject {
    /// An answer with this status; `reason` is for the client.
    pub fn new(status: StatusCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { status, reason: reason.into(), fields: Vec::new() }
    }

    /// Another status for the same reason.
    #[must_use]
    pub fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Adds a field line, such as `Retry-After`.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.fields.push((name, value));
        self
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The reason.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// What a client is told about an error: the status and reason of a [`Reject`], also if an [`io::Error`] of a body
    /// carries it; a 500 without details for any other.
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Self {
        // Readers of bodies and forms return an io::Error; what matters is the error inside.
        let inner = error.downcast_ref::<io::Error>().and_then(|error| error.get_ref());
        let error: &(dyn Error + 'static) = match inner {
            Some(inner) => inner,
            None => error,
        };
        if let Some(reject) = error.downcast_ref::<Self>() {
            reject.clone()
        } else if let Some(error) = error.downcast_ref::<ProtoError>() {
            Self::from(*error)
        } else if let Some(error) = error.downcast_ref::<UpgradeError>() {
            Self::from(*error)
        } else {
            Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal server error")
        }
    }

    /// The response without a router's say.
    pub(super) fn plain(&self) -> Response {
        let text = Response::text(self.status, format!("{}\n", self.reason));
        self.fields.iter().fold(text, |text, (name, value)| text.replace_header(name.clone(), value.clone()))
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl Error for Reject {}

impl From<ProtoError> for Reject {
    fn from(error: ProtoError) -> Self {
        Self::new(error.status, error.reason)
    }
}

impl From<UpgradeError> for Reject {
    fn from(error: UpgradeError) -> Self {
        let status = match error {
            UpgradeError::NotAnUpgrade | UpgradeError::Version => StatusCode::UPGRADE_REQUIRED,
            UpgradeError::Origin => StatusCode::FORBIDDEN,
            _ => StatusCode::BAD_REQUEST,
        };
        let reject = Self::new(status, error.to_string());
        if status != StatusCode::UPGRADE_REQUIRED {
            return reject;
        }
        reject
            .header(header::UPGRADE, HeaderValue::from_static("websocket"))
            .header(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"))
    }
}

impl From<UpgradeError> for Response {
    fn from(error: UpgradeError) -> Self {
        Self::failure(error)
    }
}

/// Lets `?` work in handlers that return [`io::Result`]; the response still has the status of the inner error.
impl From<Reject> for io::Error {
    fn from(reject: Reject) -> Self {
        Self::new(io::ErrorKind::InvalidData, reject)
    }
}

/// Lets `?` return a whole response early, from a handler whose result is `Result<_, Response>` or has a boxed error.
impl From<Response> for Box<dyn Error + Send + Sync> {
    fn from(response: Response) -> Self {
        Box::new(Early(Mutex::new(Some(response))))
    }
}

/// A response on its way as an error.
struct Early(Mutex<Option<Response>>);

/// Takes the response that an error carries.
pub(super) fn take_early(error: &(dyn Error + 'static)) -> Option<Response> {
    let early = error.downcast_ref::<Early>()?;
    early.0.lock().take()
}

impl fmt::Debug for Early {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Early")
    }
}

impl fmt::Display for Early {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an early response")
    }
}

impl Error for Early {}
