//! Signing in and out. Sessions are in `auth/sessions.rs`.

use std::sync::Arc;

use narval_http::{HeaderValue, Request, Response, StatusCode, header};
use narval_keep::{CacheName, Grant, Scope};
use serde::Serialize;

use super::json::json;
use crate::auth::Auth;
use crate::auth::sessions::{Session, cookie, is_secure};
use crate::error::ServeError;

/// The answer to `session`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Info<'a> {
    signed_in: bool,
    /// Whether requests of this browser may read the cache. The page sends none that would be refused.
    may_read: bool,
    cache: &'a str,
    /// The label and the id of the token.
    label: Option<&'a str>,
    token: Option<&'a str>,
    /// The caches that the token is for.
    caches: &'a [String],
    /// When the token expires, in seconds since 1970.
    expires: Option<u64>,
    /// What it allows in this cache.
    scopes: Vec<&'static str>,
    /// What writes must send.
    proof: Option<&'a str>,
}

/// The answer of a server without tokens: nobody can sign in.
pub(super) fn none() -> Result<Response, ServeError> {
    json(&None::<Info<'_>>)
}

/// Whether a browser has signed in, and what it may do.
pub(crate) fn info(cache: &CacheName, session: Option<&Session>, may_read: bool) -> Result<Response, ServeError> {
    let grant = session.map(|session| &*session.grant);
    let allowed = |grant: &Grant| Scope::ALL.into_iter().filter(|scope| grant.allows(cache, *scope)).collect();
    let scopes: Vec<Scope> = grant.map(allowed).unwrap_or_default();
    json(&Info {
        signed_in: session.is_some(),
        may_read,
        cache: cache.as_str(),
        label: grant.map(|grant| &*grant.label),
        token: grant.map(|grant| &*grant.token),
        caches: grant.map(|grant| grant.caches.texts()).unwrap_or_default(),
        expires: grant.and_then(|grant| grant.expires),
        scopes: scopes.into_iter().map(Scope::name).collect(),
        proof: session.map(|session| &*session.proof),
    })
}

/// Opens a session. The cache's own path begins at byte `at` of the request's.
pub(crate) fn sign_in(auth: &Auth, grant: Arc<Grant>, request: &Request, at: usize) -> Result<Response, ServeError> {
    Ok(with_cookie(&auth.open_session(grant)?, request, at))
}

/// Ends a session.
pub(crate) fn sign_out(auth: &Auth, session: &Session, request: &Request, at: usize) -> Response {
    auth.sign_out(session);
    with_cookie("", request, at)
}

fn with_cookie(secret: &str, request: &Request, at: usize) -> Response {
    // Other caches of the host, and what else is behind a proxy, do not get it.
    let below = request.path().get(..at).filter(|path| !path.contains([';', ',', ' ', '"', '\\'])).unwrap_or_default();
    Response::new(StatusCode::NO_CONTENT)
        .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
        .cookie(cookie(secret, format!("{below}/"), is_secure(&request.head())))
}
