//! The document around a view: header, navigation and footer, the style and the script with their hashes in the policy.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use narval_http::semantics::accept::{Coding, negotiate_coding};
use narval_http::semantics::conditional::{Outcome, Validators, evaluate};
use narval_http::{Body, HeadRef, HeaderValue, Response, StatusCode, header};
use narval_nix::Sha256;

use super::words::{many, name};
use crate::page::parts::Parts;
use crate::page::visit::Visit;
use crate::routes::pages::View;

const STYLE: &str = concat!(include_str!("../assets/page.css"), include_str!("../assets/operator.css"));
/// One script, in this order.
const SCRIPT: &str = concat!(
    include_str!("../assets/base.js"),
    include_str!("../assets/session.js"),
    include_str!("../assets/use.js"),
    include_str!("../assets/ways.js"),
    include_str!("../assets/search.js"),
    include_str!("../assets/map.js"),
    include_str!("../assets/status.js"),
    include_str!("../assets/manage.js"),
    include_str!("../assets/route.js"),
);
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath d='M2 15 8 1l6 14-6-4z' fill='%232563a8'/%3E%3C/svg%3E";
/// The compression level of documents, which are compressed for each answer.
const LEVEL: i32 = 3;
/// That of the one that is made once.
const LEVEL_ONCE: i32 = 15;

/// The document for all who may not read, or have to sign in first. It is the same for all caches, and for names that no cache has. Made for
/// the first of them: compressing it takes longer than starting the server.
static SIGN_IN: LazyLock<SignIn> = LazyLock::new(SignIn::new);

/// `connect-src 'self'` includes WebSockets of the same origin in all current browsers.
static POLICY: LazyLock<Option<HeaderValue>> = LazyLock::new(|| {
    let hash = |text: &str| STANDARD.encode(Sha256::of(text.as_bytes()).as_bytes());
    let (style, script) = (hash(STYLE), hash(SCRIPT));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src 'self' data:; \
         connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    );
    HeaderValue::from_str(&policy).ok()
});

/// A view and what is around it.
pub(super) struct Frame<'a> {
    pub(super) parts: &'a Parts,
    pub(super) visit: &'a Visit,
    pub(super) view: &'a View,
    /// Its title, without the name of the cache.
    pub(super) title: &'a str,
    pub(super) main: Markup,
}

impl Frame<'_> {
    /// The answer, which is stored nowhere: it may depend on the session, and paths come and go.
    pub(super) fn respond(self, status: StatusCode, query: Option<&str>, accepts_zstd: bool) -> Response {
        let html = self.render(query).into_string().into_bytes();
        let zstd = accepts_zstd.then(|| zstd::bulk::compress(&html, LEVEL).ok()).flatten();
        with_body(guarded(Response::new(status), "no-store"), html, zstd)
    }

    fn render(self, query: Option<&str>) -> Markup {
        let Self { parts, visit, view, title, main } = self;
        let (cache, root) = (visit.cache.as_str(), visit.root.as_str());
        let query = if *view == View::Packages { crate::page::catalog::text_of(query, "q") } else { String::new() };
        let header = html! {
            a.brand #brand href=(root) { (mark()) strong { (cache) } " " span.soft { (visit.host) } }
            @if visit.may_read {
                form role="search" action=(root) {
                    input #q type="search" name="q" value=(query) placeholder="Search packages" aria-label="Search packages" aria-keyshortcuts="/"
                        maxlength="200" autocomplete="off" spellcheck="false" autofocus[*view == View::Packages];
                }
                p.state #state data-live { (state(parts, visit)) }
            }
            nav aria-label="Views" {
                @if visit.may_read {
                    (tab(root, "Overview", *view == View::Overview))
                    (tab(&visit.link("?q="), "Packages", matches!(view, View::Packages | View::Path(_) | View::Files(..) | View::Compare(..))))
                    @if parts.places.writable.is_some() { (tab(&visit.link("releases"), "Releases", matches!(view, View::Releases(_)))) }
                    (tab(&visit.link("_narval/status"), "Status", *view == View::Status))
                }
                @if visit.who.is_some() {
                    (tab(&visit.link("_narval/manage"), "Manage", matches!(view, View::Manage(_))))
                }
                @if visit.has_tokens {
                    a.account href=(visit.link("_narval/manage")) {
                        @match &visit.who { Some(who) => (name(&who.label)), None => "Sign in" }
                    }
                }
            }
        };
        let footer = html! {
            "Narval " (env!("CARGO_PKG_VERSION"))
            @if visit.may_read { ", priority " (parts.places.priority) ", for " code { (parts.places.store_dir) } }
        };
        document(&format!("{title} · {cache} · {}", visit.host), &visit.url, &header, &main, &footer)
    }
}

fn mark() -> Markup {
    html! { svg.mark viewBox="0 0 16 16" aria-hidden="true" { path d="M2 15 8 1l6 14-6-4z" {} } }
}

fn tab(link: &str, text: &str, is_current: bool) -> Markup {
    html! { a href=(link) aria-current=[is_current.then_some("page")] { (text) } }
}

/// Whether all is well, as a shape and a word.
fn state(parts: &Parts, visit: &Visit) -> Markup {
    let problems =
        parts.service(&visit.cache).map_or(0, |service| service.problems(&parts.state, visit.is_operator()).len());
    let (class, text) = match problems {
        0 => ("good", "● well".to_owned()),
        problems => ("bad", format!("▲ {}", many(problems, "problem"))),
    };
    html! { a class=(class) href=(visit.link("_narval/status")) { (text) } }
}

fn document(title: &str, url: &str, header: &Markup, main: &Markup, footer: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                link rel="icon" href=(ICON);
                // Constants of this program.
                style { (PreEscaped(STYLE)) }
            }
            body data-url=(url) {
                a.skip href="#main" { "Skip to content" }
                header { (header) }
                main #main tabindex="-1" { (main) }
                footer { (footer) }
                p #said.hidden-text role="status" {}
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

/// Answers with the document to sign in. May block on the first request.
pub(in crate::page) fn sign_in(head: &HeadRef<'_>) -> Response {
    SIGN_IN.answer(head)
}

struct SignIn {
    html: Vec<u8>,
    zstd: Option<Vec<u8>>,
    etag: Option<HeaderValue>,
}

impl SignIn {
    fn new() -> Self {
        let header = html! { span.brand #brand { (mark()) strong { "Binary cache" } } };
        let main = html! {
            div #view data-view="sign-in" {
                h1 { "Sign in" }
                p { "This needs a token: the cache is private, or you want to manage it. Its operator creates tokens." }
                noscript { p { "Signing in needs JavaScript. Clients such as Nix do not: put the token into the netrc file, as the password for this host." } }
            }
        };
        let html = document("Sign in", "", &header, &main, &html! { "Narval" }).into_string().into_bytes();
        let etag = HeaderValue::from_str(&format!("W/\"{}\"", Sha256::of(&html).to_nix32())).ok();
        Self { zstd: zstd::bulk::compress(&html, LEVEL_ONCE).ok(), etag, html }
    }

    fn answer(&self, head: &HeadRef<'_>) -> Response {
        let validators = Validators { etag: self.etag.as_ref(), last_modified: None };
        let is_known = evaluate(head, Some(&validators)) == Outcome::NotModified;
        let status = if is_known { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
        let mut response = guarded(Response::new(status), "no-cache");
        if let Some(etag) = &self.etag {
            response = response.header(header::ETAG, etag.clone());
        }
        match is_known {
            true => response,
            false => with_body(response, self.html.clone(), self.zstd.clone().filter(|_| accepts_zstd(head))),
        }
    }
}

pub(in crate::page) fn accepts_zstd(head: &HeadRef<'_>) -> bool {
    negotiate_coding(head, &[Coding::Zstd, Coding::Identity]) == Some(Coding::Zstd)
}

/// Adds the fields that every document has. Without a referrer, browsers would send forms with the origin `null`.
fn guarded(response: Response, cache_control: &'static str) -> Response {
    let response = response
        .header(header::CACHE_CONTROL, HeaderValue::from_static(cache_control))
        .header(header::VARY, HeaderValue::from_static("accept, accept-encoding, cookie"))
        .header(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
        .header(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    match POLICY.as_ref() {
        Some(policy) => response.header(header::CONTENT_SECURITY_POLICY, policy.clone()),
        None => response,
    }
}

fn with_body(response: Response, html: Vec<u8>, zstd: Option<Vec<u8>>) -> Response {
    let response = response.header(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    match zstd {
        Some(zstd) => {
            response.header(header::CONTENT_ENCODING, HeaderValue::from_static("zstd")).body(Body::bytes(zstd))
        }
        None => response.body(Body::bytes(html)),
    }
}
