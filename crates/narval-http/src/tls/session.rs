#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};
use std::sync::Arc;

use rustls::pki_types::UnixTime;
use rustls::server::danger::ClientCertVerifier;
use rustls::{HandshakeKind, ProtocolVersion, ServerConfig, ServerConnection};
use thiserror::Error;

use super::RecordTx;
use super::secrets::{SecretCatcher, TrafficSecret};

/// Type, version and length of a record (RFC 8446 section 5.1).
const RECORD_HEADER: usize = 5;
/// The maximum length of a record: 2^14 bytes plus the expansion of TLS 1.2 (RFC 5246 section 6.2.3).
const RECORD_MAX: usize = RECORD_HEADER + (1 << 14) + 2048;
/// The outer type of every encrypted TLS 1.3 record.
const APPLICATION_DATA: u8 = 23;

/// The number of records after which a connection stays with the library: half of a key's limit (RFC 8446 section 5.5).
const RECORDS_BEFORE_TAKING_MAX: u64 = 1 << 23;

/// The connection failed. The output may contain an alert to send before closing it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The peer violated the protocol, or there is no common version or suite.
    #[error("TLS: {0}")]
    Protocol(#[from] rustls::Error),
    /// The first bytes are not TLS: a client that speaks plain HTTP to this port.
    #[error("TLS: the client does not speak TLS")]
    NotTls,
    /// A record exceeds the maximum length.
    #[error("TLS: a record of {0} bytes exceeds the limit")]
    RecordTooLong(usize),
}

/// The server's side of a TLS connection: ciphertext in, plaintext out, and the reverse. It does no I/O.
///
/// It processes one record at a time, and its output is drained after each. So the number of records sent is always
/// known, and at most one record is held.
pub struct TlsSession {
    connection: ServerConnection,
    /// An incomplete record. Usually empty, and then without an allocation.
    partial: Vec<u8>,
    /// Holds the traffic secret for sending, until sending is handed over.
    catcher: Arc<SecretCatcher>,
    /// Whether kTLS is configured.
    ktls: bool,
    /// Verifies the client's certificate, if it is asked for one.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// Sending was handed over: nothing may be encrypted here, because the record number would be reused.
    taken: bool,
    /// The number of key updates for sending since the handshake, each requested by the client.
    key_updates: u32,
    /// The number of records sent with the current key, which is the sequence number when sending is handed over.
    records_sent: u64,
    peer_closed: bool,
}

impl TlsSession {
    pub(super) fn new(
        config: &Arc<ServerConfig>,
        ktls: bool,
        verifier: Option<&Arc<dyn ClientCertVerifier>>,
        http2: bool,
    ) -> Result<Self, rustls::Error> {
        let catcher = SecretCatcher::new();
        let mut own = ServerConfig::clone(config);
        own.key_log = catcher.clone();
        if http2 {
            own.alpn_protocols.insert(0, b"h2".to_vec());
        }
        let mut connection = ServerConnection::new(Arc::new(own))?;
        // The caller limits what it writes at a time and drains it at once.
        connection.set_buffer_limit(None);
        Ok(Self {
            connection,
            partial: Vec::new(),
            catcher,
            ktls,
            verifier: verifier.cloned(),
            taken: false,
            key_updates: 0,
            records_sent: 0,
            peer_closed: false,
        })
    }

    /// Whether the handshake is in progress. Its records take tens of microseconds or more, so a worker should
    /// [`receive`](Self::receive) them.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Whether HTTP/2 was agreed on (RFC 7301).
    pub(crate) fn speaks_http2(&self) -> bool {
        self.connection.alpn_protocol() == Some(b"h2")
    }

    /// Whether only the client's Finished is missing from the handshake. [Receiving](Self::receive) it then costs some
    /// hashing and no public-key operation: there is no client certificate to verify and no key to agree on.
    pub fn rest_is_cheap(&self) -> bool {
        // The kind is known once the ServerHello was made. Any other kind means that the client must retry its hello.
        let (version, kind) = (self.connection.protocol_version(), self.connection.handshake_kind());
        self.verifier.is_none()
            && match kind {
                Some(HandshakeKind::Resumed) => true,
                Some(HandshakeKind::Full) => version == Some(ProtocolVersion::TLSv1_3),
                _ => false,
            }
    }

    /// Whether the peer has sent close_notify. An end of file without it is a truncation.
    pub fn peer_has_closed(&self) -> bool {
        self.peer_closed
    }

    /// Whether an incomplete record is held: an end of file would truncate it.
    pub fn holds_partial_record(&self) -> bool {
        !self.partial.is_empty()
    }

    /// Decrypts `input`. Appends the plaintext to `plaintext`, and records to send (handshake, alerts) to `output`.
    ///
    /// # Errors
    /// The connection must be closed. `output` may contain an alert for the peer.
    pub fn receive(
        &mut self,
        mut input: &[u8],
        plaintext: &mut Vec<u8>,
        output: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        if !self.partial.is_empty() {
            let wanted = self.partial_wants();
            let take = wanted.min(input.len());
            let (head, rest) = input.split_at(take);
            self.partial.extend_from_slice(head);
            input = rest;
            // With the header complete, the rest of the record may be available as well.
            if self.partial.len() == RECORD_HEADER && !input.is_empty() {
                let mut joined = std::mem::take(&mut self.partial);
                joined.extend_from_slice(input);
                return self.receive(&joined, plaintext, output);
            }
            if record_length(&self.partial)?.is_none_or(|length| self.partial.len() < length) {
                return Ok(());
            }
            let record = std::mem::take(&mut self.partial);
            self.process(&record, plaintext, output)?;
        }
        while let Some(length) = record_length(input)? {
            let Some((record, rest)) = input.split_at_checked(length) else { break };
            self.process(record, plaintext, output)?;
            input = rest;
        }
        self.partial.extend_from_slice(input);
        Ok(())
    }

    /// The number of bytes missing from the held record, or from its header.
    fn partial_wants(&self) -> usize {
        match record_length(&self.partial) {
            Ok(Some(length)) => length.saturating_sub(self.partial.len()),
            _ => RECORD_HEADER.saturating_sub(self.partial.len()),
        }
    }

    fn process(
        &mut self,
        mut record: &[u8],
        plaintext: &mut Vec<u8>,
        output: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        let established = !self.connection.is_handshaking();
        while !record.is_empty() {
            // Reading from memory fails only if rustls must be drained first, which is done each time.
            let read = self.connection.read_tls(&mut record);
            let state = self.connection.process_new_packets();
            let state = match (state, read) {
                (Ok(state), Ok(_)) => state,
                (Err(error), _) => {
                    self.drain(output);
                    return Err(error.into());
                }
                (Ok(_), Err(error)) => return Err(rustls::Error::General(error.to_string()).into()),
            };
            if !established
                && !self.connection.is_handshaking()
                && let Err(error) = self.verify_resumed()
            {
                self.close_notify(output);
                return Err(error.into());
            }
            self.peer_closed |= state.peer_has_closed();
            let available = state.plaintext_bytes_to_read();
            if available > 0 {
                let start = plaintext.len();
                plaintext.resize(start + available, 0);
                let into = plaintext.get_mut(start..).unwrap_or_default();
                let got = self.connection.reader().read(into).unwrap_or(0);
                plaintext.truncate(start + got);
            }
            if established && available == 0 {
                // The answer to a KeyUpdate stays inside rustls until something is written, but the sender must learn
                // of it now. (`write_all` of an empty slice would do nothing.)
                let flushed = self.connection.writer().write(&[]);
                flushed.map_err(|error| rustls::Error::General(error.to_string()))?;
            }
            let before = output.len();
            self.drain(output);
            // On an established connection, receiving produces no other record: the next ones use the new key.
            if established && output.len() > before && !self.taken {
                self.key_updates += 1;
                self.records_sent = 0;
            }
        }
        Ok(())
    }

    /// Verifies the certificate of a resumed session again: it may have expired since.
    fn verify_resumed(&self) -> Result<(), rustls::Error> {
        let Some(verifier) = &self.verifier else { return Ok(()) };
        if self.connection.handshake_kind() != Some(HandshakeKind::Resumed) {
            return Ok(());
        }
        match self.connection.peer_certificates().unwrap_or_default() {
            [leaf, others @ ..] => verifier.verify_client_cert(leaf, others, UnixTime::now()).map(drop),
            [] if verifier.client_auth_mandatory() => Err(rustls::Error::NoCertificatesPresented),
            [] => Ok(()),
        }
    }

    /// The client's certificate, and those that it sent with it, as DER; none if it has not presented one, or not yet. It has been
    /// verified, also for a resumed session.
    pub fn peer_certificates(&self) -> impl Iterator<Item = &[u8]> {
        // Before the end of the handshake, the client has not shown that the key is its own.
        let chain = self.connection.peer_certificates().filter(|_| !self.is_handshaking());
        chain.unwrap_or_default().iter().map(AsRef::as_ref)
    }

    /// Encrypts `plaintext` and appends the records to `output`. Should be called with about 64 KiB at a time.
    ///
    /// # Errors
    /// The connection must be closed, or sending was handed over.
    pub fn send(&mut self, plaintext: &[u8], output: &mut Vec<u8>) -> io::Result<()> {
        if self.taken {
            return Err(io::Error::other("output was handed over to `RecordTx`"));
        }
        self.connection.writer().write_all(plaintext)?;
        self.drain(output);
        Ok(())
    }

    /// Appends a close_notify to `output` (RFC 8446 section 6.1).
    pub fn close_notify(&mut self, output: &mut Vec<u8>) {
        self.connection.send_close_notify();
        self.drain(output);
    }

    fn drain(&mut self, output: &mut Vec<u8>) {
        let established = !self.connection.is_handshaking();
        while self.connection.wants_write() {
            let start = output.len();
            if !matches!(self.connection.write_tls(output), Ok(n) if n > 0) {
                break;
            }
            if established {
                self.records_sent += count_application_records(output.get(start..).unwrap_or_default());
            }
        }
    }

    /// Whether sending can be handed over: TLS 1.3, the handshake has completed, it was not handed over before, and the
    /// library is not close to updating the key on its own, which it does not report.
    pub fn may_take_output(&self) -> bool {
        !self.taken
            && self.records_sent < RECORDS_BEFORE_TAKING_MAX
            && !self.connection.is_handshaking()
            && self.connection.protocol_version() == Some(ProtocolVersion::TLSv1_3)
    }

    /// Whether sending should be switched to kTLS with [`RecordTx::offload`].
    pub fn wants_kernel(&self) -> bool {
        self.ktls
    }

    /// Hands sending over to a [`RecordTx`], which encrypts in place. All previous output must be sent first.
    /// Afterwards, output of [`receive`](Self::receive) is the answer to a KeyUpdate, to be discarded and replaced by
    /// [`RecordTx::update_key`]; or, if it failed, an alert, to be replaced by [`RecordTx::alert`].
    ///
    /// # Errors
    /// The output [may not be taken](Self::may_take_output). The session continues unchanged.
    pub fn take_output(&mut self) -> io::Result<RecordTx> {
        let secret = self.secret()?;
        let sender = RecordTx::new(secret, self.records_sent)?;
        self.taken = true;
        Ok(sender)
    }

    fn secret(&self) -> io::Result<TrafficSecret> {
        if !self.may_take_output() {
            return Err(unsupported("only the output of an established TLS 1.3 connection can be handed over"));
        }
        let suite = self.connection.negotiated_cipher_suite().ok_or_else(|| unsupported("no cipher suite"))?;
        let secret = self.catcher.take().ok_or_else(|| unsupported("the secret was already taken"))?;
        let mut secret = TrafficSecret::new(suite.suite(), secret)
            .ok_or_else(|| unsupported("the kernel does not support the cipher suite"))?;
        for _ in 0..self.key_updates {
            secret.update().ok_or_else(|| unsupported("no next key"))?;
        }
        Ok(secret)
    }

    /// Version, suite, and whether the session was resumed, for logs and metrics.
    pub fn describe(&self) -> (Option<ProtocolVersion>, Option<rustls::CipherSuite>, bool) {
        let resumed = self.connection.handshake_kind() == Some(HandshakeKind::Resumed);
        (self.connection.protocol_version(), self.connection.negotiated_cipher_suite().map(|s| s.suite()), resumed)
    }
}

impl std::fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TlsSession {{ handshaking: {}, .. }}", self.is_handshaking())
    }
}

fn unsupported(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, what)
}

/// The length of the record at the start of `input`, header included. `None` if the header is incomplete.
fn record_length(input: &[u8]) -> Result<Option<usize>, SessionError> {
    // Types are 20 to 24, and the major version is 3 in all versions.
    if !matches!(input, [] | [20..=24] | [20..=24, 3, ..]) {
        return Err(SessionError::NotTls);
    }
    let Some(&[_, _, _, high, low]) = input.first_chunk::<RECORD_HEADER>() else { return Ok(None) };
    let length = RECORD_HEADER + usize::from(u16::from_be_bytes([high, low]));
    if length > RECORD_MAX { Err(SessionError::RecordTooLong(length)) } else { Ok(Some(length)) }
}

fn count_application_records(mut output: &[u8]) -> u64 {
    let mut count = 0;
    while let Ok(Some(length)) = record_length(output) {
        count += u64::from(output.first() == Some(&APPLICATION_DATA));
        output = output.get(length..).unwrap_or_default();
    }
    count
}
