//! `POST /_narval/v1/oidc`: a CI job, or a person, exchanges the token of its issuer for a short-lived one of this cache. The body is that token; or a form of
//! RFC 8693 with it, which is answered with JSON. `GET` says with which issuer people sign in.
//!
//! Most tokens are verified at once, with keys that are known. If the issuer must be asked for its keys, the exchange waits for it on a thread of
//! its own: neither workers nor other exchanges do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use narval_client::clock;
use narval_client::request_id;
use narval_files::{Background, Permits, work_for};
use narval_http::{HeaderValue, Request, Response, StatusCode, header};
use narval_keep::{CachePatterns, Data, EXCHANGED_FOR, Grant, NewToken, Rejection, Scopes, TokenError, UnknownScope};
use narval_oidc::{Issuer, OidcError, SignIn, TOKEN_LEN_MAX, Verified, Verifier};
use serde::Deserialize;
use serde_json::json;

use super::{Auth, THROTTLED, client, client_text, is_read, unauthorized};
use crate::error::ServeError;
use crate::metrics::Metrics;

/// The most threads that wait for issuers.
const THREADS_MAX: usize = 4;
/// The most exchanges that wait for issuers.
const WAITING_MAX: usize = 32;
/// The most exchanges of one client that wait for issuers.
const WAITING_OF_ONE_MAX: usize = 8;

/// What a form asks for (RFC 8693, section 2.1).
const TOKEN_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
/// The types of a platform's token (RFC 8693, section 3).
const SUBJECT_TYPES: [&str; 2] = ["urn:ietf:params:oauth:token-type:jwt", "urn:ietf:params:oauth:token-type:id_token"];
/// The type of the token that is issued.
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";
/// How much longer than the token a form may be.
const FORM_MORE: usize = 4096;

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
    sign_in: Option<SignIn>,
    data: Data,
    threads: Arc<Background>,
    waiting: Permits,
}

/// A request of RFC 8693. Other parameters are ignored: a token is for the caches that its rule says.
#[derive(Deserialize)]
struct Form {
    grant_type: String,
    subject_token: String,
    subject_token_type: String,
    /// The scopes that are wanted, separated by blanks; without it, all that the rule grants.
    scope: Option<String>,
}

/// Which answer is wanted.
#[derive(Clone)]
enum Wanted {
    /// The token, on a line.
    Line,
    /// JSON of RFC 8693; with only these scopes of those that the rule grants.
    Json(Option<Scopes>),
}

/// Who asks.
struct Asker {
    wanted: Wanted,
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
    Server(Rejection),
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exchange")
    }
}

impl OidcExchange {
    /// Tokens of these issuers are exchanged for tokens of this data folder. `sign_in`: with which of them people sign in.
    pub fn new(issuers: Vec<Issuer<OidcGrant>>, sign_in: Option<SignIn>, data: Data) -> Self {
        Self(Arc::new(Exchange {
            verifier: Verifier::new(issuers),
            sign_in,
            data,
            threads: Background::new("oidc", THREADS_MAX, WAITING_MAX),
            waiting: Permits::shared(WAITING_MAX, WAITING_OF_ONE_MAX),
        }))
    }

    /// How people sign in.
    fn describe(&self) -> Result<Response, ServeError> {
        let absent = || Rejection::not_found("people do not sign in here: use a token");
        let how = self.0.sign_in.as_ref().ok_or_else(absent)?;
        let response = Response::json(StatusCode::OK, &how.to_json());
        Ok(response.header(header::CACHE_CONTROL, HeaderValue::from_static("no-store")))
    }

    /// Answers with a token and its expiry, if the body of the request is the platform's token; or says how people sign in.
    pub(crate) fn answer(
        &self,
        auth: &Arc<Auth>,
        mut request: Request,
        metrics: &Arc<Metrics>,
    ) -> Result<Response, ServeError> {
        if is_read(request.method()) {
            return self.describe();
        }
        let (presented, wanted) = read(&mut request)?;
        let (client, text) = (client(&request.head()), client_text(&request.head()));
        let asker = Asker { wanted, auth: Arc::clone(auth), metrics: Arc::clone(metrics), client, text };
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
        match verified.map_err(Failed::Token).and_then(|verified| self.issue(&verified, asker)) {
            Ok(response) => Ok(response),
            Err(Failed::Server(rejection)) => Err(rejection.into()),
            Err(Failed::Token(error @ OidcError::Unavailable { .. })) => Ok(later(&error.to_string())),
            Err(Failed::Token(error)) => {
                if asker.auth.has_failed(asker.client, &asker.metrics) {
                    return Err(unauthorized(THROTTLED));
                }
                tracing::info!("OpenID Connect: a token from {} was refused: {error}", asker.text);
                Err(match error {
                    OidcError::NoRule(_) => Rejection::forbidden(error).into(),
                    error => unauthorized(&error.to_string()),
                })
            }
        }
    }

    /// Creates the token, unless the platform's was exchanged before.
    fn issue(&self, verified: &Verified<'_, OidcGrant>, asker: &Asker) -> Result<Response, Failed> {
        let OidcGrant { caches, scopes, lifetime, requires_id } = verified.allows;
        let scopes = match &asker.wanted {
            // Never more than the rule grants.
            Wanted::Json(Some(wanted)) => &scopes.clone().except(&scopes.clone().except(wanted)),
            _ => scopes,
        };
        if scopes.is_empty() {
            let rejection =
                Rejection::forbidden("the rule for this token grants none of the scopes that were asked for");
            return Err(Failed::Server(rejection));
        }
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
            Failed::Server(Rejection::failed("a token cannot be created; see the server's log"))
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
            peer: Some(asker.text.clone()),
        };
        let note = Ok(format!("{scopes} for {}", caches.texts().join(",")));
        self.data.audit().note(&grant, None, "oidc", &info.id, &note);
        let answer = match asker.wanted {
            Wanted::Line => Response::text(StatusCode::CREATED, format!("{}\n", &*token)),
            Wanted::Json(_) => Response::json(
                StatusCode::OK,
                &json!({
                    "access_token": &*token, "issued_token_type": ACCESS_TOKEN, "token_type": "Bearer",
                    "expires_in": lifetime.as_secs(), "scope": scopes.to_string().replace(',', " "),
                }),
            ),
        };
        Ok(answer
            .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
            .header("narval-token-expires", HeaderValue::from(expires)))
    }
}

/// The platform's token, and the answer that is wanted.
fn read(request: &mut Request) -> Result<(String, Wanted), ServeError> {
    let is_form =
        request.header("content-type").is_some_and(|value| value.starts_with("application/x-www-form-urlencoded"));
    if !is_form {
        let text = request.body().text(TOKEN_LEN_MAX + 2).map_err(|error| {
            ServeError::Upload(format!("the body must be the platform's token, at most {TOKEN_LEN_MAX} bytes: {error}"))
        })?;
        return Ok((text, Wanted::Line));
    }
    let wrong = |reason: &dyn fmt::Display| ServeError::Upload(format!("not a token exchange of RFC 8693: {reason}"));
    let form: Form = request.body().form(TOKEN_LEN_MAX + FORM_MORE).map_err(|error| wrong(&error))?;
    if form.grant_type != TOKEN_EXCHANGE {
        return Err(wrong(&format!("grant_type must be {TOKEN_EXCHANGE}")));
    }
    if !SUBJECT_TYPES.contains(&&*form.subject_token_type) {
        return Err(wrong(&format!("subject_token_type must be {}", SUBJECT_TYPES.join(" or "))));
    }
    if form.subject_token.len() > TOKEN_LEN_MAX {
        return Err(wrong(&format!("subject_token has more than {TOKEN_LEN_MAX} bytes")));
    }
    let scopes = form.scope.map(|scopes| scopes.split_whitespace().collect::<Vec<_>>().join(",").parse()).transpose();
    Ok((form.subject_token, Wanted::Json(scopes.map_err(|error: UnknownScope| wrong(&error))?)))
}

fn later(message: &str) -> Response {
    Response::text(StatusCode::SERVICE_UNAVAILABLE, format!("{message}\n"))
        .header(header::RETRY_AFTER, HeaderValue::from_static("5"))
        .header(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))
}
