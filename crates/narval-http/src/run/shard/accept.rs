//! Accepts connections: the first shard accepts, and distributes them to all shards.

use std::io;
use std::sync::Arc;

use super::Shard;
use super::slots::{Delivery, Protocol, Slot};
use crate::http1::response_head::AnswerTo;
use crate::io::clock::{Millis, millis};
use crate::io::driver::{Driver, lacks_resources};
use crate::io::out_buf::OutBuf;
use crate::io::output_memory::{Holding, Share};
use crate::io::socket::Socket;
use crate::limits::{ACCEPT_PAUSE, FIRST_REQUEST_GRACE, IDLE_LOOKS, IDLE_MIN};
use crate::message::departure::Departure;
use crate::peer::{Peer, Remote, proxy_header};
use crate::run::admission::Full;
use crate::run::connection::Connection;
use crate::run::event::Event;
use crate::run::http1::Conn;
use crate::run::mailbox::{Message, Note};
use crate::run::transmit::encode;

impl<D: Driver<Connection>> Shard<D> {
    pub(super) fn on_accepted(&mut self, listener: usize, result: io::Result<(Socket, Peer)>) {
        let (socket, peer) = match result {
            Ok(accepted) => accepted,
            Err(error) => return self.on_accept_error(listener, &error),
        };
        self.local.counters.connections_accepted.add(1);
        let is_secure = self.local.server.secures(&peer);
        let remote = Remote::new(peer, is_secure, self.local.server.proxies.as_ref());
        match self.local.server.admission.enter(&remote) {
            Ok(()) => {}
            // In the place of the idle one: so all shards keep their share of the connections.
            Err(Full::Server) if self.close_idle() && self.local.server.admission.enter(&remote).is_ok() => {
                return self.open(socket, remote);
            }
            Err(full) => {
                self.local.counters.connections_closed.add(1);
                return self.refuse_connection(&socket, &remote, full);
            }
        }
        let shard = self.next_shard % self.shards.len().max(1);
        self.next_shard = shard + 1;
        // When the server stops, another shard may have ended.
        match self.shards.get(shard).filter(|_| !self.local.server.is_stopping()) {
            Some(mailbox) if !Arc::ptr_eq(mailbox, &self.mailbox) => mailbox.post(Message::Accepted { socket, remote }),
            _ => self.open(socket, remote),
        }
    }

    /// Closes a connection to make room for another one: one that is idle, if one of the next connections is. `false` if none is.
    fn close_idle(&mut self) -> bool {
        for _ in 0..IDLE_LOOKS {
            let Some(token) = self.slots.next_token() else { continue };
            let Some(mut slot) = self.slots.take(token) else { continue };
            self.find_quiet_end(&mut slot);
            if self.has_been_idle(&slot) {
                if let Protocol::Http2(_) = slot.protocol {
                    self.on(&mut slot, Event::GivenUp);
                }
                self.local.counters.connections_given_up.add(1);
                self.close(*slot);
                return true;
            }
            self.slots.put(slot);
        }
        false
    }

    /// Whether nothing has happened on a connection for a while.
    fn has_been_idle(&self, slot: &Slot) -> bool {
        let since = match &slot.protocol {
            Protocol::Http1(conn) => conn.idle_since(&self.local.server.limits).filter(|_| slot.input.is_empty()),
            Protocol::Http2(http2) => http2.conn.idle_since(),
            Protocol::ProxyHeader | Protocol::Handshake => None,
            Protocol::WebSocket(_) | Protocol::Closing(_) => None,
        };
        since.is_some_and(|since| since + millis(IDLE_MIN) <= self.local.now)
    }

    /// Counts a refused connection, and answers 503 if it has no TLS.
    fn refuse_connection(&self, socket: &Socket, remote: &Remote, full: Full) {
        self.local.counters.connections_refused.add(1);
        if full == Full::Client && self.local.server.complaints.may_name(remote, self.local.now) {
            tracing::info!(peer = ?remote.peer(), "a client has as many connections as it may: others are refused");
        }
        if remote.is_secure() {
            return;
        }
        let to = AnswerTo { version: http::Version::HTTP_11, is_head: false, keep_alive: false };
        let mut out = OutBuf::default();
        encode(self.local.server.overloaded.clone().into(), to, &mut out);
        // As much as fits: a refused client is not worth waiting for.
        drop(socket.send_buf(&mut out));
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
    pub(super) fn open(&mut self, socket: Socket, remote: Remote) {
        let home = self.mailbox.clone();
        let tls = match self
            .local
            .server
            .acceptor
            .as_ref()
            .filter(|_| remote.is_secure())
            .map(|tls| tls.accept(self.local.server.http2))
        {
            None => None,
            Some(Some(tls)) => Some(tls),
            Some(None) => {
                self.local.counters.connections_closed.add(1);
                return self.local.server.admission.leave(&remote);
            }
        };
        let deadline = self.first_deadline(tls.is_some());
        let protocol = match remote.proxies() {
            Some(proxies) if proxies.send_proxy_header => Protocol::ProxyHeader,
            _ => first_protocol(tls.is_some(), deadline),
        };
        let holding = Holding::new(&self.local.server.output_memory);
        let token = self.slots.insert(|token| Slot {
            held: Share::of(&holding),
            connection: Arc::new(Connection::new(socket, tls, remote, token, home, holding)),
            protocol,
            input: Box::default(),
            has_ended: false,
            awaits_room: false,
            wants_read: true,
            wants_answer: false,
            delivery: Delivery::Idle,
            receiving: false,
            is_gone: false,
            deadline,
            departure: Departure::default(),
            look_at: 0,
        });
        self.with(token, |shard, slot| {
            if let Err(error) = shard.driver.attach(token, slot.connection.clone()) {
                tracing::warn!(%error, "cannot watch a connection: closed");
                slot.is_gone = true;
            }
            #[cfg(any(test, feature = "sim"))]
            if let Socket::Sim(socket) = &slot.connection.socket
                && socket.speaks_http2()
            {
                slot.protocol = shard.http2_begins();
                shard.look_at_http2(slot, false);
            }
            if shard.stopping {
                shard.on(slot, Event::Stop);
            }
        });
    }

    /// Tells a connection whose protocol is not known yet.
    #[inline(never)]
    pub(super) fn on_begun(&mut self, slot: &mut Slot, event: Event<'_>) {
        // A step of a handshake is with a job, which reports in any case.
        let is_away = slot.is_away();
        match event {
            Event::Received(bytes) => {
                if let Protocol::ProxyHeader = slot.protocol {
                    self.on_proxy_header(slot, bytes);
                }
            }
            Event::InputEnded(_) | Event::Undecodable => slot.is_gone |= !is_away,
            Event::Tick => {
                self.local.counters.timeouts.add(1);
                slot.has_ended = true;
                slot.deadline = self.local.now + millis(self.local.server.limits.keep_alive_timeout);
                slot.is_gone = !is_away;
            }
            Event::Stop => slot.deadline = slot.deadline.min(self.local.now + millis(FIRST_REQUEST_GRACE)),
            Event::Noted(_, note @ (Note::Handshaken(_) | Note::Lost)) => self.on_handshake_note(slot, note),
            _ => {}
        }
    }

    /// Handles the first bytes from a proxy that names its client before anything else.
    pub(super) fn on_proxy_header(&mut self, slot: &mut Slot, bytes: &[u8]) {
        slot.keep(bytes);
        let (source, len) = match proxy_header::parse(&slot.input) {
            Ok(None) => return,
            Ok(Some(header)) => header,
            Err(error) => {
                self.local.counters.rejected.add(1);
                let peer = slot.connection.remote().peer();
                tracing::debug!(%error, ?peer, "a trusted proxy does not speak the PROXY protocol: its connection ends");
                slot.is_gone = true;
                return;
            }
        };
        let rest = std::mem::take(&mut slot.input).into_vec().split_off(len);
        let remote = slot.connection.remote().after(source);
        if !self.local.server.admission.count(&remote) {
            self.refuse_connection(&slot.connection.socket, &remote, Full::Client);
            slot.is_gone = true;
            return;
        }
        slot.protocol = first_protocol(remote.is_secure(), slot.deadline);
        slot.connection.learn(remote);
        if self.stopping {
            self.on(slot, Event::Stop);
        }
        match rest.is_empty() {
            true => {}
            false if slot.connection.tls.is_some() => self.on_ciphertext(slot, &rest),
            false => self.on(slot, Event::Received(&rest)),
        }
    }
}

fn first_protocol(is_secure: bool, deadline: Millis) -> Protocol {
    if is_secure { Protocol::Handshake } else { Protocol::Http1(Conn::new(deadline)) }
}
