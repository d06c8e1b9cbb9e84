//! Cross-origin resource sharing (the Fetch standard, section 3.2) as a middleware.

use std::time::Duration;

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderName, HeaderValue, Method, StatusCode};

use crate::http1::head_parts::HeadRef;
use crate::message::request::Request;
use crate::message::response::Response;
use crate::web::middleware::{Middleware, Next};

/// A [`Middleware`] that tells browsers which pages of other origins may read the responses, and answers preflight
/// requests.
///
/// CORS protects the users of browsers, not the server: other clients ignore it.
///
/// ```
/// use narval_http::{Cors, Method, Router};
///
/// let cors = Cors::origins(["https://app.example"]).methods(&[Method::GET, Method::PUT]).credentials();
/// let app = Router::new().layer(cors).get("/", || "hello\n").build()?;
/// # Ok::<(), narval_http::RouteError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cors {
    /// `None`: any.
    origins: Option<Vec<String>>,
    methods: HeaderValue,
    /// `None`: those that the preflight requests.
    request_headers: Option<HeaderValue>,
    exposed_headers: Option<HeaderValue>,
    credentials: bool,
    max_age: Duration,
}

impl Cors {
    /// Allows all origins, without credentials.
    pub fn any_origin() -> Self {
        Self {
            origins: None,
            methods: HeaderValue::from_static("GET, HEAD, POST, PUT, DELETE, PATCH"),
            request_headers: None,
            exposed_headers: None,
            credentials: false,
            max_age: Duration::from_secs(600),
        }
    }

    /// Allows these origins, each written like `https://app.example:8443`.
    pub fn origins<S: Into<String>>(origins: impl IntoIterator<Item = S>) -> Self {
        Self { origins: Some(origins.into_iter().map(Into::into).collect()), ..Self::any_origin() }
    }

    /// Sets the allowed methods.
    #[must_use]
    pub fn methods(mut self, methods: &[Method]) -> Self {
        self.methods = list(methods.iter().map(Method::as_str));
        self
    }

    /// Sets the allowed request fields. Default: those that the preflight requests.
    #[must_use]
    pub fn request_headers(mut self, names: &[HeaderName]) -> Self {
        self.request_headers = Some(list(names.iter().map(HeaderName::as_str)));
        self
    }

    /// Sets the response fields that pages may read, besides the CORS-safelisted ones.
    #[must_use]
    pub fn exposed_headers(mut self, names: &[HeaderName]) -> Self {
        self.exposed_headers = Some(list(names.iter().map(HeaderName::as_str)));
        self
    }

    /// Allows credentials such as cookies. This has no effect if any origin is allowed: every page could act in the
    /// name of its visitor.
    #[must_use]
    pub fn credentials(mut self) -> Self {
        self.credentials = self.origins.is_some();
        self
    }

    /// Sets how long a browser may cache the answer to a preflight. Default: 10 minutes.
    #[must_use]
    pub fn max_age(mut self, age: Duration) -> Self {
        self.max_age = age;
        self
    }

    /// The value of `Access-Control-Allow-Origin` for a request; `None` if it has no origin, or one that is not
    /// allowed.
    fn allowed_origin(&self, head: &HeadRef<'_>) -> Option<HeaderValue> {
        let origin = head.header_bytes(ORIGIN.as_str())?;
        match &self.origins {
            None => Some(HeaderValue::from_static("*")),
            Some(origins) => {
                let known = origins.iter().find(|known| known.as_bytes() == origin)?;
                HeaderValue::from_str(known).ok()
            }
        }
    }

    fn mark(&self, mut response: Response, allowed: Option<HeaderValue>) -> Response {
        if self.origins.is_some() {
            response = response.header(VARY, HeaderValue::from(ORIGIN));
        }
        let Some(origin) = allowed else { return response };
        response = response.replace_header(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        if self.credentials {
            response = response.replace_header(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        response
    }

    fn preflight(&self, head: &HeadRef<'_>) -> Response {
        let allowed = self.allowed_origin(head);
        let is_allowed = allowed.is_some();
        let mut response = self.mark(Response::new(StatusCode::NO_CONTENT), allowed);
        let asked = head
            .header_bytes(ACCESS_CONTROL_REQUEST_HEADERS.as_str())
            .and_then(|value| HeaderValue::from_bytes(value).ok());
        if self.request_headers.is_none() {
            response = response.header(VARY, HeaderValue::from(ACCESS_CONTROL_REQUEST_HEADERS));
        }
        if !is_allowed {
            return response;
        }
        if let Some(names) = self.request_headers.clone().or(asked) {
            response = response.header(ACCESS_CONTROL_ALLOW_HEADERS, names);
        }
        response
            .header(ACCESS_CONTROL_ALLOW_METHODS, self.methods.clone())
            .header(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(self.max_age.as_secs()))
    }

    fn expose(&self, response: Response, allowed: Option<HeaderValue>) -> Response {
        let is_allowed = allowed.is_some();
        let response = self.mark(response, allowed);
        match &self.exposed_headers {
            Some(names) if is_allowed => response.replace_header(ACCESS_CONTROL_EXPOSE_HEADERS, names.clone()),
            _ => response,
        }
    }
}

impl Middleware for Cors {
    fn handle(&self, request: Request, next: Next<'_>) -> Response {
        if is_preflight(&request.head()) {
            return self.preflight(&request.head());
        }
        let allowed = self.allowed_origin(&request.head());
        self.expose(next.run(request), allowed)
    }

    fn inline(&self, head: &HeadRef<'_>, next: Next<'_>) -> Option<Response> {
        if is_preflight(head) {
            return Some(self.preflight(head));
        }
        Some(self.expose(next.inline(head)?, self.allowed_origin(head)))
    }
}

fn is_preflight(head: &HeadRef<'_>) -> bool {
    *head.method() == Method::OPTIONS
        && head.header_bytes(ORIGIN.as_str()).is_some()
        && head.header_bytes(ACCESS_CONTROL_REQUEST_METHOD.as_str()).is_some()
}

/// Tokens as a list; always valid in a field value.
fn list<'a>(tokens: impl Iterator<Item = &'a str>) -> HeaderValue {
    let text = tokens.collect::<Vec<_>>().join(", ");
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use http::header::{ALLOW, CONTENT_LENGTH, ETAG, RANGE};

    use super::*;
    use crate::message::handler::Handler;
    use crate::web::router::{Router, RoutingTable};
    use bytes::Bytes;

    fn table(cors: Cors) -> RoutingTable {
        Router::new().layer(cors).get("/", || "hello").build().expect("valid")
    }

    fn ask(cors: Cors, method: &str, fields: &str) -> Response {
        let head = format!("{method} / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
        table(cors).handle(Request::parse(head, Bytes::new()).expect("well-formed"))
    }

    fn value(response: &Response, name: HeaderName) -> Option<String> {
        response.header_value(&name).map(|value| value.to_str().expect("ASCII").to_owned())
    }

    const ORIGIN_A: &str = "Origin: https://a.example\r\n";
    const PREFLIGHT: &str =
        "Origin: https://a.example\r\nAccess-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-y\r\n";

    #[test]
    fn any_origin_may_without_credentials() {
        let response = ask(Cors::any_origin().credentials(), "GET", ORIGIN_A);
        assert_eq!(value(&response, ACCESS_CONTROL_ALLOW_ORIGIN).as_deref(), Some("*"));
        assert_eq!(value(&response, ACCESS_CONTROL_ALLOW_CREDENTIALS), None);
        assert_eq!(value(&response, VARY), None);
        assert_eq!(response.body_bytes(), "hello");
        assert_eq!(value(&ask(Cors::any_origin(), "GET", ""), ACCESS_CONTROL_ALLOW_ORIGIN), None);
    }

    #[test]
    fn only_known_origins_may() {
        let cors = || Cors::origins(["https://a.example"]).credentials().exposed_headers(&[ETAG, CONTENT_LENGTH]);
        let response = ask(cors(), "GET", ORIGIN_A);
        assert_eq!(value(&response, ACCESS_CONTROL_ALLOW_ORIGIN).as_deref(), Some("https://a.example"));
        assert_eq!(value(&response, ACCESS_CONTROL_ALLOW_CREDENTIALS).as_deref(), Some("true"));
        assert_eq!(value(&response, ACCESS_CONTROL_EXPOSE_HEADERS).as_deref(), Some("etag, content-length"));
        assert_eq!(value(&response, VARY).as_deref(), Some("origin"));
        for other in ["https://a.example.evil", "http://a.example", "null", "https://a.example:444"] {
            let response = ask(cors(), "GET", &format!("Origin: {other}\r\n"));
            assert_eq!(value(&response, ACCESS_CONTROL_ALLOW_ORIGIN), None, "{other}");
            assert_eq!(value(&response, ACCESS_CONTROL_ALLOW_CREDENTIALS), None, "{other}");
            assert_eq!(value(&response, VARY).as_deref(), Some("origin"));
        }
    }

    #[test]
    fn preflights_are_answered() {
        let cors = Cors::any_origin().methods(&[Method::GET, Method::PUT]).max_age(Duration::from_secs(60));
        let response = ask(cors.clone(), "OPTIONS", PREFLIGHT);
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        assert_eq!(value(&response, ACCESS_CONTROL_ALLOW_ORIGIN).as_deref(), Some("*"));
        assert_eq!(value(&response, ACCESS_CONTROL_ALLOW_METHODS).as_deref(), Some("GET, PUT"));
        assert_eq!(value(&response, ACCESS_CONTROL_ALLOW_HEADERS).as_deref(), Some("x-y"));
        assert_eq!(value(&response, ACCESS_CONTROL_MAX_AGE).as_deref(), Some("60"));
        let response = ask(cors.request_headers(&[RANGE]), "OPTIONS", PREFLIGHT);
        assert_eq!(value(&response, ACCESS_CONTROL_ALLOW_HEADERS).as_deref(), Some("range"));
    }

    #[test]
    fn preflights_of_others_get_nothing() {
        let response = ask(Cors::origins(["https://b.example"]), "OPTIONS", PREFLIGHT);
        assert_eq!(response.status(), StatusCode::NO_CONTENT);
        for name in [ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_HEADERS] {
            assert_eq!(value(&response, name), None);
        }
    }

    #[test]
    fn an_options_request_that_is_no_preflight_goes_on() {
        let response = ask(Cors::any_origin(), "OPTIONS", ORIGIN_A);
        assert_eq!(value(&response, ALLOW).as_deref(), Some("GET, HEAD, OPTIONS"));
    }
}
