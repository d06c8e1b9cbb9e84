//! Who sends a request: the token in its `Authorization` field, and what that token allows.

mod credentials;
pub(crate) mod oidc;
mod throttle;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use narval_cache::written::{Grant, Refusal, RefusalKind, Tokens};
use narval_http::{HeadRef, Peer};

use crate::error::ServeError;
use crate::metrics::Metrics;
use credentials::{Credentials, credentials};
use throttle::Throttle;

/// Who sends a request.
#[derive(Debug)]
pub(crate) enum Caller {
    /// The request has no credentials.
    Anonymous,
    /// The bearer of a valid token.
    Bearer(Grant),
}

impl Caller {
    /// The grant of the token.
    ///
    /// # Errors
    /// 401 without credentials.
    pub(crate) fn grant(self) -> Result<Grant, ServeError> {
        match self {
            Self::Bearer(grant) => Ok(grant),
            Self::Anonymous => Err(unauthorized(
                "uploads need a token: put it into the netrc file as the password for this host (any login), or send it as Bearer",
            )),
        }
    }
}

/// Verifies the credentials of requests.
pub(crate) struct Auth {
    tokens: Tokens,
    throttle: Throttle,
    metrics: Arc<Metrics>,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Auth({:?})", self.throttle)
    }
}

impl Auth {
    pub(crate) fn new(tokens: Tokens, metrics: Arc<Metrics>) -> Self {
        Self { tokens, throttle: Throttle::default(), metrics }
    }

    /// Who sends this request. The token is looked up each time: a revoked one is refused at once.
    ///
    /// # Errors
    /// 401 for credentials that are not a valid token, whatever is requested.
    pub(crate) fn caller(&self, head: &HeadRef<'_>) -> Result<Caller, ServeError> {
        let presented = match credentials(head) {
            Credentials::None => return Ok(Caller::Anonymous),
            Credentials::Malformed => {
                return Err(unauthorized("the Authorization field is neither Basic nor Bearer credentials"));
            }
            Credentials::Token(token) => token,
        };
        let address = address(head.peer());
        if !self.throttle.may_try(address, &presented) {
            self.metrics.logins_throttled.inc();
            return Err(unauthorized("too many wrong tokens came from this address: wait some seconds"));
        }
        let verified = self.tokens.verify(&presented).map_err(|error| {
            tracing::error!("{error}");
            Refusal::new(RefusalKind::Failed, "the tokens cannot be read; the server's log says why")
        })?;
        match verified {
            Some(grant) => {
                self.throttle.succeeded(address, &presented);
                Ok(Caller::Bearer(match address {
                    Some(address) => grant.from_peer(address),
                    None => grant.from_peer("unix socket"),
                }))
            }
            None => {
                self.throttle.failed(address);
                self.metrics.logins_failed.inc();
                Err(unauthorized(
                    "this token is unknown, expired or revoked: replace it in the netrc file ('narval token create' makes one)",
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
