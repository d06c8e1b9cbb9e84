use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, StatusCode, header};

use crate::message::reject::Reject;
use crate::message::request::Request;
use crate::message::response::Response;
use crate::web::middleware::{Middleware, Next};
use http::Extensions;

/// A middleware that asks for a name and a password (RFC 7617), as browsers can ask their users. Use it over TLS only.
///
/// The check says who it is, and handlers get that as an [extension](Request::extension). Compare hashes of passwords, not
/// passwords: the time of a comparison tells how much of a password is right.
///
/// ```
/// use narval_http::{BasicAuth, Request, Router, StatusCode, test};
///
/// #[derive(Clone)]
/// struct User(String);
///
/// let auth = BasicAuth::new("notes", |name, password| {
///     (name == "ada" && password == "lovelace").then(|| User(name.to_owned()))
/// });
/// let me = |request: Request| request.extension::<User>().map(|user| user.0.clone());
/// let app = test::client(Router::new().layer(auth).get("/me", me).build()?);
/// assert_eq!(app.get("/me").send().status(), StatusCode::UNAUTHORIZED);
/// assert_eq!(app.get("/me").header("authorization", "Basic YWRhOmxvdmVsYWNl").send().text(), "ada");
/// # Ok::<(), narval_http::RouteError>(())
/// ```
#[derive(Clone)]
pub struct BasicAuth {
    challenge: HeaderValue,
    check: Arc<CheckPassword>,
}

/// Leaves with the request who it is, and returns whether it may pass.
type CheckPassword = dyn Fn(&str, &str, &mut Extensions) -> bool + Send + Sync;
type CheckToken = dyn Fn(&str, &mut Extensions) -> bool + Send + Sync;

impl BasicAuth {
    /// Asks in the name of `realm`, which browsers show. `check` gets name and password.
    pub fn new<T>(realm: &str, check: impl Fn(&str, &str) -> Option<T> + Send + Sync + 'static) -> Self
    where
        T: Clone + Send + Sync + 'static,
    {
        let is_plain = |c: &char| (c.is_ascii_graphic() || *c == ' ') && !matches!(c, '"' | '\\');
        let realm: String = realm.chars().filter(is_plain).collect();
        let challenge = HeaderValue::try_from(format!("Basic realm=\"{realm}\", charset=\"UTF-8\""));
        let check = move |name: &str, password: &str, who: &mut Extensions| keep(check(name, password), who);
        Self { challenge: challenge.unwrap_or(HeaderValue::from_static("Basic")), check: Arc::new(check) }
    }
}

impl Middleware for BasicAuth {
    fn handle(&self, mut request: Request, next: Next<'_>) -> Response {
        let given = credentials(&request, "basic").and_then(|given| STANDARD.decode(given).ok());
        let given = given.and_then(|given| String::from_utf8(given).ok());
        match given.as_deref().and_then(|given| given.split_once(':')) {
            Some((name, password)) if (self.check)(name, password, request.extensions_mut()) => next.run(request),
            _ => unauthorized(&self.challenge),
        }
    }
}

/// A middleware that wants a token (RFC 6750), for programs. The check says who it is, as with [`BasicAuth`].
///
/// ```
/// use narval_http::{BearerAuth, Router, StatusCode, test};
///
/// let auth = BearerAuth::new(|token| (token == "sesame").then_some(()));
/// let app = test::client(Router::new().layer(auth).get("/", || "welcome").build()?);
/// assert_eq!(app.get("/").send().status(), StatusCode::UNAUTHORIZED);
/// assert_eq!(app.get("/").header("authorization", "Bearer sesame").send().text(), "welcome");
/// # Ok::<(), narval_http::RouteError>(())
/// ```
#[derive(Clone)]
pub struct BearerAuth {
    check: Arc<CheckToken>,
}

impl BearerAuth {
    /// `check` gets the token.
    pub fn new<T>(check: impl Fn(&str) -> Option<T> + Send + Sync + 'static) -> Self
    where
        T: Clone + Send + Sync + 'static,
    {
        Self { check: Arc::new(move |token: &str, who: &mut Extensions| keep(check(token), who)) }
    }
}

impl Middleware for BearerAuth {
    fn handle(&self, mut request: Request, next: Next<'_>) -> Response {
        match credentials(&request, "bearer") {
            Some(token) if (self.check)(&token, request.extensions_mut()) => next.run(request),
            _ => unauthorized(&HeaderValue::from_static("Bearer")),
        }
    }
}

/// What `Authorization` has for this scheme.
fn credentials(request: &Request, scheme: &str) -> Option<String> {
    let (have, given) = request.header("authorization")?.split_once(' ')?;
    have.eq_ignore_ascii_case(scheme).then(|| given.trim().to_owned())
}

fn keep<T: Clone + Send + Sync + 'static>(found: Option<T>, who: &mut Extensions) -> bool {
    found.map(|found| who.insert(found)).is_some()
}

fn unauthorized(challenge: &HeaderValue) -> Response {
    let reject = Reject::new(StatusCode::UNAUTHORIZED, "sign in first");
    Response::failure(reject.header(header::WWW_AUTHENTICATE, challenge.clone()))
}

impl fmt::Debug for BasicAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BasicAuth").field("challenge", &self.challenge).finish_non_exhaustive()
    }
}

impl fmt::Debug for BearerAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BearerAuth").finish_non_exhaustive()
    }
}
