use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::http2::response::informational_block;
use crate::io::clock::Millis;
use crate::io::driver::Token;
use crate::io::output_memory::Holding;
use crate::io::socket::{HasSocket, Socket};
use crate::message::carrier::{Address, Carrier};
use crate::message::informational::{Informational, Informer, Informs};
use crate::peer::Remote;
use crate::run::lease::Lease;
use crate::run::mailbox::{Mailbox, Message, Note};
use crate::tls::TlsChannel;
use crate::tls::link::{HasLink, Link};

/// What a shard and the jobs share of a connection. The descriptor is closed when the last of them drops it, so nobody
/// ever writes to a descriptor that has been reused for another connection.
#[derive(Debug)]
pub(crate) struct Connection {
    link: Link,
    pub(crate) token: Token,
    pub(crate) lease: Lease,
    /// When a job last finished without a message.
    idle_since: AtomicU64,
    /// Whether its response was large: much of it may still be in the kernel's send buffer.
    last_was_large: AtomicBool,
    home: Arc<Mailbox>,
    /// What it holds for its client.
    holding: Arc<Holding>,
}

impl Connection {
    pub(crate) fn new(
        socket: Socket,
        tls: Option<TlsChannel>,
        remote: Remote,
        token: Token,
        home: Arc<Mailbox>,
        holding: Arc<Holding>,
    ) -> Self {
        Self {
            link: Link::new(socket, tls, remote),
            token,
            lease: Lease::new(),
            idle_since: AtomicU64::new(0),
            last_was_large: AtomicBool::new(false),
            home,
            holding,
        }
    }

    /// What it holds for its client.
    pub(crate) fn holding(&self) -> &Arc<Holding> {
        &self.holding
    }

    /// When a job last finished without a message.
    pub(crate) fn idle_since(&self) -> Millis {
        self.idle_since.load(Ordering::Relaxed)
    }

    /// Whether much of the last response may still be in flight.
    pub(crate) fn last_was_large(&self) -> bool {
        self.last_was_large.load(Ordering::Relaxed)
    }

    /// Called by the holder of the lease when a response is complete.
    pub(crate) fn answered(&self, now: Millis, large: bool) {
        self.idle_since.store(now, Ordering::Relaxed);
        if self.last_was_large.load(Ordering::Relaxed) != large {
            self.last_was_large.store(large, Ordering::Relaxed);
        }
    }

    /// Its address, or (unless `stream` is 0) that of one of its streams.
    pub(crate) fn address(&self, stream: u32) -> Address {
        Address { home: self.home.clone(), token: self.token, stream }
    }

    /// The connection, for whoever works for a request that came over HTTP/1.
    pub(crate) fn carrier(self: &Arc<Self>) -> Carrier {
        Carrier { address: self.address(0), link: Some(self.clone()) }
    }

    /// For a request that came over it, or (unless `stream` is 0) over one of its streams.
    pub(crate) fn informer(self: &Arc<Self>, stream: u32) -> Informer {
        let connection = Arc::downgrade(self);
        Informer { connection, stream }
    }

    /// Sends its shard a note about it, or about one of its streams.
    pub(crate) fn post(&self, stream: u32, note: Note) {
        self.home.post(Message::Note { token: self.token, stream, note });
    }
}

impl Deref for Connection {
    type Target = Link;

    #[inline(always)]
    fn deref(&self) -> &Link {
        &self.link
    }
}

impl HasLink for Connection {
    fn link(&self) -> &Link {
        &self.link
    }
}

impl Informs for Connection {
    fn inform(&self, stream: u32, message: &Informational<'_>, is_due: &dyn Fn() -> bool) -> io::Result<bool> {
        if stream == 0 {
            return self.link.send_before(message.encode(), is_due);
        }
        let is_due = is_due();
        if is_due {
            self.post(stream, Note::Inform(informational_block(message.status(), message.fields())));
        }
        Ok(is_due)
    }
}

impl HasSocket for Connection {
    #[inline(always)]
    fn socket(&self) -> &Socket {
        &self.link.socket
    }
}

const _: () = assert!(size_of::<Connection>() <= 256, "there are many of them, and most are idle");
