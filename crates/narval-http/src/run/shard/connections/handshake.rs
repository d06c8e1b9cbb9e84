//! TLS connections: workers do the handshakes, the shard decrypts records.

use std::io;

use crate::io::driver::Driver;
use crate::io::over::Close;
use crate::limits::HTTP2_UNSENT_CROWDED;
use crate::run::admission::HandshakePermit;
use crate::run::closing::End;
use crate::run::connection::Connection;
use crate::run::event::Event;
use crate::run::http1::{Act, Input};
use crate::run::job::Job;
use crate::run::mailbox::Note;
use crate::run::shard::Shard;
use crate::run::shard::send::Sent;
use crate::run::shard::slots::{Http2, Protocol, Slot};
use crate::run::worker;
use crate::tls::Opened;

impl<D: Driver<Connection>> Shard<D> {
    /// Handles bytes received on a TLS connection.
    pub(in crate::run::shard) fn on_ciphertext(&mut self, slot: &mut Slot, bytes: &[u8]) {
        if let Protocol::ProxyHeader = slot.protocol {
            return self.on_proxy_header(slot, bytes);
        }
        if let Protocol::Handshake = slot.protocol {
            slot.keep(bytes);
            return self.shake_hands(slot);
        }
        let connection = slot.connection.clone();
        let Some(tls) = &connection.tls else { return };
        let mut plaintext = std::mem::take(&mut self.plaintext);
        plaintext.clear();
        let opened = tls.open(bytes, &mut plaintext);
        self.on_opened(slot, opened, &plaintext);
        self.plaintext = plaintext;
    }

    /// Handles the result of decrypting received bytes.
    fn on_opened(&mut self, slot: &mut Slot, opened: io::Result<Opened>, plaintext: &[u8]) {
        if !plaintext.is_empty() {
            self.on(slot, Event::Received(plaintext));
        }
        match opened {
            Ok(opened) => {
                if opened.has_control {
                    self.send_control(slot);
                }
                if opened.has_ended && !slot.is_gone {
                    self.on_input_end(slot, io::ErrorKind::UnexpectedEof);
                }
            }
            Err(error) => self.on_bad_record(slot, &error),
        }
    }

    /// Handles an invalid record: the client gets an alert, and the connection ends. An answer that is due to what came before
    /// follows the alert, because whoever makes it is the only one who may write.
    fn on_bad_record(&mut self, slot: &mut Slot, error: &io::Error) {
        tracing::trace!(%error, "a TLS record cannot be decrypted");
        self.find_quiet_end(slot);
        match &slot.protocol {
            Protocol::Http1(conn) if conn.is_idle() => {
                self.send_control(slot);
                self.on(slot, Event::Undecodable);
            }
            Protocol::Http2(_) => self.on(slot, Event::Undecodable),
            _ => self.on_input_end(slot, io::ErrorKind::UnexpectedEof),
        }
    }

    /// Sends TLS messages that receiving caused, unless a response is being sent, which will include them.
    fn send_control(&mut self, slot: &mut Slot) {
        if let Protocol::Http2(_) = slot.protocol {
            return self.look_at_http2(slot, true);
        }
        self.find_quiet_end(slot);
        if slot.http1().is_some_and(|conn| conn.is_idle()) {
            match self.send(slot) {
                Sent::All => {}
                unsent => {
                    let kept = std::mem::take(&mut slot.input);
                    self.wait_to_send(slot, unsent, Act::Wait, &mut Input::new(&kept));
                    slot.input = kept;
                }
            }
        }
    }

    /// Hands received bytes of a handshake to a worker, unless one still processes the previous bytes. Cheap steps are
    /// done here.
    fn shake_hands(&mut self, slot: &mut Slot) {
        if slot.input.is_empty() || slot.is_away() {
            return;
        }
        if slot.connection.tls.as_ref().is_some_and(|tls| tls.rest_is_cheap()) {
            let received = std::mem::take(&mut slot.input);
            let local = &mut self.local;
            let outcome = worker::shake_hands(&slot.connection, &received, &mut local.out, &local.counters);
            local.clear_out();
            return self.go_on_after_handshake(slot, outcome);
        }
        let Some(permit) = HandshakePermit::get(&self.local.server.admission) else {
            self.local.counters.handshakes_refused.add(1);
            slot.is_gone = true;
            return;
        };
        let received = std::mem::take(&mut slot.input).into_vec();
        let lease = self.give_lease(slot);
        self.local.server.handshakes.push_continued(Job::Handshake { lease, received, permit });
    }

    /// The job of a step has ended, and returned the lease.
    pub(in crate::run::shard) fn on_handshake_note(&mut self, slot: &mut Slot, note: Note) {
        slot.take_lease_back();
        if let Note::Handshaken(plaintext) = note {
            return self.go_on_after_handshake(slot, plaintext);
        }
        // It panicked.
        slot.connection.socket.abort();
        slot.is_gone = true;
    }

    /// The client speaks HTTP/2.
    pub(in crate::run::shard) fn http2_begins(&mut self) -> Protocol {
        let websockets = self.local.accepts_websockets();
        Protocol::Http2(Box::new(Http2::new(self.local.now, websockets, &self.local.server.limits)))
    }

    /// A step of a handshake is done, or failed.
    fn go_on_after_handshake(&mut self, slot: &mut Slot, plaintext: io::Result<Vec<u8>>) {
        let is_handshaking = slot.connection.tls.as_ref().is_some_and(|tls| tls.is_handshaking());
        let Protocol::Handshake = slot.protocol else { return };
        match plaintext {
            Err(error) => {
                tracing::debug!("a TLS handshake failed: {error}");
                // Closing immediately might lose the alert that was sent.
                let close = Close::Clean { large: false };
                self.end(slot, End { close, is_read: false, unread: None });
            }
            Ok(_) if is_handshaking && slot.has_ended && slot.input.is_empty() => slot.is_gone = true,
            Ok(_) if is_handshaking => self.shake_hands(slot),
            Ok(mut plaintext) => {
                let connection = slot.connection.clone();
                let certificates = connection.tls.as_ref().map(|tls| tls.peer_certificates()).unwrap_or_default();
                if !certificates.is_empty() {
                    connection.learn(connection.remote().with_certificates(certificates));
                }
                let input = std::mem::take(&mut slot.input);
                if connection.tls.as_ref().is_some_and(|tls| tls.speaks_http2()) {
                    self.local.counters.connections_http2.add(1);
                    if self.local.server.admission.is_crowded() {
                        connection.socket.limit_unsent(HTTP2_UNSENT_CROWDED);
                    }
                    slot.protocol = self.http2_begins();
                } else {
                    slot.begin_http1(self.first_deadline(false));
                }
                // Bytes received meanwhile come before later ones.
                if let Some(tls) = &connection.tls {
                    let opened = tls.open(&input, &mut plaintext);
                    self.on_opened(slot, opened, &plaintext);
                }
                if let Protocol::Http2(_) = slot.protocol {
                    // The server sends its preface first.
                    self.look_at_http2(slot, false);
                }
                // The end of input may have arrived meanwhile, too.
                if slot.has_ended && !slot.is_gone {
                    self.on_input_end(slot, io::ErrorKind::UnexpectedEof);
                }
                if self.stopping && !slot.is_gone {
                    self.on(slot, Event::Stop);
                }
            }
        }
    }
}
