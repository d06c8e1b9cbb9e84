//! TLS: rustls with the certificates that Nix would trust. Mozilla's are compiled in for systems without any, such as an empty
//! container.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use untrusted::{EndOfInput, Input, Reader};
use webpki::{ALL_VERIFICATION_ALGS, EndEntityCert, KeyUsage};

use crate::error::HttpError;

/// In order of precedence, as in Nix.
const VARIABLES: [&str; 2] = ["NIX_SSL_CERT_FILE", "SSL_CERT_FILE"];
/// Names folders with certificates, separated by colons (OpenSSL).
const FOLDERS: &str = "SSL_CERT_DIR";
/// Where systems have their certificates: the first one that exists is used. The first two are Nix's (`libstore/globals.cc`).
const OF_SYSTEM: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/nix/var/nix/profiles/default/etc/ssl/certs/ca-bundle.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// The maximum number of files read from a folder of certificates.
const FOLDER_FILES_MAX: usize = 4096;

/// Where the trusted certificates come from. `of_nix`: the file that Nix's settings name, which precedes the environment, as in Nix.
/// Empty for those that are compiled in.
fn certificate_sources(
    of_nix: Option<&Path>,
    variable: &dyn Fn(&str) -> Option<OsString>,
    of_system: &[&str],
) -> Vec<(&'static str, PathBuf)> {
    let set = |name: &'static str| variable(name).filter(|value| !value.is_empty()).map(|value| (name, value));
    let named = of_nix.map(|file| ("ssl-cert-file", file.to_owned()));
    let named = named.or_else(|| VARIABLES.into_iter().find_map(set).map(|(name, value)| (name, value.into())));
    if let Some(named) = named {
        return vec![named];
    }
    let system = of_system.iter().map(Path::new).find(|path| path.exists());
    let folders = set(FOLDERS).map(|(name, list)| std::env::split_paths(&list).map(|folder| (name, folder)).collect());
    let folders: Vec<_> = folders.unwrap_or_default();
    system.map(|path| ("the system's", path.to_owned())).into_iter().chain(folders).collect()
}

/// The certificates for verifying servers.
#[derive(Debug)]
pub struct TrustedCertificates {
    /// The files and folders they were read from, each with the variable or setting that names it. Empty for Mozilla's certificates,
    /// which are compiled in.
    pub sources: Vec<(&'static str, PathBuf)>,
    /// The number of usable certificates.
    pub usable: usize,
    /// The number of usable certificates that are known to have expired. Compiled-in ones are not checked.
    pub expired: usize,
    /// The number of invalid or unsupported certificates in the files.
    pub unusable: usize,
    roots: RootCertStore,
    /// The certificates of the files.
    listed: Vec<CertificateDer<'static>>,
}

impl TrustedCertificates {
    /// Loads them, as every client does before its first HTTPS connection. `of_nix`: the file that Nix's settings name.
    ///
    /// # Errors
    /// A file cannot be read, or contains no usable certificate.
    pub fn load(of_nix: Option<&Path>) -> Result<Self, HttpError> {
        let of_process = |name: &str| std::env::var_os(name);
        Self::from(certificate_sources(of_nix, &of_process, &OF_SYSTEM))
    }

    fn from(sources: Vec<(&'static str, PathBuf)>) -> Result<Self, HttpError> {
        let mut trusted =
            Self { sources, usable: 0, expired: 0, unusable: 0, roots: RootCertStore::empty(), listed: Vec::new() };
        for (name, path) in trusted.sources.clone() {
            match name {
                FOLDERS => trusted.read_folder(&path)?,
                _ => trusted.read(name, &path)?,
            }
        }
        let (added, ignored) = trusted.roots.add_parsable_certificates(trusted.listed.iter().cloned());
        trusted.unusable += ignored;
        match trusted.sources.as_slice() {
            [] => trusted.roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
            [(name, path), ..] if added == 0 => {
                return Err(HttpError::Certificates(format!("{name}={} contains no certificate", path.display())));
            }
            _ => {}
        }
        let is_expired = |certificate: &&CertificateDer<'_>| {
            matches!(check_use(certificate, UnixTime::now()), Err(CertificateError::ExpiredContext { .. }))
        };
        trusted.expired = trusted.listed.iter().filter(is_expired).count();
        trusted.usable = trusted.roots.len();
        Ok(trusted)
    }

    /// Reads all files of a folder. Those without a certificate are ignored, as OpenSSL does, and so is a folder that does not exist.
    fn read_folder(&mut self, folder: &Path) -> Result<(), HttpError> {
        let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).take(FOLDER_FILES_MAX) {
            self.read(FOLDERS, &path)?;
        }
        Ok(())
    }

    fn read(&mut self, name: &str, path: &Path) -> Result<(), HttpError> {
        let unreadable =
            |error: pem::Error| HttpError::Certificates(format!("{name}={} cannot be read: {error}", path.display()));
        for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
            match certificate {
                Ok(certificate) => self.listed.push(certificate),
                // A file that cannot be read would return the same error forever.
                Err(error @ pem::Error::Io(_)) => return Err(unreadable(error)),
                Err(_) => self.unusable += 1,
            }
        }
        Ok(())
    }
}

fn failed(reason: String) -> HttpError {
    HttpError::Tls { host: "any server".to_owned(), reason }
}

/// The configuration shared by all connections (and with it the session tickets).
pub(crate) fn config(of_nix: Option<&Path>) -> Result<Arc<ClientConfig>, HttpError> {
    tls_config(&[b"http/1.1"], of_nix).map(Arc::new)
}

/// How servers are verified, for clients of another protocol than HTTP: against the same certificates. `protocols` are
/// those that are offered (ALPN), the best first. `of_nix`: the file with trusted certificates that Nix's settings name.
///
/// # Errors
/// As [`TrustedCertificates::load`].
pub fn tls_config(protocols: &[&[u8]], of_nix: Option<&Path>) -> Result<ClientConfig, HttpError> {
    let TrustedCertificates { roots, listed, .. } = TrustedCertificates::load(of_nix)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
    let usual = verifier.map_err(|error| failed(error.to_string()))?;
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| failed(error.to_string()))?;
    let verifier = Arc::new(ListedVerifier { usual, listed });
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

/// The usual verification, but a server whose own certificate is listed as trusted needs no other issuer. Such a
/// self-signed certificate is usually marked as a CA, and webpki rejects it for a server (`CaUsedAsEndEntity`);
/// OpenSSL, and with it Nix, accepts it.
#[derive(Debug)]
struct ListedVerifier {
    usual: Arc<WebPkiServerVerifier>,
    /// The certificates of the files.
    listed: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for ListedVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.usual.verify_server_cert(certificate, intermediates, name, ocsp_response, now);
        if verified.is_ok() || !self.listed.iter().any(|listed| listed == certificate) {
            return verified;
        }
        check_use(certificate, now)?;
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

/// Checks that a certificate is valid now, and for a server.
fn check_use(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), CertificateError> {
    let parsed = EndEntityCert::try_from(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let usage = KeyUsage::server_auth();
    // Without trust anchors this cannot succeed: only webpki's checks before it looks for the issuer matter.
    match parsed.verify_for_usage(ALL_VERIFICATION_ALGS, &[], &[], now, usage, None, None) {
        Ok(_) | Err(webpki::Error::UnknownIssuer) => Ok(()),
        Err(webpki::Error::CertNotValidYet { time, not_before }) => {
            Err(CertificateError::NotValidYetContext { time, not_before })
        }
        Err(webpki::Error::CertExpired { time, not_after }) => {
            Err(CertificateError::ExpiredContext { time, not_after })
        }
        Err(webpki::Error::RequiredEkuNotFoundContext(_)) => Err(CertificateError::InvalidPurpose),
        // webpki checks the validity before this, and the purpose after it.
        Err(webpki::Error::CaUsedAsEndEntity) => match is_for_servers(certificate) {
            Ok(true) => Ok(()),
            Ok(false) => Err(CertificateError::InvalidPurpose),
            Err(EndOfInput) => Err(CertificateError::BadEncoding),
        },
        Err(_) => Err(CertificateError::BadEncoding),
    }
}

/// Why a handshake failed, and what to do about it.
pub(crate) fn reason(error: &io::Error) -> String {
    use rustls::Error::InvalidCertificate;
    match error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) {
        Some(InvalidCertificate(CertificateError::ExpiredContext { time, not_after })) => format!(
            "a certificate that it presented expired on {} (the clock here says {}): its operator must renew it",
            date(*not_after),
            date(*time)
        ),
        Some(InvalidCertificate(CertificateError::NotValidYetContext { time, not_before })) => format!(
            "a certificate that it presented is not valid before {}, and the clock here says {}: check the clock",
            date(*not_before),
            date(*time)
        ),
        Some(InvalidCertificate(CertificateError::UnknownIssuer)) => {
            format!("{error} (for a private CA, set SSL_CERT_FILE)")
        }
        _ => error.to_string(),
    }
}

/// `01 Jan 2020 00:00:00 GMT`
fn date(time: UnixTime) -> String {
    /// The last second of the year 9999, as far as httpdate goes.
    const LAST: u64 = 253_402_300_799;
    let date = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + Duration::from_secs(time.as_secs().min(LAST)));
    // Without the day of the week.
    date.split_once(", ").map_or(date.clone(), |(_, date)| date.to_owned())
}

/// When a certificate expires; `None` if it cannot be read.
pub(crate) fn valid_until(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    // webpki only tells this of a certificate that has expired, as every certificate will have by then (RFC 5280 has
    // no year after 9999).
    let late = UnixTime::since_unix_epoch(Duration::from_secs(1 << 40));
    let (parsed, usage) = (EndEntityCert::try_from(certificate).ok()?, KeyUsage::server_auth());
    match parsed.verify_for_usage(ALL_VERIFICATION_ALGS, &[], &[], late, usage, None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => {
            SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(not_after.as_secs()))
        }
        _ => None,
    }
}

/// Whether a certificate's extended key usage allows servers, or it has none (RFC 5280, sections 4.1 and 4.2.1.12).
fn is_for_servers(certificate: &[u8]) -> Result<bool, EndOfInput> {
    const EXTENSIONS: u8 = 0xa3;
    const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
    const ANY: &[u8] = &[0x55, 0x1d, 0x25, 0x00];
    const SERVER_AUTH: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];
    let certificate = element(&mut Reader::new(Input::from(certificate)))?.1;
    let mut fields = Reader::new(element(&mut Reader::new(certificate))?.1);
    while !fields.at_end() {
        let (tag, field) = element(&mut fields)?;
        if tag != EXTENSIONS {
            continue;
        }
        let mut extensions = Reader::new(element(&mut Reader::new(field))?.1);
        while !extensions.at_end() {
            let mut extension = Reader::new(element(&mut extensions)?.1);
            if element(&mut extension)?.1.as_slice_less_safe() != EXTENDED_KEY_USAGE {
                continue;
            }
            // The value is the last field; the `critical` flag may precede it.
            let mut value = element(&mut extension)?.1;
            while !extension.at_end() {
                value = element(&mut extension)?.1;
            }
            let mut purposes = Reader::new(element(&mut Reader::new(value))?.1);
            let mut is_allowed = false;
            while !purposes.at_end() {
                is_allowed |= [ANY, SERVER_AUTH].contains(&element(&mut purposes)?.1.as_slice_less_safe());
            }
            return Ok(is_allowed);
        }
    }
    Ok(true)
}

/// The next DER element: its tag and its contents.
fn element<'a>(der: &mut Reader<'a>) -> Result<(u8, Input<'a>), EndOfInput> {
    let tag = der.read_byte()?;
    let first = der.read_byte()?;
    let mut len = usize::from(first);
    if first >= 0x80 {
        // No certificate needs more than four bytes of length.
        let bytes = if first > 0x84 { return Err(EndOfInput) } else { first & 0x7f };
        len = 0;
        for _ in 0..bytes {
            len = len << 8 | usize::from(der.read_byte()?);
        }
    }
    Ok((tag, der.read_bytes(len)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, date_time_ymd};

    fn verify(change: impl Fn(&mut CertificateParams), name: &str) -> Result<ServerCertVerified, rustls::Error> {
        let mut params = CertificateParams::new(vec!["cache.example.org".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone();
        let other = CertificateParams::new(vec!["cache.example.org".to_owned()]).unwrap();
        let other = other.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let name = ServerName::try_from(name).unwrap();
        let check = |verifier: &ListedVerifier, certificate: &CertificateDer<'_>| {
            verifier.verify_server_cert(certificate, &[], &name, &[], UnixTime::now())
        };
        let verifier = ListedVerifier { usual: Arc::clone(&usual), listed: vec![certificate.clone()] };
        assert!(check(&verifier, &other).is_err(), "only what is listed is trusted");
        assert!(check(&ListedVerifier { usual, listed: Vec::new() }, &certificate).is_err(), "not without the list");
        check(&verifier, &certificate)
    }

    #[test]
    fn the_same_certificates_as_nix() {
        let folder = tempfile::tempdir().unwrap();
        let bundle = folder.path().join("bundle.crt");
        std::fs::write(&bundle, "").unwrap();
        let system = ["/none/such.crt", bundle.to_str().unwrap()];
        let names = |of_nix: Option<&str>, set: &[(&str, &str)], system: &[&str]| {
            let variable = |name: &str| set.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).into());
            let found = certificate_sources(of_nix.map(Path::new), &variable, system);
            found.into_iter().map(|(_, path)| path.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let (nix, usual, dir) = (("NIX_SSL_CERT_FILE", "/n"), ("SSL_CERT_FILE", "/s"), ("SSL_CERT_DIR", "/d:/e"));
        assert_eq!(names(Some("/c"), &[nix, usual, dir], &system), ["/c"]);
        assert_eq!(names(None, &[usual, nix, dir], &system), ["/n"]);
        assert_eq!(names(None, &[usual, ("NIX_SSL_CERT_FILE", "")], &system), ["/s"]);
        assert_eq!(names(None, &[dir], &system), [system[1], "/d", "/e"]);
        assert_eq!(names(None, &[], &system), [system[1]]);
        assert_eq!(names(None, &[], &[]), [""; 0], "those that are compiled in");
        assert!(TrustedCertificates::from(Vec::new()).unwrap().usable > 50);
        let message = |name, path| TrustedCertificates::from(vec![(name, path)]).unwrap_err().to_string();
        assert!(
            message("NIX_SSL_CERT_FILE", "/none/such.crt".into())
                .starts_with("NIX_SSL_CERT_FILE=/none/such.crt cannot")
        );
        assert!(message("the system's", bundle).ends_with("bundle.crt contains no certificate"));
    }

    #[test]
    fn a_listed_self_signed_certificate_is_still_checked() {
        verify(|_| {}, "cache.example.org").unwrap();
        verify(|_| {}, "other.example.org").unwrap_err();
        let expired = verify(|params| params.not_after = date_time_ymd(2020, 1, 1), "cache.example.org").unwrap_err();
        let message = reason(&io::Error::new(io::ErrorKind::InvalidData, expired));
        let expected = "a certificate that it presented expired on 01 Jan 2020 00:00:00 GMT (the clock here says ";
        assert!(message.starts_with(expected) && message.ends_with("): its operator must renew it"), "{message}");
        let early = verify(|params| params.not_before = date_time_ymd(4000, 1, 1), "cache.example.org").unwrap_err();
        let message = reason(&io::Error::new(io::ErrorKind::InvalidData, early));
        let expected =
            "a certificate that it presented is not valid before 01 Jan 4000 00:00:00 GMT, and the clock here says ";
        assert!(message.starts_with(expected) && message.ends_with(": check the clock"), "{message}");
        let client = |params: &mut CertificateParams| {
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        };
        assert_eq!(verify(client, "cache.example.org").unwrap_err(), CertificateError::InvalidPurpose.into());
        let leaf = |params: &mut CertificateParams| {
            (params.is_ca, params.extended_key_usages) = (IsCa::NoCa, vec![ExtendedKeyUsagePurpose::ClientAuth]);
        };
        verify(leaf, "cache.example.org").unwrap_err();
        for purpose in [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::Any] {
            let both = |params: &mut CertificateParams| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, purpose.clone()];
            };
            verify(both, "cache.example.org").unwrap();
        }
    }
}
