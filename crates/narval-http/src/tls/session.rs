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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::{CertificateDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;
    use crate::tls::{ClientAuth, Identity, TlsAcceptor, TlsConfig, TlsError};

    struct Made {
        folder: tempfile::TempDir,
        cert: CertificateDer<'static>,
    }

    fn made(names: &[&str]) -> Made {
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let pair = rcgen::generate_simple_self_signed(names).unwrap();
        std::fs::write(folder.path().join("cert.pem"), pair.cert.pem()).unwrap();
        std::fs::write(folder.path().join("key.pem"), pair.signing_key.serialize_pem()).unwrap();
        Made { folder, cert: pair.cert.der().clone() }
    }

    fn identity(made: &Made) -> Identity {
        Identity { cert: made.folder.path().join("cert.pem"), key: made.folder.path().join("key.pem"), ocsp: None }
    }

    fn acceptor(made: &[&Made]) -> TlsAcceptor {
        TlsAcceptor::new(TlsConfig { identities: made.iter().map(|m| identity(m)).collect(), ..TlsConfig::default() })
            .unwrap()
    }

    fn client_config(made: &[&Made], versions: &[&'static rustls::SupportedProtocolVersion]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        for m in made {
            roots.add(m.cert.clone()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
    }

    fn client(config: &Arc<ClientConfig>, name: &str) -> ClientConnection {
        ClientConnection::new(config.clone(), ServerName::try_from(name.to_owned()).unwrap()).unwrap()
    }

    /// Exchanges all pending data in both directions; the client's bytes reach the session in pieces of `step`.
    fn converse(client: &mut ClientConnection, session: &mut TlsSession, step: usize) -> Result<Vec<u8>, String> {
        let mut plaintext = Vec::new();
        loop {
            let mut sent = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut sent).unwrap();
            }
            let mut output = Vec::new();
            for piece in sent.chunks(step) {
                session.receive(piece, &mut plaintext, &mut output).map_err(|e| e.to_string())?;
            }
            if output.is_empty() && sent.is_empty() {
                return Ok(plaintext);
            }
            let mut rest = output.as_slice();
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                client.process_new_packets().map_err(|e| e.to_string())?;
            }
        }
    }

    const BOTH: &[&rustls::SupportedProtocolVersion] = rustls::ALL_VERSIONS;

    /// The plaintext that the client decrypts from these records.
    fn read_all(client: &mut ClientConnection, mut records: &[u8]) -> Vec<u8> {
        let mut got = Vec::new();
        while !records.is_empty() {
            client.read_tls(&mut records).unwrap();
            let state = client.process_new_packets().unwrap();
            let mut piece = vec![0; state.plaintext_bytes_to_read()];
            client.reader().read_exact(&mut piece).unwrap();
            got.extend(piece);
        }
        got
    }

    #[test]
    fn data_passes_both_ways_whatever_the_pieces() {
        let m = made(&["localhost"]);
        let acceptor = acceptor(&[&m]);
        for versions in [&[&rustls::version::TLS12][..], &[&rustls::version::TLS13][..]] {
            for step in [1, 2, 5, 7, 100, 100_000] {
                let mut client = client(&client_config(&[&m], versions), "localhost");
                let mut session = acceptor.accept().unwrap();
                client.writer().write_all(&vec![7; 40_000]).unwrap();
                assert_eq!(converse(&mut client, &mut session, step).unwrap(), vec![7; 40_000]);
                assert!(!session.is_handshaking() && !session.holds_partial_record());
                let mut output = Vec::new();
                session.send(&vec![9; 50_000], &mut output).unwrap();
                session.close_notify(&mut output);
                assert_eq!(read_all(&mut client, &output), vec![9; 50_000]);
            }
        }
    }

    #[test]
    fn the_name_asked_for_chooses_the_certificate() {
        let (a, b) = (made(&["a.example"]), made(&["b.example", "*.c.example"]));
        let acceptor = acceptor(&[&a, &b]);
        for (name, root) in [("a.example", &a), ("b.example", &b), ("x.c.example", &b)] {
            let mut client = client(&client_config(&[root], BOTH), name);
            converse(&mut client, &mut acceptor.accept().unwrap(), 4096).unwrap();
        }
        // Nobody's name: the first certificate is offered, and the client refuses it.
        let mut client = client(&client_config(&[&a, &b], BOTH), "d.example");
        let error = converse(&mut client, &mut acceptor.accept().unwrap(), 4096).unwrap_err();
        assert!(error.contains("not valid for name"), "{error}");
    }

    #[test]
    fn sessions_resume_across_a_reload() {
        let m = made(&["localhost"]);
        let acceptor = acceptor(&[&m]);
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let config = client_config(&[&m], &[version]);
            let mut first = acceptor.accept().unwrap();
            converse(&mut client(&config, "localhost"), &mut first, 4096).unwrap();
            assert!(!first.describe().2);
            acceptor.reload().unwrap();
            let mut second = acceptor.accept().unwrap();
            converse(&mut client(&config, "localhost"), &mut second, 4096).unwrap();
            assert!(second.describe().2, "{:?}", second.describe());
        }
    }

    #[test]
    fn changed_files_are_loaded_and_broken_ones_are_not() {
        let (m, other) = (made(&["localhost"]), made(&["localhost"]));
        let acceptor = acceptor(&[&m]);
        assert!(!acceptor.reload_if_changed().unwrap());
        let cert = m.folder.path().join("cert.pem");
        std::fs::copy(other.folder.path().join("cert.pem"), &cert).unwrap();
        assert!(matches!(acceptor.reload_if_changed(), Err(TlsError::KeyMismatch { .. })));
        // Still the old pair.
        converse(&mut client(&client_config(&[&m], BOTH), "localhost"), &mut acceptor.accept().unwrap(), 9).unwrap();
        std::fs::copy(other.folder.path().join("key.pem"), m.folder.path().join("key.pem")).unwrap();
        assert!(acceptor.reload_if_changed().unwrap());
        converse(&mut client(&client_config(&[&other], BOTH), "localhost"), &mut acceptor.accept().unwrap(), 9)
            .unwrap();
    }

    #[test]
    fn a_client_without_a_certificate_is_refused_where_one_is_wanted() {
        let (m, ca) = (made(&["localhost"]), made(&["ca"]));
        let config = TlsConfig {
            identities: vec![identity(&m)],
            client_auth: ClientAuth::Required(ca.folder.path().join("cert.pem")),
            ..TlsConfig::default()
        };
        let acceptor = TlsAcceptor::new(config).unwrap();
        let mut client = client(&client_config(&[&m], BOTH), "localhost");
        let error = converse(&mut client, &mut acceptor.accept().unwrap(), 4096).unwrap_err();
        assert!(error.contains("peer sent no certificates"), "{error}");
    }

    /// Made by `openssl x509 -req -signkey` without extensions. Its key was not kept.
    const VERSION_1: &str = "\
-----BEGIN CERTIFICATE-----
MIIBIzCBywIUILuq7tqHFN50uXnp978Ob68bzq0wCgYIKoZIzj0EAwIwFDESMBAG
A1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMjAzNTEwMFoYDzIxMjYxMDI5MDM1MTAw
WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AASryWT7Tl4IoBk4LOxtr2uFyjquEuGayPRTrBI0sq09h8p6IAelIJPS3lFxXK9Z
qZE4Os4DFdzzGH28QAUTHvnpMAoGCCqGSM49BAMCA0cAMEQCIGMI+nv2UEr0zuco
ZrbFzOmHz6/hObZ0Wt12lfF6UPd5AiBLlNY3CHjjOh+9YJmGZ3d28p0V9vNCR7zR
LBlXjNPfdQ==
-----END CERTIFICATE-----
";

    #[test]
    fn wrong_files_are_named_with_what_is_wrong() {
        let m = made(&["localhost"]);
        let folder = m.folder.path();
        let load = |cert: &str, key: &str| {
            let identity = Identity { cert: folder.join(cert), key: folder.join(key), ocsp: None };
            TlsAcceptor::new(TlsConfig { identities: vec![identity], ..TlsConfig::default() }).unwrap_err().to_string()
        };
        assert!(load("none.pem", "key.pem").contains("cannot read certificate '"));
        assert!(load("key.pem", "key.pem").contains("contains no PEM certificate"));
        assert!(load("cert.pem", "cert.pem").contains("contains no PEM private key"));
        let mut old = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap();
        old.not_after = rcgen::date_time_ymd(2001, 2, 3);
        let pair = rcgen::KeyPair::generate().unwrap();
        std::fs::write(folder.join("old.pem"), old.self_signed(&pair).unwrap().pem()).unwrap();
        std::fs::write(folder.join("old.key"), pair.serialize_pem()).unwrap();
        let error = load("old.pem", "old.key");
        assert!(error.contains("expired on Sat, 03 Feb 2001"), "{error}");
        std::fs::write(folder.join("version-1.pem"), VERSION_1).unwrap();
        let error = load("version-1.pem", "key.pem");
        assert!(
            error.contains("version-1.pem' is not of X.509 version 3") && error.contains("subjectAltName"),
            "{error}"
        );
        assert!(matches!(TlsAcceptor::new(TlsConfig::default()), Err(TlsError::NoIdentity)));
    }

    #[test]
    fn garbage_and_oversized_records_end_the_session() {
        let m = made(&["localhost"]);
        let acceptor = acceptor(&[&m]);
        for bad in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[22, 3, 1, 0xff, 0xff, 0], &[22, 3, 1, 0, 4, 1, 2, 3, 4]] {
            let mut session = acceptor.accept().unwrap();
            let outcome = session.receive(bad, &mut Vec::new(), &mut Vec::new());
            assert!(outcome.is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_secret_of_a_tls_1_3_session_is_there_for_the_kernel() {
        let m = made(&["localhost"]);
        let config = TlsConfig { identities: vec![identity(&m)], ktls: true, ..TlsConfig::default() };
        let acceptor = TlsAcceptor::new(config).unwrap();
        let mut session = acceptor.accept().unwrap();
        assert!(!session.may_take_output());
        converse(&mut client(&client_config(&[&m], BOTH), "localhost"), &mut session, 4096).unwrap();
        assert!(session.may_take_output() && session.wants_kernel());
        // One session ticket has been sent with the key.
        assert_eq!(session.records_sent, 1);
        assert_eq!(session.catcher.take().map(|s| s.len()), Some(48));
        let mut session = acceptor.accept().unwrap();
        let old = client_config(&[&m], &[&rustls::version::TLS12]);
        converse(&mut client(&old, "localhost"), &mut session, 4096).unwrap();
        assert!(!session.may_take_output());
    }

    #[test]
    fn whoever_takes_over_after_key_updates_has_the_key_of_the_last() {
        let m = made(&["localhost"]);
        let acceptor = acceptor(&[&m]);
        for updates in 0..4 {
            let mut client = client(&client_config(&[&m], &[&rustls::version::TLS13]), "localhost");
            let mut session = acceptor.accept().unwrap();
            converse(&mut client, &mut session, 4096).unwrap();
            let mut wire = Vec::new();
            session.send(b"before, ", &mut wire).unwrap();
            for _ in 0..updates {
                client.refresh_traffic_keys().unwrap();
                let mut asked = Vec::new();
                client.write_tls(&mut asked).unwrap();
                session.receive(&asked, &mut Vec::new(), &mut wire).unwrap();
                session.send(b"between, ", &mut wire).unwrap();
            }
            let mut sender = session.take_output().unwrap();
            let mut record = [&[0; 5][..], b"by another", &[0; 17]].concat();
            sender.seal(&mut record).unwrap();
            wire.extend(record);
            let expected = format!("before, {}by another", "between, ".repeat(updates));
            assert_eq!(String::from_utf8(read_all(&mut client, &wire)).unwrap(), expected);
        }
    }

    #[test]
    fn records_sealed_in_place_go_on_where_the_session_stopped() {
        let m = made(&["localhost"]);
        let acceptor = acceptor(&[&m]);
        let mut client = client(&client_config(&[&m], &[&rustls::version::TLS13]), "localhost");
        let mut session = acceptor.accept().unwrap();
        converse(&mut client, &mut session, 4096).unwrap();
        let mut wire = Vec::new();
        session.send(b"by the session, ", &mut wire).unwrap();
        let mut sender = session.take_output().unwrap();
        assert!(session.send(b"again", &mut wire).is_err() && session.take_output().is_err());
        let seal = |sender: &mut RecordTx, text: &[u8], wire: &mut Vec<u8>| {
            let mut record = [&[0; 5][..], text, &[0; 17]].concat();
            sender.seal(&mut record).unwrap();
            wire.extend(record);
        };
        seal(&mut sender, b"in place, ", &mut wire);
        // The client asks for another key: the session says so by output of its own, which must not be sent.
        client.refresh_traffic_keys().unwrap();
        let (mut asked, mut answer) = (Vec::new(), Vec::new());
        client.write_tls(&mut asked).unwrap();
        session.receive(&asked, &mut Vec::new(), &mut answer).unwrap();
        assert!(!answer.is_empty());
        sender.update_key(&mut wire).unwrap();
        seal(&mut sender, b"with the next key", &mut wire);
        sender.alert(1, 0, &mut wire).unwrap();
        assert_eq!(read_all(&mut client, &wire), b"by the session, in place, with the next key");
    }
}
