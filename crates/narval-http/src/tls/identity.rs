use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use thiserror::Error;
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage};
use zeroize::Zeroizing;

/// The maximum size of a certificate, key or OCSP file, in bytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// An error in a TLS configuration. The message names the file, the problem and the remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {what} '{}': {source}", path.display())]
    Read {
        /// What the file is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file has invalid contents.
    #[error("{what} '{}' {problem}", path.display())]
    Content {
        /// What the file is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A private key does not match the certificate.
    #[error("the private key '{}' does not match the certificate '{}': specify the pair that was issued together", key.display(), cert.display())]
    KeyMismatch {
        /// The certificate file.
        cert: PathBuf,
        /// The key file.
        key: PathBuf,
    },
    /// An error of the TLS library.
    #[error("TLS: {0}")]
    Library(#[from] rustls::Error),
    /// No certificate was given.
    #[error("TLS needs at least one certificate and key")]
    NoIdentity,
}

/// A certificate chain and its private key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate chain, server certificate first.
    pub cert: PathBuf,
    /// The private key: PKCS #8, PKCS #1 or SEC 1.
    pub key: PathBuf,
    /// A DER file with an OCSP response to staple.
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
                "contains no PEM private key".into()
            },
        })
    }
}

/// A certificate chain and its private key in memory, in PEM format.
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

/// Parses a pair in memory.
pub(super) fn load_pair(pair: &PemPair, provider: &CryptoProvider) -> Result<CertifiedKey, TlsError> {
    let bad =
        |error: rustls_pki_types::pem::Error| rustls::Error::General(format!("certificate and key in memory: {error}"));
    let chain = CertificateDer::pem_slice_iter(pair.cert.as_bytes()).collect::<Result<Vec<_>, _>>().map_err(bad)?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(bad)?;
    Ok(CertifiedKey::from_der(chain, key, provider)?)
}

/// Reads all certificates of a PEM file.
pub(super) fn read_certificates(what: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |problem: String| TlsError::Content { what, path: path.to_owned(), problem };
    let chain = CertificateDer::pem_slice_iter(&read(what, path)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| bad(format!("is not PEM: {error}")))?;
    if chain.is_empty() {
        return Err(bad("contains no PEM certificate".into()));
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

/// Reports a certificate that is expired, or of a version that clients reject, as an error at the start.
fn check_leaf(path: &Path, chain: &[CertificateDer<'_>]) -> Result<(), TlsError> {
    let bad = |problem: String| TlsError::Content { what: "certificate", path: path.to_owned(), problem };
    let Some(leaf) = chain.first() else { return Ok(()) };
    let date = |time: UnixTime| httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(time.as_secs()));
    let leaf = EndEntityCert::try_from(leaf).map_err(|error| match error {
        webpki::Error::UnsupportedCertVersion => {
            bad(format!("is not of X.509 version 3, which TLS requires: {MAKE_VERSION_3}"))
        }
        error => bad(format!("cannot be parsed: {error}")),
    })?;
    // Without trust anchors this cannot succeed: webpki checks the validity before it looks for the issuer.
    let (now, usage) = (UnixTime::now(), KeyUsage::server_auth());
    match leaf.verify_for_usage(ALL_VERIFICATION_ALGS, &[], &[], now, usage, None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => {
            Err(bad(format!("expired on {}: renew it", date(not_after))))
        }
        Err(webpki::Error::CertNotValidYet { not_before, .. }) => {
            Err(bad(format!("is not valid before {}: check this machine's clock", date(not_before))))
        }
        // Whom a client trusts, and for what, is its own decision.
        _ => Ok(()),
    }
}

/// A certificate's first DNS name, if it has one, and when it ends, in seconds since 1970.
pub(super) fn end_of(key: &CertifiedKey) -> Option<(String, u64)> {
    let leaf = EndEntityCert::try_from(key.end_entity_cert().ok()?).ok()?;
    let name = leaf.valid_dns_names().next().unwrap_or("-").to_owned();
    // webpki does not tell, except of a certificate that has expired: at the end of time, all have.
    let then = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX));
    match leaf.verify_for_usage(ALL_VERIFICATION_ALGS, &[], &[], then, KeyUsage::server_auth(), None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => Some((name, not_after.as_secs())),
        _ => None,
    }
}

/// OpenSSL before 3.4 issues version 1 if a certificate has no extensions.
const MAKE_VERSION_3: &str = "have it issued again with its names in it (openssl x509 -req -extfile FILE, with 'subjectAltName=DNS:NAME' in FILE)";

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    memchr::memmem::find(haystack, needle).is_some()
}

/// Selects the certificate by the client's server name (SNI, RFC 6066 section 3). Like in nginx, the default is the
/// first.
#[derive(Debug)]
pub(super) struct ByName(pub(super) Vec<Arc<CertifiedKey>>);

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let usable = |key: &&Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
        if self.0.len() > 1
            && let Some(name) = hello.server_name().and_then(|name| ServerName::try_from(name).ok())
        {
            let named: Vec<_> = self.0.iter().filter(|key| is_for(key, &name)).collect();
            // With two certificates for one name (P-256 and RSA), the first that the client can verify.
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
        .and_then(|cert| EndEntityCert::try_from(cert).ok())
        .is_some_and(|cert| cert.verify_is_valid_for_subject_name(name).is_ok())
}
