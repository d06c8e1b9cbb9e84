//! Simulated TLS clients, by rustls. Keys and nonces are random, but no length depends on them, so neither does the
//! schedule. The certificate uses Ed25519, whose signatures all have the same length.

#![allow(clippy::expect_used, reason = "a client of tests, which fail by panicking")]

use std::io::{Read, Write};
use std::sync::{Arc, LazyLock};

use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::layer::Layer;
use crate::io::sim::Wire;
use crate::tls::{Acceptor, PemPair, TlsAcceptor, TlsConfig};

/// The server's certificate and key.
static PAIR: LazyLock<(rcgen::Certificate, PemPair)> = LazyLock::new(|| {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
    let mut params = rcgen::CertificateParams::new(vec!["sim".into()]).expect("a name");
    params.serial_number = Some(1u64.into());
    let cert = params.self_signed(&key).expect("a certificate");
    let pair = PemPair { cert: cert.pem(), key: key.serialize_pem().into() };
    (cert, pair)
});

/// For the server.
pub(super) fn acceptor() -> Acceptor {
    let config = TlsConfig { pairs: vec![PAIR.1.clone()], ..TlsConfig::default() };
    Acceptor(Arc::new(TlsAcceptor::new(config).expect("a pair that was just made")))
}

/// A client's side of a connection.
#[derive(Debug)]
pub(super) struct TlsClient {
    connection: ClientConnection,
    /// The number of received bytes that were decrypted.
    opened: usize,
    received: Vec<u8>,
    has_ended: bool,
}

impl TlsClient {
    pub(super) fn new(is_old: bool, speaks_http2: bool) -> Self {
        let versions = if is_old { &[&rustls::version::TLS12] } else { &[&rustls::version::TLS13] };
        let mut roots = RootCertStore::empty();
        roots.add(PAIR.0.der().clone()).expect("a root");
        let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(versions)
            .expect("known versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        if speaks_http2 {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        let name = "sim".try_into().expect("a name");
        let mut connection = ClientConnection::new(Arc::new(config), name).expect("a client");
        connection.set_buffer_limit(None);
        Self { connection, opened: 0, received: Vec::new(), has_ended: false }
    }
}

impl Layer for TlsClient {
    fn send(&mut self, bytes: &[u8]) {
        self.connection.writer().write_all(bytes).expect("memory without a limit");
    }

    fn exchange(&mut self, wire: &mut Wire) {
        let mut arrived = wire.to_client.get(self.opened..).unwrap_or_default();
        while !arrived.is_empty() {
            assert!(!self.has_ended, "{} bytes after the close_notify", arrived.len());
            let taken = self.connection.read_tls(&mut arrived).expect("memory");
            let state = self.connection.process_new_packets().expect("records that are sound and in order");
            let mut plain = vec![0; state.plaintext_bytes_to_read()];
            self.connection.reader().read_exact(&mut plain).expect("it is there");
            self.received.append(&mut plain);
            self.has_ended = state.peer_has_closed();
            assert!(taken > 0 || arrived.is_empty(), "{} bytes after the close_notify", arrived.len());
        }
        self.opened = wire.to_client.len();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut wire.to_server).expect("memory");
        }
    }

    fn received(&self) -> &[u8] {
        &self.received
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }
}
