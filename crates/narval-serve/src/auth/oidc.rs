//! `POST /_narval/v1/oidc`: a CI job exchanges the token of its platform for a short-lived one of this cache.
//!
//! Most tokens are verified at once, with keys that are known. If the issuer must be asked for its keys, the exchange waits for it on a thread of
//! its own: neither workers nor other exchanges do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use narval_client::clock;
use narval_client::request_id;
use narval_files::{Permits, work_for};
use narval_http::{HeaderValue, Request, Response, StatusCode, header};
use narval_keep::oidc::{Issuer, OidcError, TOKEN_LEN_MAX, Verified, Verifier};
use narval_keep::{CachePatterns, Data, EXCHANGED_FOR, Grant, NewToken, Refusal, RefusalKind, Scopes, TokenError};

use super::{Auth, THROTTLED, client, client_text, unauthorized};
use crate::background::Background;
use crate::error::ServeError;
use crate::metrics::Metrics;

/// The most threads that wait for issuers.
const THREADS_MAX: usize = 4;
/// The most exchanges that wait for issuers.
const WAITING_MAX: usize = 32;
/// The most exchanges of one client that wait for issuers.
const WAITING_OF_ONE_MAX: usize = 8;

/// What a rule allows to tokens that match it.
#[derive(Clone, Debug)]
pub struct OidcGrant {
    /// The caches it grants access to.
    pub caches: CachePatterns,
    /// The scopes it grants.
    pub scopes: Scopes,
    /// The lifetime of the granted token.
    pub lifetime: Duration,
    /// Whether tokens without an id (`jti`) are refused: they could be exchanged again until they expire.
    pub requires_id: bool,
}

/// Exchanges tokens of CI platforms. Cheap to clone: clones share everything, so that one serves all caches of a server.
#[derive(Clone, Debug)]
pub struct OidcExchange(Arc<Exchange>);

struct Exchange {
    verifier: Verifier<OidcGrant>,
    data: Data,
    threads: Arc<Background>,
    waiting: Permits,
}

/// Who asks.
struct Asker {
    auth: Arc<Auth>,
    metrics: Arc<Metrics>,
    client: Option<std::net::IpAddr>,
    /// Its address, for logs.
    text: String,
}

/// Why no token was issued.
enum Failed {
    /// The platform's token is refused.
    Token(OidcError),
    Server(Refusal),
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exchange")
    }
}

impl OidcExchange {
    /// Tokens of these platforms are exchanged for tokens of this data folder.
    pub fn new(issuers: Vec<Issuer<OidcGrant>>, data: Data) -> Self {
        Self(Arc::new(Exchange {
            verifier: Verifier::new(issuers),
            data,
            threads: Background::new("oidc", THREADS_MAX, WAITING_MAX),
            waiting: Permits::shared(WAITING_MAX, WAITING_OF_ONE_MAX),
        }))
    }

    /// Answers with a token and its expiry. The body of the request is the platform's token.
    pub(crate) fn answer(
        &self,
        auth: &Arc<Auth>,
        mut request: Request,
        metrics: &Arc<Metrics>,
    ) -> Result<Response, ServeError> {
        let presented = request.body().text(TOKEN_LEN_MAX + 2).map_err(|error| {
            ServeError::Upload(format!("the body must be the platform's token, at most {TOKEN_LEN_MAX} bytes: {error}"))
        })?;
        let (client, text) = (client(&request.head()), client_text(&request.head()));
        let asker = Asker { auth: Arc::clone(auth), metrics: Arc::clone(metrics), client, text };
        if let Some(verified) = self.0.verifier.verify_now(&presented) {
            return self.0.answer(&asker, verified);
        }
        let Some(permit) = self.0.waiting.take() else { return Ok(later("too many token exchanges at the moment")) };
        let (this, id) = (Arc::clone(&self.0), request_id::current());
        let (response, responder) = Response::later();
        let job = Box::new(move || {
            let _entered = (permit, request_id::enter(id), work_for(asker.client));
            if request.is_connected() {
                let answer = this.answer(&asker, this.verifier.verify(&presented));
                responder.respond(answer.unwrap_or_else(|error| error.into_response(&asker.metrics)));
            }
        });
        match self.0.threads.add(job) {
            Ok(()) => Ok(response),
            Err(_) => Ok(later("no thread can be started")),
        }
    }
}

impl Exchange {
    fn answer(
        &self,
        asker: &Asker,
        verified: Result<Verified<'_, OidcGrant>, OidcError>,
    ) -> Result<Response, ServeError> {
        match verified.map_err(Failed::Token).and_then(|verified| self.issue(&verified, &asker.text)) {
            Ok(response) => Ok(response),
            Err(Failed::Server(refusal)) => Err(refusal.into()),
            Err(Failed::Token(error @ OidcError::Unavailable { .. })) => Ok(later(&error.to_string())),
            Err(Failed::Token(error)) => {
                if asker.auth.has_failed(asker.client, &asker.metrics) {
                    return Err(unauthorized(THROTTLED));
                }
                tracing::info!("OpenID Connect: a token from {} was refused: {error}", asker.text);
                Err(match error {
                    OidcError::NoRule(_) => Refusal::new(RefusalKind::Forbidden, error).into(),
                    error => unauthorized(&error.to_string()),
                })
            }
        }
    }

    /// Creates the token, unless the platform's was exchanged before.
    fn issue(&self, verified: &Verified<'_, OidcGrant>, peer: &str) -> Result<Response, Failed> {
        let OidcGrant { caches, scopes, lifetime, requires_id } = verified.allows;
        let now = clock::now();
        let expires = now.saturating_add(lifetime.as_secs());
        let new = NewToken {
            label: verified.label.clone(),
            caches: caches.clone(),
            scopes: scopes.clone(),
            expires: Some(expires),
        };
        let failed = |error: TokenError| {
            tracing::error!("{error}");
            Failed::Server(Refusal::new(RefusalKind::Failed, "a token cannot be created; see the server's log"))
        };
        let tokens = self.data.tokens();
        let created = match verified.id() {
            None if *requires_id => return Err(Failed::Token(OidcError::NoId)),
            None => Some(tokens.create(&new).map_err(failed)?),
            Some(_) if *requires_id && verified.expires() > expires.saturating_add(EXCHANGED_FOR.as_secs()) => {
                return Err(Failed::Token(OidcError::TooLongLived(verified.expires().saturating_sub(now) / 3600)));
            }
            Some(id) => tokens.create_once(&new, &[verified.issuer, id]).map_err(failed)?,
        };
        let (info, token) = created.ok_or(Failed::Token(OidcError::Used))?;
        let grant = Grant {
            token: info.id.clone(),
            label: verified.label.clone(),
            caches: caches.clone(),
            scopes: scopes.clone(),
            expires: Some(expires),
            peer: Some(peer.to_owned()),
        };
        let note = Ok(format!("{scopes} for {}", caches.texts().join(",")));
        self.data.audit().note(&grant, None, "oidc", &info.id, &note);
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
