use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use thiserror::Error;
use x509_parser::prelude::X509Version;
use zeroize::Zeroizing;

/// The largest certificate, key or OCSP file that is read.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// What is wrong with a TLS configuration. Each says what, with which file, and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file can't be read.
    #[error("cannot read {what} '{}': {source}", path.display())]
    Read {
        /// What the file is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{what} '{}' {problem}", path.display())]
    Content {
        /// What the file is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong, and what is wanted.
        problem: String,
    },
    /// A private key is not that of the certificate.
    #[error("the private key '{}' does not belong to the certificate '{}': give the pair that was issued together", key.display(), cert.display())]
    KeyMismatch {
        /// The file of the certificate.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// Something that only the TLS library knows about.
    #[error("TLS: {0}")]
    Library(#[from] rustls::Error),
    /// No certificate was given.
    #[error("TLS needs at least one certificate and key")]
    NoIdentity,
}

/// A certificate chain and its private key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, followed by those that lead to the root.
    pub cert: PathBuf,
    /// The private key: PKCS #8, PKCS #1 or SEC 1.
    pub key: PathBuf,
    /// A DER file with an OCSP response for the certificate, to be stapled.
    pub ocsp: Option<PathBuf>,
}

impl Identity {
    /// Reads and checks the files.
    pub(super) fn load(&self, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
        let chain = read_certificates("certificate", &self.cert)?;
        check_leaf(&self.cert, &chain)?;
        let key = self.load_key()?;
        let mut certified = CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                TlsError::KeyMismatch { cert: self.cert.clone(), key: self.key.clone() }
            }
            rustls::Error::InvalidCertificate(error) => TlsError::Content {
                what: "certificate",
                path: self.cert.clone(),
                problem: format!("can't be used: {error}"),
            },
            other => TlsError::Content {
                what: "private key",
                path: self.key.clone(),
                problem: format!("can't be used: {other}"),
            },
        })?;
        if let Some(path) = &self.ocsp {
            certified.ocsp = Some(read("OCSP response", path)?);
        }
        Ok(certified)
    }

    fn load_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let pem = Zeroizing::new(read("private key", &self.key)?);
        PrivateKeyDer::from_pem_slice(&pem).map_err(|_| TlsError::Content {
            what: "private key",
            path: self.key.clone(),
            problem: if contains(&pem, b"BEGIN ENCRYPTED PRIVATE KEY") {
                "is encrypted: remove its passphrase (openssl pkey -in KEY -out NEW)".into()
            } else {
                "holds no private key in PEM form".into()
            },
        })
    }
}

/// A certificate chain and its private key in PEM form, in memory.
#[derive(Clone)]
pub struct PemPair {
    /// The certificate chain, the server's certificate first.
    pub cert: String,
    /// The private key.
    pub key: Zeroizing<String>,
}

impl std::fmt::Debug for PemPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PemPair(..)")
    }
}

/// Reads a pair that is in memory.
pub(super) fn load_pair(pair: &PemPair, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
    let bad = |error: rustls_pki_types::pem::Error| rustls::Error::General(format!("a pair in memory: {error}"));
    let chain = CertificateDer::pem_slice_iter(pair.cert.as_bytes()).collect::<Result<Vec<_>, _>>().map_err(bad)?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(bad)?;
    Ok(CertifiedKey::from_der(chain, key, provider)?)
}

/// All certificates of a PEM file.
pub(super) fn read_certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |problem: String| TlsError::Content { what, path: path.to_owned(), problem };
    let chain = CertificateDer::pem_slice_iter(&read(what, path)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| bad(format!("is not PEM: {error}")))?;
    if chain.is_empty() {
        return Err(bad("holds no certificate in PEM form".into()));
    }
    Ok(chain)
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read { what, path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, FILE_BYTES_MAX + 1), &mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let problem = format!("is larger than {FILE_BYTES_MAX} bytes");
        return Err(TlsError::Content { what, path: path.to_owned(), problem });
    }
    Ok(bytes)
}

/// An expired certificate, or one of a version that clients refuse, is an error at the start, not a riddle for each client.
fn check_leaf(path: &Path, chain: &[CertificateDer<'_>]) -> Result<(), TlsError> {
    let bad = |problem: String| TlsError::Content { what: "certificate", path: path.to_owned(), problem };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let Some(leaf) = chain.first() else { return Ok(()) };
    let (_, leaf) =
        x509_parser::parse_x509_certificate(leaf).map_err(|error| bad(format!("can't be parsed: {error}")))?;
    if leaf.version() != X509Version::V3 {
        let problem = format!("is of X.509 version {}, and TLS wants 3: {MAKE_VERSION_3}", leaf.version().0 + 1);
        return Err(bad(problem));
    }
    let validity = leaf.validity();
    if validity.not_after.timestamp() < now {
        return Err(bad(format!("expired on {}: renew it", validity.not_after)));
    }
    if validity.not_before.timestamp() > now {
        return Err(bad(format!("is not valid before {}: check this machine's clock", validity.not_before)));
    }
    Ok(())
}

/// OpenSSL before 3.4 makes version 1 where a certificate gets no extension.
const MAKE_VERSION_3: &str = "have it issued again with its names in it (openssl x509 -req -extfile FILE, with 'subjectAltName=DNS:NAME' in FILE)";

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    memchr::memmem::find(haystack, needle).is_some()
}

/// Chooses by the name the client asks for (SNI, RFC 6066 section 3); the first identity where no name fits, as nginx does.
#[derive(Debug)]
pub(super) struct ByName(pub(super) Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let usable = |key: &&Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
        if self.0.len() > 1
            && let Some(name) = hello.server_name().and_then(|name| ServerName::try_from(name).ok())
        {
            let named: Vec<_> = self.0.iter().filter(|key| is_for(key, &name)).collect();
            // Two certificates for one name (P-256 and RSA): the first that the client can check.
            if let Some(key) = named.iter().copied().find(usable).or(named.first().copied()) {
                return Some(key.clone());
            }
        }
        self.0.iter().find(usable).or(self.0.first()).cloned()
    }
}

fn is_for(key: &CertifiedKey, name: &ServerName<'_>) -> bool {
    key.end_entity_cert()
        .ok()
        .and_then(|cert| webpki::EndEntityCert::try_from(cert).ok())
        .is_some_and(|cert| cert.verify_is_valid_for_subject_name(name).is_ok())
}
