use std::time::Duration;

use http::{HeaderName, HeaderValue, header};

use crate::http1::head_parts::HeadRef;
use crate::message::request::Request;
use crate::message::response::Response;
use crate::web::middleware::{Middleware, Next};

/// A middleware that tells browsers to be careful: not to guess types (`X-Content-Type-Options`), not to show pages in frames of
/// others (`X-Frame-Options`), not to tell other sites which page a link was on (`Referrer-Policy`), and to keep windows of other
/// sites apart (`Cross-Origin-Opener-Policy`). Fields that a response has already are left alone.
///
/// ```
/// use narval_http::{Router, SecurityHeaders, test};
///
/// let layer = SecurityHeaders::default().content_security_policy("default-src 'self'");
/// let app = test::client(Router::new().layer(layer).get("/", || "hello").build()?);
/// let answer = app.get("/").send();
/// assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
/// assert_eq!(answer.header("content-security-policy"), Some("default-src 'self'"));
/// # Ok::<(), narval_http::RouteError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SecurityHeaders {
    fields: Vec<(HeaderName, HeaderValue)>,
    hsts: Option<HeaderValue>,
}

impl Default for SecurityHeaders {
    fn default() -> Self {
        let fields = [
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::X_FRAME_OPTIONS, "DENY"),
            (header::REFERRER_POLICY, "strict-origin-when-cross-origin"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        ];
        Self { fields: fields.map(|(name, value)| (name, HeaderValue::from_static(value))).to_vec(), hsts: None }
    }
}

impl SecurityHeaders {
    /// Sets the `Content-Security-Policy`: what a page may load.
    #[must_use]
    pub fn content_security_policy(mut self, policy: &'static str) -> Self {
        self.fields.push((header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy)));
        self
    }

    /// Has browsers use only TLS for this host, for so long (`Strict-Transport-Security`). Sent over TLS only.
    #[must_use]
    pub fn strict_transport_security(mut self, max_age: Duration) -> Self {
        self.hsts = HeaderValue::try_from(format!("max-age={}", max_age.as_secs())).ok();
        self
    }

    fn add(fields: Vec<(HeaderName, HeaderValue)>, response: Response) -> Response {
        fields.into_iter().fold(response, |response, (name, value)| match response.header_value(&name) {
            Some(_) => response,
            None => response.header(name, value),
        })
    }

    fn fields(&self, head: &HeadRef<'_>) -> Vec<(HeaderName, HeaderValue)> {
        let hsts = self.hsts.iter().filter(|_| head.scheme() == "https").cloned();
        self.fields.iter().cloned().chain(hsts.map(|hsts| (header::STRICT_TRANSPORT_SECURITY, hsts))).collect()
    }
}

impl Middleware for SecurityHeaders {
    fn handle(&self, request: Request, next: Next<'_>) -> Response {
        let fields = self.fields(&request.head());
        next.run(request).map(|response| Self::add(fields, response))
    }

    fn inline(&self, head: &HeadRef<'_>, next: Next<'_>) -> Option<Response> {
        next.inline(head).map(|response| {
            let fields = self.fields(head);
            response.map(|response| Self::add(fields, response))
        })
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;
    use crate::web::router::Router;
    use crate::web::test;

    #[test]
    fn what_a_response_says_itself_is_kept_and_tls_is_demanded_over_tls_only() {
        let layer = SecurityHeaders::default().strict_transport_security(Duration::from_secs(60));
        let own = || Response::new(StatusCode::OK).header("x-frame-options", "SAMEORIGIN");
        let app = test::client(Router::new().layer(layer).get("/", own).build().expect("valid"));
        let answer = app.get("/").send();
        assert_eq!(
            (answer.header("x-frame-options"), answer.header("strict-transport-security")),
            (Some("SAMEORIGIN"), None)
        );
        assert_eq!(answer.headers().len(), 4);
    }
}
