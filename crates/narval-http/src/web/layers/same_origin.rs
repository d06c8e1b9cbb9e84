use http::{Method, StatusCode};

use crate::http1::head_parts::HeadRef;
use crate::message::reject::Reject;
use crate::message::request::Request;
use crate::message::response::Response;
use crate::web::middleware::{Middleware, Next};

/// A middleware against forged requests (CSRF): what another site's page has its visitor's browser send, with the visitor's cookies,
/// is answered 403, unless it is GET, HEAD or OPTIONS, which must not change anything.
///
/// Browsers say where a request comes from, in `Sec-Fetch-Site` or `Origin`, and pages cannot change that. A request with neither is
/// not from a browser.
///
/// ```
/// use narval_http::{Router, SameOrigin, StatusCode, test};
///
/// let app = test::client(Router::new().layer(SameOrigin::default()).post("/pay", || "paid").build()?);
/// let pay = |site: &str| app.post("/pay").header("sec-fetch-site", site).send().status();
/// assert_eq!((pay("same-origin"), pay("cross-site")), (StatusCode::OK, StatusCode::FORBIDDEN));
/// # Ok::<(), narval_http::RouteError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SameOrigin {
    allowed: Vec<String>,
}

impl SameOrigin {
    /// Also accepts requests from this origin, such as `https://admin.example.org`.
    #[must_use]
    pub fn also(mut self, origin: impl Into<String>) -> Self {
        self.allowed.push(origin.into());
        self
    }

    fn check(&self, head: &HeadRef<'_>) -> Result<(), Reject> {
        if matches!(*head.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
            return Ok(());
        }
        let origin = head.header("origin");
        let is_allowed = origin.is_some_and(|origin| self.allowed.iter().any(|allowed| allowed == origin));
        let is_own = match head.header("sec-fetch-site") {
            Some(site) => matches!(site, "same-origin" | "none"),
            None => origin.is_none_or(|origin| {
                // A proxy may end TLS: only the host is compared.
                let host = origin.split_once("://").map(|(_, host)| host);
                host.is_some_and(|host| head.host().is_some_and(|own| own.eq_ignore_ascii_case(host)))
            }),
        };
        if is_own || is_allowed {
            return Ok(());
        }
        Err(Reject::new(StatusCode::FORBIDDEN, "this request comes from a page of another site"))
    }
}

impl Middleware for SameOrigin {
    fn handle(&self, request: Request, next: Next<'_>) -> Response {
        self.check(&request.head()).map_or_else(Response::failure, |()| next.run(request))
    }

    fn inline(&self, head: &HeadRef<'_>, next: Next<'_>) -> Option<Response> {
        self.check(head).map_or_else(|reject| Some(Response::failure(reject)), |()| next.inline(head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::router::Router;
    use crate::web::test;

    #[test]
    fn only_own_pages_and_programs_may_change_something() {
        let layer = SameOrigin::default().also("https://b.example");
        let app = test::client(Router::new().layer(layer).post("/", || "ok").get("/", || "ok").build().expect("valid"));
        let post = |fields: &[(&str, &str)]| {
            let ask = fields.iter().fold(app.post("/"), |ask, (name, value)| ask.header(name, value));
            ask.send().status().as_u16()
        };
        assert_eq!(post(&[]), 200);
        assert_eq!(post(&[("sec-fetch-site", "none")]), 200);
        assert_eq!(post(&[("sec-fetch-site", "same-site")]), 403);
        assert_eq!(post(&[("sec-fetch-site", "cross-site"), ("origin", "https://b.example")]), 200);
        assert_eq!(post(&[("origin", "https://localhost")]), 200);
        assert_eq!(post(&[("origin", "https://localhost:8080")]), 403);
        assert_eq!(post(&[("origin", "https://evil.example")]), 403);
        assert_eq!(post(&[("origin", "null")]), 403);
        assert_eq!(app.get("/").header("sec-fetch-site", "cross-site").send().status().as_u16(), 200);
    }
}
