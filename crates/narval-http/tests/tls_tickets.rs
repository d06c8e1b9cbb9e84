//! Session tickets and client certificates: a ticket is no longer valid than the certificate that was presented for it.

#![cfg(feature = "tls")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers too")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use narval_http::tls::{ClientAuth, PemPair, TlsAcceptor, TlsConfig};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};

type Authority = CertifiedIssuer<'static, KeyPair>;

/// A server, the file of its certificate authorities, and what clients need.
struct Lab {
    acceptor: TlsAcceptor,
    config: TlsConfig,
    file: PathBuf,
    server: CertificateDer<'static>,
    _folder: tempfile::TempDir,
}

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

impl Lab {
    fn new(authority: Option<&Authority>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let pairs = vec![PemPair { cert: made.cert.pem(), key: made.signing_key.serialize_pem().into() }];
        let file = folder.path().join("ca.pem");
        if let Some(authority) = authority {
            std::fs::write(&file, authority.pem()).unwrap();
        }
        let client_auth = authority.map_or(ClientAuth::None, |_| ClientAuth::Required(file.clone()));
        let config = TlsConfig { pairs, client_auth, ..TlsConfig::default() };
        let acceptor = TlsAcceptor::new(config.clone()).unwrap();
        Self { acceptor, config, file, server: made.cert.der().clone(), _folder: folder }
    }

    /// The file has another authority now.
    fn change(&self, authority: &Authority) {
        std::fs::write(&self.file, authority.pem()).unwrap();
        self.acceptor.reload().unwrap();
    }

    /// A client, which keeps its tickets.
    fn client(
        &self,
        version: &'static SupportedProtocolVersion,
        authority: Option<&Authority>,
        not_after: Option<SystemTime>,
    ) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.server.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
        let builder = builder.with_root_certificates(roots);
        let Some(authority) = authority else { return Arc::new(builder.with_no_client_auth()) };
        let mut params = CertificateParams::new(vec!["client".into()]).unwrap();
        if let Some(not_after) = not_after {
            params.not_after = not_after.into();
        }
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, authority).unwrap().der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        Arc::new(builder.with_client_auth_cert(vec![cert], key).unwrap())
    }

    /// Shakes hands, and sends a byte each way. Whether the session was resumed; an error of the server otherwise.
    fn connect(&self, config: &Arc<ClientConfig>) -> Result<bool, String> {
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(config.clone(), name).unwrap();
        let mut session = self.acceptor.accept().unwrap();
        let (mut received, mut was_sent) = (Vec::new(), false);
        loop {
            if !client.is_handshaking() && !was_sent {
                std::io::Write::write_all(&mut client.writer(), b"?").unwrap();
                was_sent = true;
            }
            let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
            while client.wants_write() {
                client.write_tls(&mut to_server).unwrap();
            }
            let result = session.receive(&to_server, &mut received, &mut to_client);
            result.map_err(|error| format!("{error} (received: {received:?})"))?;
            if to_server.is_empty() && to_client.is_empty() {
                assert_eq!(received, b"?");
                return Ok(session.describe().2);
            }
            let mut rest = to_client.as_slice();
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                client.process_new_packets().map_err(|error| error.to_string())?;
            }
        }
    }
}

fn for_each_version(test: impl Fn(&'static SupportedProtocolVersion)) {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        println!("{version:?}");
        test(version);
    }
}

#[test]
fn an_unchanged_authority_still_resumes() {
    for_each_version(|version| {
        let ca = authority();
        let lab = Lab::new(Some(&ca));
        let client = lab.client(version, Some(&ca), None);
        assert_eq!(lab.connect(&client), Ok(false));
        assert_eq!(lab.connect(&client), Ok(true));
        lab.acceptor.reload().unwrap();
        assert_eq!(lab.connect(&client), Ok(true));
        lab.change(&ca);
        assert_eq!(lab.connect(&client), Ok(true), "the same file, written again");
    });
}

#[test]
fn tickets_of_a_replaced_authority_are_refused() {
    for_each_version(|version| {
        let (old, new) = (authority(), authority());
        let lab = Lab::new(Some(&old));
        let (revoked, other) = (lab.client(version, Some(&old), None), lab.client(version, Some(&new), None));
        assert_eq!(lab.connect(&revoked), Ok(false));
        assert_eq!(lab.connect(&revoked), Ok(true));
        lab.change(&new);
        let error = lab.connect(&revoked).unwrap_err();
        assert!(error.contains("invalid peer certificate"), "{error}");
        assert_eq!(lab.connect(&other), Ok(false));
        assert_eq!(lab.connect(&other), Ok(true));
        // Nor are they valid again when the authority is.
        lab.change(&old);
        assert_eq!(lab.connect(&revoked), Ok(false));
    });
}

#[test]
fn tickets_from_before_certificates_were_required_are_refused() {
    for_each_version(|version| {
        let ca = authority();
        let lab = Lab::new(None);
        let client = lab.client(version, None, None);
        assert_eq!(lab.connect(&client), Ok(false));
        assert_eq!(lab.connect(&client), Ok(true));
        std::fs::write(&lab.file, ca.pem()).unwrap();
        lab.acceptor
            .replace(TlsConfig { client_auth: ClientAuth::Required(lab.file.clone()), ..lab.config.clone() })
            .unwrap();
        let error = lab.connect(&client).unwrap_err();
        assert!(error.contains("peer sent no certificates"), "{error}");
        // No longer required: a new session, without an error.
        lab.acceptor.replace(lab.config.clone()).unwrap();
        assert_eq!(lab.connect(&client), Ok(false));
    });
}

/// Without a certificate, sessions are resumed as long as none is required; with one, as long as it is of an authority.
#[test]
fn tickets_of_optional_certificates() {
    for_each_version(|version| {
        let (ca, other) = (authority(), authority());
        let lab = Lab::new(Some(&ca));
        let optional = TlsConfig { client_auth: ClientAuth::Optional(lab.file.clone()), ..lab.config.clone() };
        lab.acceptor.replace(optional.clone()).unwrap();
        let (without, with) = (lab.client(version, None, None), lab.client(version, Some(&ca), None));
        for client in [&without, &with] {
            assert_eq!(lab.connect(client), Ok(false));
            assert_eq!(lab.connect(client), Ok(true));
        }
        assert!(lab.connect(&lab.client(version, Some(&other), None)).is_err());
        lab.acceptor.replace(lab.config.clone()).unwrap();
        let error = lab.connect(&without).unwrap_err();
        assert!(error.contains("peer sent no certificates"), "{error}");
        assert_eq!(lab.connect(&with), Ok(false), "the same authority, and a new session");
        lab.acceptor.replace(optional).unwrap();
        lab.change(&other);
        assert_eq!(lab.connect(&without), Ok(false));
        let error = lab.connect(&with).unwrap_err();
        assert!(error.contains("invalid peer certificate"), "{error}");
    });
}

#[test]
fn a_resumed_session_ends_with_its_certificate() {
    for_each_version(|version| {
        let ca = authority();
        let lab = Lab::new(Some(&ca));
        let not_after = SystemTime::now() + Duration::from_secs(3);
        let client = lab.client(version, Some(&ca), Some(not_after));
        assert_eq!(lab.connect(&client), Ok(false));
        assert_eq!(lab.connect(&client), Ok(true));
        while SystemTime::now() < not_after + Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let error = lab.connect(&client).unwrap_err();
        assert!(error.contains("expired") && error.contains("received: []"), "{error}");
    });
}
