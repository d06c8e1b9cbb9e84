//! TLS of the measuring client, and the certificate that all servers of a run share.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use rustix::net::{RecvFlags, recv};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::kx_group::{SECP256R1, X25519};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, SupportedProtocolVersion};

use crate::response::ResponseReader;
use crate::{Context, Result, failure};

/// A P-256 key and a self-signed certificate, as files.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// PEM.
    pub cert: PathBuf,
    /// PEM.
    pub key: PathBuf,
}

impl Certificate {
    /// Opens the files in the work folder, or creates them with `openssl`.
    ///
    /// # Errors
    /// If `openssl` is not installed.
    pub fn prepare(work: &Path) -> Result<Certificate> {
        let made = Certificate { cert: work.join("cert.pem"), key: work.join("key.pem") };
        if made.cert.exists() && made.key.exists() {
            return Ok(made);
        }
        let mut openssl = Command::new("openssl");
        openssl.args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "3650",
        ]);
        openssl.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout"]);
        let done = openssl.arg(&made.key).arg("-out").arg(&made.cert).stderr(Stdio::piped()).output();
        let done = done.context(|| "cannot run openssl".to_owned())?;
        if !done.status.success() {
            // half a pair would be mistaken for a whole one
            let _ = fs::remove_file(&made.cert);
            return Err(failure!("openssl req: {}", String::from_utf8_lossy(&done.stderr).trim()));
        }
        Ok(made)
    }
}

/// The client's algorithms: X25519 first, so that every server does the same work (P-256 is listed for its
/// certificates, RFC 8422 section 5.1.1); cipher suites in rustls' order.
///
/// # Errors
/// Those of the library.
pub fn client_config(
    versions: &[&'static SupportedProtocolVersion],
    resumption: Resumption,
) -> Result<Arc<ClientConfig>> {
    let provider = CryptoProvider { kx_groups: vec![X25519, SECP256R1], ..aws_lc_rs::default_provider() };
    let provider = Arc::new(provider);
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(versions);
    let builder = builder.context(|| "TLS".to_owned())?;
    let mut config =
        builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))).with_no_client_auth();
    config.resumption = resumption;
    Ok(Arc::new(config))
}

/// The client's side of a connection to a server of a run.
///
/// # Errors
/// Those of the library.
pub fn client(config: &Arc<ClientConfig>) -> Result<ClientConnection> {
    let name = ServerName::try_from("localhost").context(|| "localhost".to_owned())?;
    ClientConnection::new(config.clone(), name).context(|| "TLS".to_owned())
}

/// Accepts every certificate: the servers are trusted already. The handshake's signature is verified.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A connection's transport: plain or TLS.
#[derive(Debug)]
pub struct TlsClient {
    connection: ClientConnection,
}

impl TlsClient {
    /// Performs the handshake on a blocking socket.
    ///
    /// # Errors
    /// If it fails.
    pub fn open(mut stream: &TcpStream) -> Result<TlsClient> {
        static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
        let config = match CONFIG.get() {
            Some(config) => config,
            None => {
                let made = client_config(rustls::ALL_VERSIONS, Resumption::disabled())?;
                CONFIG.get_or_init(|| made)
            }
        };
        let mut connection = client(config)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).context(|| "TLS handshake".to_owned())?;
        }
        Ok(TlsClient { connection })
    }

    /// Sends a request. It fits into an empty socket buffer.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn send(&mut self, stream: &mut TcpStream, request: &[u8]) -> io::Result<()> {
        self.connection.writer().write_all(request)?;
        while self.connection.wants_write() {
            self.connection.write_tls(stream)?;
        }
        Ok(())
    }

    /// Receives once, feeds the response reader, and returns whether the response is complete.
    ///
    /// # Errors
    /// Those of the socket and of TLS, and a malformed response.
    pub fn read(&mut self, stream: &TcpStream, buffer: &mut [u8], response: &mut ResponseReader) -> io::Result<bool> {
        let count = match recv(stream, &mut *buffer, RecvFlags::empty()) {
            Err(rustix::io::Errno::AGAIN) => return Ok(false),
            result => result?.0,
        };
        if count == 0 {
            let whole = response.complete_at_end_of_stream();
            return if whole { Ok(true) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        let mut received = buffer.get(..count).unwrap_or_default();
        let mut plaintext = [0; 16 * 1024];
        while !received.is_empty() {
            self.connection.read_tls(&mut received)?;
            let state = self.connection.process_new_packets().map_err(io::Error::other)?;
            let mut left = state.plaintext_bytes_to_read();
            while left > 0 {
                let got = self.connection.reader().read(&mut plaintext)?;
                response.feed(plaintext.get(..got).unwrap_or_default(), None).map_err(io::Error::other)?;
                left = left.saturating_sub(got.max(1));
            }
        }
        Ok(response.done())
    }
}
