//! Asks other nodes for NARs that they keep, and counts what comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use narval_client::{
    Body, Client, ClientOptions, Credentials, Extra, HttpError, Proxies, Request, Response, RetryPolicy,
};
use narval_nix::Sha256;

use super::{Holder, Member, Members, PeerSecret};
use crate::name::CacheName;

/// Below this path, nodes answer each other: `_narval/peer/<cache>/nar/<name>`.
pub const PEER_PATH: &str = "_narval/peer";

/// How long another node may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long another node may send nothing. It may have to wait for the bucket.
const STALL_TIMEOUT: Duration = Duration::from_secs(5);

/// What this node has got from others, as totals since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerStats {
    /// The number of nodes, with this one.
    pub nodes: u64,
    /// Bytes of NARs that came from other nodes.
    pub received: u64,
    /// NARs that another node keeps and that came from the bucket all the same, in part or whole.
    pub fallbacks: u64,
}

/// The other nodes.
pub(crate) struct Peers {
    members: Arc<Members>,
    secret: PeerSecret,
    client: Client,
    received: AtomicU64,
    fallbacks: AtomicU64,
}

impl Peers {
    pub(crate) fn new(members: Arc<Members>, secret: PeerSecret) -> Self {
        let client = Client::new(ClientOptions {
            credentials: Credentials::default(),
            // Nodes are near each other.
            proxies: Proxies::default(),
            connect_timeout: CONNECT_TIMEOUT,
            stall_timeout: STALL_TIMEOUT,
            // The bucket is the second attempt.
            retry: RetryPolicy { attempts: 1, ..RetryPolicy::default() },
            ..ClientOptions::default()
        });
        Self { members, secret, client, received: AtomicU64::new(0), fallbacks: AtomicU64::new(0) }
    }

    /// Who keeps a NAR.
    pub(crate) fn holder(&self, file_hash: &Sha256) -> Holder {
        self.members.holder(file_hash)
    }

    /// Whether a request with this field `Authorization` comes from another node.
    pub(crate) fn is_proven(&self, authorization: &[u8]) -> bool {
        self.secret.is_proven(authorization)
    }

    /// Asks a node for a NAR's file of this length. The secret reaches no other server: redirects are not followed.
    pub(crate) fn open(&self, member: &Member, cache: &CacheName, name: &str, len: u64) -> Result<Body, HttpError> {
        let url = member.url.child(&format!("{PEER_PATH}/{cache}/nar/{name}"))?;
        let authorization = self.secret.authorization();
        let fields = [("authorization", authorization.as_str())];
        let extra = Extra { fields: &fields, ..Extra::default() };
        let Response { head, body } = self.client.send_once(&Request { extra, ..Request::get(&url) })?;
        if head.status != 200 {
            let (status, retry_after) = (head.status, head.retry_after());
            body.drain();
            return Err(HttpError::Status { status, retry_after });
        }
        if head.field("content-encoding").is_some() || body.expected_len() != Some(len) {
            return Err(HttpError::Malformed("it is not the file that was asked for"));
        }
        member.answered();
        Ok(body)
    }

    /// Counts bytes from another node.
    pub(crate) fn received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A node did not send a NAR, or not all of it: it is read from the bucket.
    pub(crate) fn failed(&self, member: &Member, name: &str, error: &HttpError) {
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
        match error {
            // It is there, and does not have this one.
            HttpError::Status { status: 404 | 500..=599, .. } => {
                tracing::debug!("'{name}' did not come from the node at {}: {error}", member.url);
            }
            _ => {
                tracing::warn!("'{name}' comes from the bucket, not from the node at {}: {error}", member.url);
                member.set_unavailable();
            }
        }
    }

    /// A NAR, of which at least a part came from a node, is wrong.
    pub(crate) fn is_wrong(&self, member: &Member, name: &str, reason: &str) {
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
        tracing::error!("'{name}' from the node at {} is wrong: {reason}; it comes from the bucket", member.url);
        member.is_wrong();
    }

    /// The totals.
    pub(crate) fn stats(&self) -> PeerStats {
        PeerStats {
            nodes: self.members.count() as u64,
            received: self.received.load(Ordering::Relaxed),
            fallbacks: self.fallbacks.load(Ordering::Relaxed),
        }
    }
}
