//! Authentication: the token in a request's `Authorization` field, and what it allows.

mod credentials;
pub(crate) mod oidc;
pub(crate) mod sessions;
mod throttle;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use narval_client::clock;
use narval_http::{HeadRef, Method, network};
use narval_keep::{CacheName, Data, Grant, Rejection, RejectionKind, Scope, Scopes, Stamp, TokenError, Tokens};
use narval_nix::Sha256;
use quick_cache::sync::Cache as Remembered;

use crate::error::ServeError;
use crate::metrics::Metrics;
use credentials::{Credentials, credentials};
use sessions::{Session, Sessions};
use throttle::Throttle;

/// The sender of a request.
#[derive(Debug)]
pub(crate) enum Caller {
    /// The request has no credentials.
    Anonymous,
    /// The bearer of a valid token.
    Bearer(Arc<Grant>),
}

impl Caller {
    /// The grant of the token, as this client uses it.
    ///
    /// # Errors
    /// 401 without credentials.
    pub(crate) fn grant(self, head: &HeadRef<'_>) -> Result<Grant, ServeError> {
        match self {
            Self::Bearer(grant) => Ok(Grant::clone(&grant).from_peer(client_text(head))),
            Self::Anonymous => Err(unauthorized(
                "uploads need a token: put it into the netrc file as the password for this host (any login), or send it as Bearer",
            )),
        }
    }
}

/// Verifies the credentials of requests.
pub(crate) struct Auth {
    tokens: Tokens,
    /// Its stamp changes when a token is revoked.
    data: Data,
    /// The grants of verified tokens, by the SHA-256 of the token.
    remembered: Remembered<Sha256, (Stamp, Instant, Arc<Grant>)>,
    throttle: Throttle,
    sessions: Sessions,
}

/// Why credentials are refused.
enum Denied {
    /// The field is neither Basic nor Bearer credentials.
    Malformed,
    /// The token is unknown, expired or revoked, as too many others from this address were.
    Throttled,
    /// The token is unknown, expired or revoked.
    Wrong,
    /// The token cannot be verified.
    Failed(ServeError),
}

impl From<Denied> for ServeError {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Malformed => unauthorized("the Authorization field is neither Basic nor Bearer credentials"),
            Denied::Throttled => unauthorized(THROTTLED),
            Denied::Wrong => unauthorized(
                "this token is unknown, expired or revoked: replace it in the netrc file ('narval token create' creates one)",
            ),
            Denied::Failed(error) => error,
        }
    }
}

/// The answer to a wrong token after too many others. It is not logged.
const THROTTLED: &str = "too many wrong tokens from this address, and this one is unknown, expired or revoked, too: \
     replace it in the netrc file";
/// The maximum number of verified tokens in memory.
const REMEMBERED_MAX: usize = 1024;
/// How long a verified token is remembered: its last use is recorded to the minute.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// How long a verified token is accepted while the database cannot be reached. This server does not learn of a revocation
/// meanwhile.
const TRUSTED_WHILE_AWAY: Duration = Duration::from_secs(3600);

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Auth({:?})", self.throttle)
    }
}

impl Auth {
    pub(crate) fn new(data: &Data) -> Self {
        let (tokens, remembered) = (data.tokens(), Remembered::new(REMEMBERED_MAX));
        let sessions = Sessions::default();
        Self { tokens, data: data.clone(), remembered, throttle: Throttle::default(), sessions }
    }

    /// The grant of a request's token, if it is in memory and no token was revoked since. Does not block: it is called on the
    /// shard.
    pub(crate) fn remembered(&self, head: &HeadRef<'_>) -> Option<Arc<Grant>> {
        match credentials(head) {
            Credentials::Token(token) => self.recall(self.data.stamp(), &Sha256::of(&token)),
            Credentials::None | Credentials::Malformed => None,
        }
    }

    fn recall(&self, stamp: Stamp, token: &Sha256) -> Option<Arc<Grant>> {
        self.recall_for(REMEMBERED_FOR, stamp, token)
    }

    fn recall_for(&self, valid_for: Duration, stamp: Stamp, token: &Sha256) -> Option<Arc<Grant>> {
        let (of, since, grant) = self.remembered.get(token)?;
        is_valid(&grant, (of, since), stamp, valid_for).then_some(grant)
    }

    /// Identifies the sender of a request. A revoked token is refused at once.
    ///
    /// # Errors
    /// 401 for credentials that are not a valid token, whatever is requested.
    pub(crate) fn caller(&self, head: &HeadRef<'_>, metrics: &Metrics) -> Result<Caller, ServeError> {
        Ok(self.verify(head, metrics)?)
    }

    fn verify(&self, head: &HeadRef<'_>, metrics: &Metrics) -> Result<Caller, Denied> {
        let presented = match credentials(head) {
            Credentials::None => return Ok(Caller::Anonymous),
            Credentials::Malformed => return Err(Denied::Malformed),
            Credentials::Token(token) => token,
        };
        // Taken before the tokens are read, so that a remembered grant can only be newer than its stamp.
        let (stamp, hash) = (self.data.stamp(), Sha256::of(&presented));
        if let Some(grant) = self.recall(stamp, &hash) {
            return Ok(Caller::Bearer(grant));
        }
        let verified = match self.tokens.verify(&presented) {
            Err(TokenError::Index(error)) if error.is_unavailable() => {
                let grant = self.recall_for(TRUSTED_WHILE_AWAY, stamp, &hash);
                return grant.map(Caller::Bearer).ok_or_else(|| Denied::Failed(error.into()));
            }
            verified => verified.map_err(unreadable)?,
        };
        match verified {
            Some(grant) => {
                let grant = Arc::new(grant);
                self.remembered.insert(hash, (stamp, clock::instant(), Arc::clone(&grant)));
                Ok(Caller::Bearer(grant))
            }
            None if self.has_failed(client(head), metrics) => Err(Denied::Throttled),
            None => Err(Denied::Wrong),
        }
    }

    /// Counts a wrong token. Returns whether there were too many from its address.
    fn has_failed(&self, client: Option<IpAddr>, metrics: &Metrics) -> bool {
        let is_throttled = self.throttle.failed(client);
        (if is_throttled { &metrics.logins_throttled } else { &metrics.logins_failed }).inc();
        is_throttled
    }

    /// The session of a browser that has signed in, from its cookie. It ends when its token is revoked or expires.
    ///
    /// # Errors
    /// If the token cannot be verified again.
    pub(crate) fn session(&self, head: &HeadRef<'_>) -> Result<Option<Session>, ServeError> {
        let Some((session, open)) = self.sessions.find(head) else { return Ok(None) };
        let stamp = self.data.stamp();
        if is_valid(&open.grant, open.verified, stamp, REMEMBERED_FOR) {
            return Ok(Some(session));
        }
        match self.tokens.verify_again(&open.grant) {
            Err(TokenError::Index(error)) if error.is_unavailable() => {
                let is_trusted = is_valid(&open.grant, open.verified, stamp, TRUSTED_WHILE_AWAY);
                if is_trusted { Ok(Some(session)) } else { Err(error.into()) }
            }
            verified => match verified.map_err(unreadable)? {
                Some(grant) => {
                    let grant = Arc::new(grant);
                    self.sessions.verified(&session.id, &grant, stamp);
                    Ok(Some(Session { grant, ..session }))
                }
                None => {
                    self.sessions.end(&session.id);
                    Ok(None)
                }
            },
        }
    }

    /// Signs a browser in: verifies the token of its request, and records that in the audit log.
    ///
    /// # Errors
    /// As [`caller`](Self::caller); 401 without a token, 403 if it allows nothing in this cache.
    pub(crate) fn sign_in(
        &self,
        head: &HeadRef<'_>,
        cache: &CacheName,
        metrics: &Metrics,
    ) -> Result<Arc<Grant>, ServeError> {
        let note = |grant: &Grant, outcome: Result<String, String>| {
            let grant = grant.clone().from_peer(client_text(head));
            self.data.audit().note(&grant, Some(cache), "sign-in", "page", &outcome);
        };
        let nobody = || Grant { scopes: Scopes::default(), ..Grant::administrator("") };
        match self.verify(head, metrics) {
            Ok(Caller::Bearer(grant)) if Scope::ALL.into_iter().any(|scope| grant.allows(cache, scope)) => {
                note(&grant, Ok(String::new()));
                Ok(grant)
            }
            Ok(Caller::Bearer(grant)) => {
                note(&grant, Err("the token is for other caches".into()));
                Err(Rejection::forbidden("this token is for other caches").into())
            }
            Ok(Caller::Anonymous) => Err(unauthorized("signing in needs a token, sent as Bearer")),
            Err(denied) => {
                if matches!(denied, Denied::Wrong) {
                    note(&nobody(), Err("unknown, expired or revoked token".into()));
                }
                Err(denied.into())
            }
        }
    }

    /// Opens a session for a browser that has signed in; returns the secret for its cookie.
    ///
    /// # Errors
    /// If the system provides no random numbers.
    pub(crate) fn open_session(&self, grant: Arc<Grant>) -> Result<String, ServeError> {
        self.sessions.open(grant, self.data.stamp()).map_err(|error| {
            tracing::error!("the system provides no random numbers: {error}");
            Rejection::failed("no session can be opened; see the server's log").into()
        })
    }

    /// Ends a session.
    pub(crate) fn sign_out(&self, session: &Session) {
        self.sessions.end(&session.id);
    }
}

/// Whether a grant that was verified in some state of the index still holds.
fn is_valid(grant: &Grant, verified: (Stamp, Instant), stamp: Stamp, valid_for: Duration) -> bool {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(u64::MAX, |since| since.as_secs());
    let (of, since) = verified;
    of == stamp && clock::since(since) < valid_for && grant.expires.is_none_or(|expires| now() < expires)
}

fn unreadable(error: TokenError) -> Denied {
    tracing::error!("{error}");
    Denied::Failed(Rejection::failed("the tokens cannot be read; see the server's log").into())
}

/// The client's address, for logs.
pub(crate) fn client_text(head: &HeadRef<'_>) -> String {
    head.client_ip().map_or_else(|| "unix socket".to_owned(), |address| address.to_string())
}

/// What counts as one client for limits. `None`: a unix socket.
pub(crate) fn client(head: &HeadRef<'_>) -> Option<IpAddr> {
    head.client_ip().map(network)
}

pub(crate) fn unauthorized(message: &str) -> ServeError {
    Rejection::new(RejectionKind::Unauthorized, message).into()
}

/// Whether a method only reads.
pub(crate) fn is_read(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD
}
