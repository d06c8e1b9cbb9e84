//! The bytes of one NAR: from the node that keeps it, and from the bucket what that node does not send.

use std::sync::Arc;

use narval_client::{Body, HttpError, ResumingBody};

use crate::name::CacheName;
use crate::nodes::{Member, Peers};
use narval_s3::Objects;

/// Another node that keeps a NAR.
pub(super) struct FromPeer {
    pub(super) peers: Arc<Peers>,
    pub(super) member: Arc<Member>,
    pub(super) cache: CacheName,
    /// The name of the NAR below `nar/`.
    pub(super) name: String,
}

enum Bytes {
    Peer(Box<Body>),
    Bucket(Box<ResumingBody>),
}

/// The bytes of one NAR, from its start.
pub(super) struct NarSource<'a> {
    objects: &'a Objects,
    key: &'a str,
    len: u64,
    peer: Option<&'a FromPeer>,
    bytes: Bytes,
    position: u64,
    received: u64,
}

impl<'a> NarSource<'a> {
    /// Asks for the NAR's file of this length. `None`: the bucket does not have it.
    pub(super) fn open(
        objects: &'a Objects,
        key: &'a str,
        len: u64,
        peer: Option<&'a FromPeer>,
    ) -> Result<Option<Self>, HttpError> {
        let opened = peer.and_then(|peer| {
            let opened = peer.peers.open(&peer.member, &peer.cache, &peer.name, len);
            opened.inspect_err(|error| peer.peers.failed(&peer.member, &peer.name, error)).ok()
        });
        let bytes = match opened {
            Some(body) => Bytes::Peer(Box::new(body)),
            None => match objects.get(key)? {
                Some(body) => Bytes::Bucket(Box::new(body)),
                None => return Ok(None),
            },
        };
        Ok(Some(Self { objects, key, len, peer, bytes, position: 0, received: 0 }))
    }

    /// The length of the file, if it is known from where it comes.
    pub(super) const fn total_len(&self) -> Option<u64> {
        match &self.bytes {
            Bytes::Peer(_) => Some(self.len),
            Bytes::Bucket(body) => body.total_len(),
        }
    }

    /// Whether another node has sent some of it.
    pub(super) const fn is_from_peer(&self) -> bool {
        self.received > 0
    }

    /// Whether the bucket has been asked for it.
    pub(super) const fn is_from_bucket(&self) -> bool {
        matches!(self.bytes, Bytes::Bucket(_))
    }

    /// Reads some bytes; returns 0 at the end. When the node breaks off, the bucket sends the rest.
    pub(super) fn read_some(&mut self, out: &mut [u8]) -> Result<usize, HttpError> {
        let read = match (&mut self.bytes, self.peer) {
            (Bytes::Peer(body), Some(peer)) => match body.read_some(out) {
                Ok(len) => {
                    peer.peers.received(len as u64);
                    self.received += len as u64;
                    len
                }
                Err(error) => {
                    peer.peers.failed(&peer.member, &peer.name, &error);
                    let mut rest = self.objects.rest(self.key, self.position, self.len)?;
                    let len = rest.read_some(out)?;
                    self.bytes = Bytes::Bucket(Box::new(rest));
                    len
                }
            },
            (Bytes::Peer(body), None) => body.read_some(out)?,
            (Bytes::Bucket(body), _) => body.read_some(out)?,
        };
        self.position += read as u64;
        Ok(read)
    }
}
