//! Authentication: the token in a request's `Authorization` field, and what it allows.

mod credentials;
pub(crate) mod oidc;
mod throttle;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use narval_cache::written::{Data, Grant, Refusal, RefusalKind, Stamp, TokenError, Tokens};
use narval_http::{HeadRef, Peer};
use narval_nix::Sha256;
use quick_cache::sync::Cache as Remembered;

use crate::error::ServeError;
use crate::metrics::Metrics;
use credentials::{Credentials, credentials};
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
    pub(crate) fn grant(self, peer: &Peer) -> Result<Grant, ServeError> {
        match self {
            Self::Bearer(grant) => Ok(match address(peer) {
                Some(address) => Grant::clone(&grant).from_peer(address),
                None => Grant::clone(&grant).from_peer("unix socket"),
            }),
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
    /// What tokens allow, by the SHA-256 of the token.
    remembered: Remembered<Sha256, (Stamp, Instant, Arc<Grant>)>,
    throttle: Throttle,
}

/// The most verified tokens in memory.
const REMEMBERED_MAX: usize = 1024;
/// How long one is remembered: its last use is recorded to the minute.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);
/// How long one is good while the database with the tokens cannot be reached, and nobody can revoke it there for this server.
const TRUSTED_WHILE_AWAY: Duration = Duration::from_secs(3600);

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Auth({:?})", self.throttle)
    }
}

impl Auth {
    pub(crate) fn new(data: &Data) -> Self {
        let (tokens, remembered) = (data.tokens(), Remembered::new(REMEMBERED_MAX));
        Self { tokens, data: data.clone(), remembered, throttle: Throttle::default() }
    }

    /// What the token of a request allows, if that is in memory and no token was revoked since. For the shard: it does not block.
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
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(u64::MAX, |since| since.as_secs());
        let is_valid =
            of == stamp && since.elapsed() < valid_for && grant.expires.is_none_or(|expires| now() < expires);
        is_valid.then_some(grant)
    }

    /// Identifies the sender of a request. A revoked token is refused at once.
    ///
    /// # Errors
    /// 401 for credentials that are not a valid token, whatever is requested.
    pub(crate) fn caller(&self, head: &HeadRef<'_>, metrics: &Metrics) -> Result<Caller, ServeError> {
        let presented = match credentials(head) {
            Credentials::None => return Ok(Caller::Anonymous),
            Credentials::Malformed => {
                return Err(unauthorized("the Authorization field is neither Basic nor Bearer credentials"));
            }
            Credentials::Token(token) => token,
        };
        // Taken before the tokens are read, so that a remembered grant can only be newer than its stamp.
        let (stamp, hash) = (self.data.stamp(), Sha256::of(&presented));
        if let Some(grant) = self.recall(stamp, &hash) {
            return Ok(Caller::Bearer(grant));
        }
        let address = address(head.peer());
        if !self.throttle.may_try(address, &presented) {
            metrics.logins_throttled.inc();
            return Err(unauthorized("too many wrong tokens from this address: wait a few seconds"));
        }
        let verified = match self.tokens.verify(&presented) {
            Err(TokenError::Index(error)) if error.is_away() => {
                let grant = self.recall_for(TRUSTED_WHILE_AWAY, stamp, &hash);
                return grant.map(Caller::Bearer).ok_or_else(|| error.into());
            }
            verified => verified.map_err(|error| {
                tracing::error!("{error}");
                Refusal::new(RefusalKind::Failed, "the tokens cannot be read; see the server's log")
            })?,
        };
        match verified {
            Some(grant) => {
                self.throttle.succeeded(address, &presented);
                let grant = Arc::new(grant);
                self.remembered.insert(hash, (stamp, Instant::now(), Arc::clone(&grant)));
                Ok(Caller::Bearer(grant))
            }
            None => {
                self.throttle.failed(address);
                metrics.logins_failed.inc();
                Err(unauthorized(
                    "this token is unknown, expired or revoked: replace it in the netrc file ('narval token create' creates one)",
                ))
            }
        }
    }
}

pub(crate) fn unauthorized(message: &str) -> ServeError {
    Refusal::new(RefusalKind::Unauthorized, message).into()
}

fn address(peer: &Peer) -> Option<IpAddr> {
    match peer {
        Peer::Tcp(address) => Some(address.ip().to_canonical()),
        Peer::Unix => None,
    }
}
