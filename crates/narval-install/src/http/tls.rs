//! TLS: rustls with Mozilla's certificates compiled in, so that it works in an empty container, or those of a file.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use super::HttpError;

/// Looked at in this order, as Nix does.
const VARIABLES: [&str; 2] = ["NIX_SSL_CERT_FILE", "SSL_CERT_FILE"];

/// Where the trusted certificates come from: a file named by the environment, which then replaces the compiled-in ones.
pub fn certificate_source() -> Option<(&'static str, String)> {
    VARIABLES
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()).map(|value| (*name, value)))
}

/// The configuration shared by all connections (and with it the session tickets).
pub(crate) fn config() -> Result<Arc<ClientConfig>, HttpError> {
    let failed = |reason: String| HttpError::Tls { host: "any server".to_owned(), reason };
    let mut roots = RootCertStore::empty();
    match certificate_source() {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some((variable, path)) => {
            let certificates = CertificateDer::pem_file_iter(&path)
                .map_err(|error| failed(format!("{variable}={path} cannot be read: {error}")))?;
            let (added, _) = roots.add_parsable_certificates(certificates.filter_map(Result::ok));
            if added == 0 {
                return Err(failed(format!("{variable}={path} holds no certificate")));
            }
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config =
        builder.map_err(|error| failed(error.to_string()))?.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
