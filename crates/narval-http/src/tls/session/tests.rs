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
    converse(&mut client(&client_config(&[&other], BOTH), "localhost"), &mut acceptor.accept().unwrap(), 9).unwrap();
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
    assert!(error.contains("version-1.pem' is not of X.509 version 3") && error.contains("subjectAltName"), "{error}");
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
