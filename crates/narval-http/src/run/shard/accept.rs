//! Accepts connections: the first shard accepts, and distributes them to all shards.

use std::io;
use std::sync::Arc;

use super::Shard;
use super::slots::{Protocol, Slot};
use crate::Peer;
use crate::http1::conn::Conn;
use crate::http1::response_head::AnswerTo;
use crate::io::clock::millis;
use crate::io::driver::{Driver, lacks_resources};
use crate::io::out_buf::OutBuf;
use crate::io::socket::Socket;
use crate::limits::ACCEPT_PAUSE;
use crate::run::connection::Connection;
use crate::run::mailbox::Message;
use crate::run::transmit::encode;

impl<D: Driver<Connection>> Shard<D> {
    pub(super) fn on_accepted(&mut self, listener: usize, result: io::Result<(Socket, Peer)>) {
        let (socket, peer) = match result {
            Ok(accepted) => accepted,
            Err(error) => return self.on_accept_error(listener, &error),
        };
        self.local.counters.connections_accepted.add(1);
        if !self.local.server.admission.enter(&peer) {
            self.local.counters.connections_refused.add(1);
            self.local.counters.connections_closed.add(1);
            if self.local.server.secures(&peer) {
                return;
            }
            let to = AnswerTo { version: http::Version::HTTP_11, is_head: false, keep_alive: false };
            let mut out = OutBuf::default();
            encode(self.local.server.overloaded.clone().into(), to, &mut out);
            // As much as fits: a refused client is not worth waiting for.
            drop(socket.send_buf(&mut out));
            return;
        }
        let shard = self.next_shard % self.shards.len().max(1);
        self.next_shard = shard + 1;
        // When the server stops, another shard may have ended.
        match self.shards.get(shard).filter(|_| !self.local.server.is_stopping()) {
            Some(mailbox) if !Arc::ptr_eq(mailbox, &self.mailbox) => mailbox.post(Message::Accepted { socket, peer }),
            _ => self.open(socket, peer),
        }
    }

    fn on_accept_error(&mut self, listener: usize, error: &io::Error) {
        self.local.counters.accept_errors.add(1);
        if lacks_resources(error) && self.resting.iter().all(|(resting, _)| *resting != listener) {
            tracing::warn!(%error, "cannot accept connections, trying again in {ACCEPT_PAUSE:?}");
            self.driver.unlisten(listener);
            self.resting.push((listener, self.local.now + millis(ACCEPT_PAUSE)));
        }
    }

    /// Resumes paused listeners.
    pub(super) fn wake_listeners(&mut self) {
        let now = self.local.now;
        let (rested, resting) = self.resting.drain(..).partition(|(_, until)| *until <= now);
        self.resting = resting;
        for (listener, _) in Vec::from_iter::<Vec<(usize, u64)>>(rested) {
            if let Some(socket) = self.listeners.get(listener)
                && let Err(error) = self.driver.listen(listener, socket.clone())
            {
                tracing::warn!(%error, "cannot listen again, trying again in {ACCEPT_PAUSE:?}");
                self.resting.push((listener, now + millis(ACCEPT_PAUSE)));
            }
        }
    }

    /// Adds a connection.
    pub(super) fn open(&mut self, socket: Socket, peer: Peer) {
        let home = self.mailbox.clone();
        let tls = match self
            .local
            .server
            .acceptor
            .as_ref()
            .filter(|_| self.local.server.secures(&peer))
            .map(|tls| tls.accept(self.local.server.http2))
        {
            None => None,
            Some(Some(tls)) => Some(tls),
            Some(None) => {
                self.local.counters.connections_closed.add(1);
                return self.local.server.admission.leave(&peer);
            }
        };
        let deadline = self.first_deadline(tls.is_some());
        let protocol = match &tls {
            Some(_) => Protocol::Handshake { input: Vec::new(), has_ended: false },
            None => Protocol::Http1(Conn::new(deadline)),
        };
        let token = self.slots.insert(|token| Slot {
            connection: Arc::new(Connection::new(socket, tls, peer, token, home)),
            protocol,
            receiving: false,
            is_gone: false,
            deadline,
        });
        self.with(token, |shard, slot| {
            if let Err(error) = shard.driver.attach(token, slot.connection.clone()) {
                tracing::warn!(%error, "cannot watch a connection: closed");
                slot.is_gone = true;
            }
            if shard.stopping {
                shard.stop_connection(slot);
            }
        });
    }
}
