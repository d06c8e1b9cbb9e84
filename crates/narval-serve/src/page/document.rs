//! The document: one response with everything for the first view, and a policy that forbids all other scripts.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use narval_http::http1::accept::{Coding, negotiate_coding};
use narval_http::http1::conditional::{Outcome, Validators, evaluate};
use narval_http::{Body, HeadRef, HeaderValue, Response, StatusCode, header};
use narval_nix::Sha256;

const HTML: &str = include_str!("assets/index.html");
const STYLE: &str = include_str!("assets/page.css");
/// One script, in this order.
const SCRIPT: &str = concat!(
    include_str!("assets/base.js"),
    include_str!("assets/session.js"),
    include_str!("assets/use.js"),
    include_str!("assets/find.js"),
    include_str!("assets/path.js"),
    include_str!("assets/files.js"),
    include_str!("assets/compare.js"),
    include_str!("assets/now.js"),
    include_str!("assets/manage.js"),
    include_str!("assets/route.js"),
);
/// The compression level.
const LEVEL: i32 = 15;

/// It is the same for all caches. Made for the first browser: compressing it takes longer than starting the server.
static DOCUMENT: LazyLock<Document> = LazyLock::new(Document::new);

/// Answers with the document. May block on the first request.
pub(super) fn answer(head: &HeadRef<'_>) -> Response {
    DOCUMENT.answer(head)
}

/// The document, ready to send.
#[derive(Debug)]
struct Document {
    html: Vec<u8>,
    zstd: Option<Vec<u8>>,
    policy: Option<HeaderValue>,
    etag: Option<HeaderValue>,
}

impl Document {
    fn new() -> Self {
        let html = HTML.replace("/*style*/", STYLE).replace("/*script*/", SCRIPT).into_bytes();
        let hash = |text: &str| STANDARD.encode(Sha256::of(text.as_bytes()).as_bytes());
        let (style, script) = (hash(STYLE), hash(SCRIPT));
        // `connect-src 'self'` includes WebSockets of the same origin in all current browsers.
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src 'self' data:; \
             connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        let etag = format!("W/\"{}\"", Sha256::of(&html).to_nix32());
        Self {
            zstd: zstd::bulk::compress(&html, LEVEL).ok(),
            policy: HeaderValue::from_str(&policy).ok(),
            etag: HeaderValue::from_str(&etag).ok(),
            html,
        }
    }

    fn answer(&self, head: &HeadRef<'_>) -> Response {
        let validators = Validators { etag: self.etag.as_ref(), last_modified: None };
        let is_known = evaluate(head, Some(&validators)) == Outcome::NotModified;
        let coded = self
            .zstd
            .as_ref()
            .filter(|_| negotiate_coding(head, &[Coding::Zstd, Coding::Identity]) == Some(Coding::Zstd));
        let mut response = Response::new(if is_known { StatusCode::NOT_MODIFIED } else { StatusCode::OK })
            .header(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))
            .header(header::VARY, HeaderValue::from_static("accept, accept-encoding"))
            .header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
            .header(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        if let Some(etag) = &self.etag {
            response = response.header(header::ETAG, etag.clone());
        }
        if let Some(policy) = &self.policy {
            response = response.header(header::CONTENT_SECURITY_POLICY, policy.clone());
        }
        if is_known {
            return response;
        }
        response = response.header(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
        match coded {
            Some(zstd) => response
                .header(header::CONTENT_ENCODING, HeaderValue::from_static("zstd"))
                .body(Body::bytes(zstd.clone())),
            None => response.body(Body::bytes(self.html.clone())),
        }
    }
}
