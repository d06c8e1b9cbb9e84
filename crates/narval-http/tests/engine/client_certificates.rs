//! Clients that present certificates, to the engine over real sockets: curl, `openssl s_client` and rustls.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use narval_http::tls::{ClientAuth, Identity, TlsAcceptor, TlsConfig, probe};
use narval_http::{Body, Bytes, FileRange, Handler, HeadRef, Request, Response, StatusCode};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::harness::{TestServer, on_each_driver, unhurried};
use crate::http2::server::certificate;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> (CertificateParams, KeyPair) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    (params, KeyPair::generate().unwrap())
}

/// Certificates of clients, as files: those of one authority, with an intermediate one between, and of a stranger.
struct Lab {
    folder: tempfile::TempDir,
    /// The client's certificate and the intermediate one.
    chain: Vec<Bytes>,
}

impl Lab {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (params, key) = authority("root");
        let root = Authority::self_signed(params, key).unwrap();
        let (params, key) = authority("intermediate");
        let intermediate = CertifiedIssuer::signed_by(params, key, &root).unwrap();
        let (params, key) = authority("stranger");
        let stranger = Authority::self_signed(params, key).unwrap();
        let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
        let mut chain = Vec::new();
        for (name, issuer) in [("ada", &intermediate), ("eve", &stranger)] {
            let (params, key) = (CertificateParams::new(vec![name.into()]).unwrap(), KeyPair::generate().unwrap());
            let cert = params.signed_by(&key, issuer).unwrap();
            write(&format!("{name}.pem"), format!("{}{}", cert.pem(), issuer.pem()));
            write(&format!("{name}.key"), key.serialize_pem());
            if name == "ada" {
                chain = [cert.der(), intermediate.der()].map(|der| Bytes::copy_from_slice(der)).into();
            }
        }
        write("root.pem", root.pem());
        write("stranger.pem", stranger.pem());
        write("trusted.pem", root.pem());
        Self { folder, chain }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn acceptor(&self, auth: impl FnOnce(PathBuf) -> ClientAuth) -> Arc<TlsAcceptor> {
        let [cert, key] = certificate().paths();
        let identities = vec![Identity { cert, key, ocsp: None }];
        // Where the kernel has TLS, it sends the large response.
        let (client_auth, ktls) = (auth(self.file("trusted.pem")), probe().is_ok());
        Arc::new(TlsAcceptor::new(TlsConfig { identities, client_auth, ktls, ..TlsConfig::default() }).unwrap())
    }
}

/// Answers with the certificates: inline, by a worker, or at the end of a large file.
struct Mirror;

const BEFORE: usize = 3_000_000;

fn joined(chain: &[Bytes]) -> Vec<u8> {
    chain.concat()
}

impl Handler for Mirror {
    fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
        let chain = joined(head.peer_certificates());
        (head.path() == "/inline").then(|| Response::new(StatusCode::OK).body(Body::bytes(chain)))
    }

    fn handle(&self, request: Request) -> Response {
        let chain = joined(request.peer_certificates());
        let body = match request.path() {
            "/large" => {
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(&[vec![b'.'; BEFORE], chain].concat()).unwrap();
                let length = file.metadata().unwrap().len();
                Body::file(FileRange { file: Arc::new(file), offset: 0, length })
            }
            "/client" => Body::bytes([format!("{} ", request.client_ip().unwrap()).as_bytes(), &chain].concat()),
            _ => Body::bytes(chain),
        };
        Response::new(StatusCode::OK).body(body)
    }
}

/// Has curl ask for `path`, with the certificate of `name` if that is not empty.
fn curl(lab: &Lab, server: &TestServer, name: &str, options: &[&str], path: &str) -> Output {
    let port = server.address.port();
    let [cert, _] = certificate().paths();
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "60", "--cacert"]).arg(cert);
    curl.args(["--resolve", &format!("localhost:{port}:127.0.0.1"), &format!("https://localhost:{port}{path}")]);
    if !name.is_empty() {
        curl.arg("--cert").arg(lab.file(&format!("{name}.pem")));
        curl.arg("--key").arg(lab.file(&format!("{name}.key")));
    }
    curl.args(options).output().unwrap()
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const VERSIONS: [&[&str]; 4] = [
    &["--http1.1", "--tls-max", "1.2"],
    &["--http2", "--tls-max", "1.2"],
    &["--http1.1", "--tlsv1.3"],
    &["--http2", "--tlsv1.3"],
];

#[test]
fn handlers_know_clients_by_their_certificates() {
    let lab = Lab::new();
    let expected = joined(&lab.chain);
    on_each_driver(|driver| {
        let acceptor = lab.acceptor(ClientAuth::Required);
        let server = TestServer::with(driver, Mirror, unhurried(), |builder| builder.tls(acceptor).http2(true));
        for options in VERSIONS {
            for path in ["/worker", "/inline", "/large"] {
                let output = curl(&lab, &server, "ada", options, path);
                assert!(output.status.success(), "{options:?} {path}: {}", text_of(&output.stderr));
                let large = if path == "/large" { BEFORE } else { 0 };
                assert!(output.stdout[large..] == expected, "{options:?} {path}: {} bytes", output.stdout.len());
            }
            for name in ["", "eve"] {
                let output = curl(&lab, &server, name, options, "/worker");
                assert!(!output.status.success(), "{options:?} '{name}' is served");
            }
        }
    });
}

#[test]
fn a_certificate_may_be_optional() {
    let lab = Lab::new();
    on_each_driver(|driver| {
        let acceptor = lab.acceptor(ClientAuth::Optional);
        let server = TestServer::with(driver, Mirror, unhurried(), |builder| builder.tls(acceptor).http2(true));
        for options in VERSIONS {
            for path in ["/worker", "/inline"] {
                for (name, expected) in [("", Vec::new()), ("ada", joined(&lab.chain))] {
                    let output = curl(&lab, &server, name, options, path);
                    assert!(output.status.success(), "{options:?} '{name}' {path}: {}", text_of(&output.stderr));
                    assert!(output.stdout == expected, "{options:?} '{name}' {path}");
                }
            }
            // Not as one without a certificate.
            assert!(!curl(&lab, &server, "eve", options, "/worker").status.success(), "{options:?}");
        }
    });
}

#[test]
fn other_authorities_count_from_the_next_handshake_on() {
    let lab = Lab::new();
    on_each_driver(|driver| {
        std::fs::copy(lab.file("root.pem"), lab.file("trusted.pem")).unwrap();
        let acceptor = lab.acceptor(ClientAuth::Required);
        let server = TestServer::with(driver, Mirror, unhurried(), |builder| builder.tls(acceptor.clone()).http2(true));
        let mut open = connect(&lab, &server, b"");
        let ask = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        open.write_all(ask("/worker").as_bytes()).unwrap();
        assert!(answer(&mut open).ends_with(&joined(&lab.chain)));
        std::fs::copy(lab.file("stranger.pem"), lab.file("trusted.pem")).unwrap();
        acceptor.reload().unwrap();
        for options in VERSIONS {
            assert!(curl(&lab, &server, "eve", options, "/worker").status.success(), "{options:?}");
            assert!(!curl(&lab, &server, "ada", options, "/worker").status.success(), "{options:?}");
        }
        open.write_all(ask("/inline").as_bytes()).unwrap();
        assert!(answer(&mut open).ends_with(&joined(&lab.chain)), "a connection keeps what it has shown");
    });
}

#[test]
fn a_proxy_header_and_a_certificate_are_both_known() {
    let lab = Lab::new();
    on_each_driver(|driver| {
        let acceptor = lab.acceptor(ClientAuth::Optional);
        let server = TestServer::with(driver, Mirror, unhurried(), |builder| {
            builder.tls(acceptor).trusted_proxies(["127.0.0.1"]).proxy_protocol(true)
        });
        let mut client = connect(&lab, &server, b"PROXY TCP4 192.0.2.7 192.0.2.1 4000 443\r\n");
        for _ in 0..2 {
            client.write_all(b"GET /client HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            assert!(answer(&mut client).ends_with(&[b"\r\n\r\n192.0.2.7 ", &*joined(&lab.chain)].concat()));
        }
    });
}

/// A resumed session presents no certificate, and is still of who has begun it.
#[test]
fn a_resumed_session_is_still_of_its_client() {
    let lab = Lab::new();
    on_each_driver(|driver| {
        let acceptor = lab.acceptor(ClientAuth::Optional);
        let server = TestServer::with(driver, Mirror, unhurried(), |builder| builder.tls(acceptor));
        for version in ["-tls1_2", "-tls1_3"] {
            let session = lab.file("session");
            let file = session.to_str().unwrap();
            for (is_first, option, expected) in
                [(true, "-sess_out", "New, TLSv1"), (false, "-sess_in", "Reused, TLSv1")]
            {
                let (received, text) = s_client(&lab, &server, &[version, option, file], is_first);
                assert!(text.contains(expected), "{version}: {text}");
                let expected = joined(&lab.chain);
                assert!(received.windows(expected.len()).any(|part| part == expected), "{version}: {text}");
            }
        }
    });
}

/// What `openssl s_client` receives, and what it says.
fn s_client(lab: &Lab, server: &TestServer, options: &[&str], with_certificate: bool) -> (Vec<u8>, String) {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &server.address.to_string(), "-servername", "localhost", "-ign_eof"]);
    command.args(["-CAfile".as_ref(), certificate().paths()[0].as_os_str()]).args(options);
    if with_certificate {
        command.arg("-cert").arg(lab.file("ada.pem")).arg("-cert_chain").arg(lab.file("ada.pem"));
        command.arg("-key").arg(lab.file("ada.key"));
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let request = b"GET /worker HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    child.stdin.take().unwrap().write_all(request).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = text_of(&output.stdout) + &text_of(&output.stderr);
    (output.stdout, text)
}

/// A connection with the certificate, over HTTP/1.1, that begins with `header` outside of TLS.
fn connect(lab: &Lab, server: &TestServer, header: &[u8]) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate().der.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let chain = lab.chain.iter().map(|der| der.to_vec().into()).collect();
    let key = pem_key(&lab.file("ada.key"));
    let config = builder.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut socket = TcpStream::connect(server.address).unwrap();
    socket.set_read_timeout(Some(crate::harness::PATIENCE)).unwrap();
    socket.write_all(header).unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket)
}

fn pem_key(path: &Path) -> rustls::pki_types::PrivateKeyDer<'static> {
    rustls::pki_types::pem::PemObject::from_pem_file(path).unwrap()
}

/// One answer with a length, head included.
fn answer(client: &mut impl Read) -> Vec<u8> {
    let mut received = Vec::new();
    let mut byte = [0];
    while !received.ends_with(b"\r\n\r\n") {
        client.read_exact(&mut byte).unwrap();
        received.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&received).to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse().unwrap();
    let mut body = vec![0; length];
    client.read_exact(&mut body).unwrap();
    received.extend(body);
    received
}
