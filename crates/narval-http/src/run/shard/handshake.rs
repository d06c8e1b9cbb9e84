//! TLS connections: handshakes go to workers, records are opened here.

use std::io;

use super::slot::{BodyLeft, Phase, Scan, Then};
use super::{Shard, millis};
use crate::io::driver::{Driver, Token};
use crate::run::admission::HandshakePermit;
use crate::run::connection::{Connection, TxLease};
use crate::run::job::Job;
use crate::run::lease::Holder;
use crate::run::mailbox::Close;
use crate::run::worker;
use crate::tls::Opened;

impl<D: Driver<Connection>> Shard<D> {
    /// Bytes came in on a TLS connection.
    pub(super) fn on_ciphertext(&mut self, token: Token, bytes: &[u8]) {
        let Some(slot) = self.slots.get(token) else { return };
        let connection = slot.connection.clone();
        let Some(tls) = &connection.tls else { return };
        if matches!(slot.phase, Phase::Handshake) {
            slot.input.extend_from_slice(bytes);
            self.shake_hands(token);
            return self.receive(token);
        }
        let mut plaintext = std::mem::take(&mut self.plaintext);
        plaintext.clear();
        let opened = tls.open(bytes, &mut plaintext);
        self.on_opened(token, opened, &plaintext);
        self.plaintext = plaintext;
    }

    /// Received bytes were opened, or could not be.
    fn on_opened(&mut self, token: Token, opened: io::Result<Opened>, plaintext: &[u8]) {
        if !plaintext.is_empty() {
            self.on_plaintext(token, plaintext);
        }
        match opened {
            Ok(opened) => {
                if opened.has_control {
                    self.send_control(token);
                }
                if opened.has_ended {
                    self.on_input_end(token);
                }
                self.receive(token);
            }
            Err(error) => {
                let Some(slot) = self.slots.get(token) else { return };
                if matches!(slot.phase, Phase::Running(BodyLeft::Nothing))
                    && slot.connection.lease.wait_for() == Holder::Shard
                {
                    // The last answer is out, and its worker has given the lease back without a word.
                    slot.phase = Phase::Head(Scan::default());
                }
                if !matches!(slot.phase, Phase::Head(_)) {
                    return self.on_broken(token, &error);
                }
                slot.read_no_more();
                let out = self.take_out();
                if let Some(then) = self.send(token, out, Then::Close(Close::Clean { large: false })) {
                    self.after_answer(token, then, None);
                }
            }
        }
    }

    /// Sends what receiving had to say, unless an answer is on its way, which will carry it.
    fn send_control(&mut self, token: Token) {
        if let Some(slot) = self.slots.get(token)
            && matches!(slot.phase, Phase::Head(_))
            && slot.connection.lease.holder() == Holder::Shard
        {
            let out = self.take_out();
            self.send(token, out, Then::Next);
        }
    }

    /// Gives what was received of a handshake to a worker, if none has the last piece still. What costs less than that is done
    /// here.
    fn shake_hands(&mut self, token: Token) {
        let Some(slot) = self.slots.get(token) else { return };
        if slot.input.is_empty() || slot.connection.lease.holder() == Holder::Job {
            return;
        }
        if slot.connection.tls.as_ref().is_some_and(|tls| tls.rest_is_cheap()) {
            let (connection, received) = (slot.connection.clone(), std::mem::take(&mut slot.input));
            let mut out = self.take_out();
            let outcome = worker::shake_hands(&connection, &received, &mut out, &self.counters);
            self.give_back(out);
            return self.go_on_after_handshake(token, outcome);
        }
        let Some(permit) = HandshakePermit::get(&self.server.admission) else {
            self.counters.handshakes_refused.add(1);
            return self.close(token);
        };
        let received = std::mem::take(&mut slot.input);
        let lease = TxLease::dispatch(&slot.connection);
        self.server.handshakes.push_continued(Job::Handshake { lease, received, permit });
    }

    /// A worker is done with a piece of a handshake, and the lease is back.
    pub(super) fn on_handshaken(&mut self, token: Token, plaintext: io::Result<Vec<u8>>) {
        let Some(slot) = self.slots.get(token) else { return };
        slot.connection.lease.take_back();
        self.go_on_after_handshake(token, plaintext);
    }

    /// A piece of a handshake is done, or failed.
    fn go_on_after_handshake(&mut self, token: Token, plaintext: io::Result<Vec<u8>>) {
        let deadline = self.now + millis(self.server.limits.head_timeout);
        let Some(slot) = self.slots.get(token) else { return };
        let is_handshaking = slot.connection.tls.as_ref().is_some_and(|tls| tls.is_handshaking());
        match plaintext {
            Err(error) => {
                tracing::debug!("a TLS handshake failed: {error}");
                // An alert has gone out, which closing at once might take back.
                slot.read_no_more();
                self.end(token, Close::Clean { large: false }, None);
            }
            Ok(_) if is_handshaking && slot.has_ended() && slot.input.is_empty() => self.close(token),
            Ok(_) if is_handshaking => {
                self.shake_hands(token);
                self.receive(token);
            }
            Ok(mut plaintext) => {
                let connection = slot.connection.clone();
                let input = std::mem::take(&mut slot.input);
                slot.phase = Phase::Head(Scan::default());
                slot.deadline = deadline;
                self.watch(token);
                // What was received meanwhile comes before anything that is received from now on.
                if let Some(tls) = &connection.tls {
                    let opened = tls.open(&input, &mut plaintext);
                    self.on_opened(token, opened, &plaintext);
                }
                // Its end may have come meanwhile, too.
                if self.slots.get(token).is_some_and(|slot| matches!(slot.phase, Phase::Head(_)) && slot.has_ended()) {
                    self.end_cleanly(token);
                }
            }
        }
    }
}
