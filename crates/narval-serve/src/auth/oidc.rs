//! `POST /_narval/v1/oidc`: a CI job exchanges the token of its platform for a short-lived one of this cache.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use narval_cache::written::oidc::{Issuer, OidcError, TOKEN_LEN_MAX, Verified, Verifier};
use narval_cache::written::{CachePatterns, Data, Grant, NewToken, Refusal, RefusalKind, Scopes, TokenError};
use narval_http::{HeaderValue, Request, Response, StatusCode, header};

use super::{Auth, THROTTLED, address, unauthorized};
use crate::error::ServeError;
use crate::metrics::Metrics;

/// The most exchanges at the same time: each may wait for a slow issuer.
const EXCHANGES_MAX: usize = 4;

/// What a rule allows to tokens that match it.
#[derive(Clone, Debug)]
pub struct OidcGrant {
    /// The caches it grants access to.
    pub caches: CachePatterns,
    /// The scopes it grants.
    pub scopes: Scopes,
    /// The lifetime of the granted token.
    pub lifetime: Duration,
}

/// Exchanges tokens of CI platforms. Cheap to clone: clones share everything, so that one serves all caches of a server.
#[derive(Clone, Debug)]
pub struct OidcExchange(Arc<Exchange>);

struct Exchange {
    verifier: Verifier<OidcGrant>,
    data: Data,
    running: AtomicUsize,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exchange")
    }
}

impl OidcExchange {
    /// Tokens of these platforms are exchanged for tokens of this data folder.
    pub fn new(issuers: Vec<Issuer<OidcGrant>>, data: Data) -> Self {
        Self(Arc::new(Exchange { verifier: Verifier::new(issuers), data, running: AtomicUsize::new(0) }))
    }

    pub(crate) fn answer(&self, auth: &Auth, request: Request, metrics: &Metrics) -> Result<Response, ServeError> {
        self.0.answer(auth, request, metrics)
    }
}

impl Exchange {
    /// Answers with a token and its expiry. The body of the request is the platform's token.
    fn answer(&self, auth: &Auth, mut request: Request, metrics: &Metrics) -> Result<Response, ServeError> {
        let address = address(request.peer());
        let presented = request.body().text(TOKEN_LEN_MAX + 2).map_err(|error| {
            ServeError::Upload(format!("the body must be the platform's token, at most {TOKEN_LEN_MAX} bytes: {error}"))
        })?;
        if self.running.fetch_add(1, Ordering::AcqRel) >= EXCHANGES_MAX {
            self.running.fetch_sub(1, Ordering::AcqRel);
            return Ok(later("too many token exchanges at the moment"));
        }
        let verified = self.verifier.verify(&presented);
        self.running.fetch_sub(1, Ordering::AcqRel);
        let peer = address.map_or_else(|| "unix socket".to_owned(), |address| address.to_string());
        match verified {
            Ok(verified) => self.issue(&verified, &peer),
            Err(error @ OidcError::Unavailable { .. }) => Ok(later(&error.to_string())),
            Err(_) if auth.has_failed(address, metrics) => Err(unauthorized(THROTTLED)),
            Err(error) => {
                tracing::info!("OpenID Connect: a token from {peer} was refused: {error}");
                Err(match error {
                    OidcError::NoRule(_) => Refusal::new(RefusalKind::Forbidden, error).into(),
                    error => unauthorized(&error.to_string()),
                })
            }
        }
    }

    fn issue(&self, verified: &Verified<'_, OidcGrant>, peer: &str) -> Result<Response, ServeError> {
        let OidcGrant { caches, scopes, lifetime } = verified.allows;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let expires = now.saturating_add(lifetime.as_secs());
        let new =
            NewToken { label: verified.label.clone(), caches: caches.clone(), scopes: *scopes, expires: Some(expires) };
        let (info, token) = self.data.tokens().create(&new).map_err(|error: TokenError| {
            tracing::error!("{error}");
            Refusal::new(RefusalKind::Failed, "a token cannot be created; see the server's log")
        })?;
        let grant = Grant {
            token: info.id.clone(),
            label: verified.label.clone(),
            caches: caches.clone(),
            scopes: *scopes,
            expires: Some(expires),
            peer: Some(peer.to_owned()),
        };
        self.data.audit().note(
            &grant,
            None,
            "oidc",
            &info.id,
            &Ok(format!("{scopes} for {}", caches.texts().join(","))),
        );
        Ok(Response::text(StatusCode::CREATED, format!("{}\n", &*token))
            .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
            .header("narval-token-expires", HeaderValue::from(expires)))
    }
}

fn later(message: &str) -> Response {
    Response::text(StatusCode::SERVICE_UNAVAILABLE, format!("{message}\n"))
        .header(header::RETRY_AFTER, HeaderValue::from_static("5"))
        .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
}
