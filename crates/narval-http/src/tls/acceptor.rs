use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ProducesTickets, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::CertificateDer;

use super::identity::{ByName, end_of, load_pair, read_certificates};
use super::{Identity, PemPair, TlsError, TlsSession};

/// Whether clients present certificates, and of which authorities: a PEM file of those that are trusted, and no others.
///
/// A handler learns who the client is from [`Request::peer_certificates`](crate::Request::peer_certificates).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientAuth {
    /// Clients are not asked for a certificate.
    #[default]
    None,
    /// Clients are asked for a certificate, and served without one too. A certificate that cannot be verified ends the handshake.
    Optional(PathBuf),
    /// Clients without a certificate that can be verified do not get through the handshake.
    Required(PathBuf),
}

impl ClientAuth {
    /// The file of the authorities.
    fn file(&self) -> Option<&PathBuf> {
        match self {
            Self::None => None,
            Self::Optional(file) | Self::Required(file) => Some(file),
        }
    }

    fn is_required(&self) -> bool {
        matches!(self, Self::Required(_))
    }
}

/// The TLS configuration of a server.
#[derive(Clone, Debug, Default)]
pub struct TlsConfig {
    /// Certificates and keys. The client's server name (SNI) selects one; the first is the default.
    pub identities: Vec<Identity>,
    /// Pairs in memory, such as a generated self-signed one. They precede `identities`.
    pub pairs: Vec<PemPair>,
    /// Whether clients present certificates.
    pub client_auth: ClientAuth,
    /// Whether to prepare connections for kTLS.
    pub ktls: bool,
    /// Offer HTTP/1.1 alone, even where the server [would speak HTTP/2](crate::Builder::http2).
    pub http1_only: bool,
}

/// Accepts TLS connections. Certificates can be reloaded while it is in use; existing connections keep theirs.
#[derive(Debug)]
pub struct TlsAcceptor {
    current: ArcSwap<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    config: TlsConfig,
    rustls: Arc<ServerConfig>,
    /// The certificate authorities for client certificates, if clients are asked for one.
    authorities: Option<Vec<CertificateDer<'static>>>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    /// Survives reloads, so that sessions can be resumed across them, as long as `authorities`, and whether a certificate is required,
    /// stay the same: a resumed session presents no certificate. Its keys rotate by themselves.
    tickets: Arc<dyn ProducesTickets>,
    /// Modification times of all files, in the order of [`TlsConfig::files`].
    modified: Vec<Option<SystemTime>>,
    ends: Vec<(String, u64)>,
}

impl TlsConfig {
    /// All files of the configuration, in a fixed order.
    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.identities
            .iter()
            .flat_map(|identity| [Some(&identity.cert), Some(&identity.key), identity.ocsp.as_ref()])
            .chain([self.client_auth.file()])
            .flatten()
    }

    fn modified(&self) -> Vec<Option<SystemTime>> {
        // A file that cannot be examined is a state of its own: loading it reports the error.
        self.files().map(|file| file.metadata().and_then(|meta| meta.modified()).ok()).collect()
    }
}

impl TlsAcceptor {
    /// Loads the files of the configuration.
    ///
    /// # Errors
    /// A file is missing, unreadable, expired or invalid.
    pub fn new(config: TlsConfig) -> Result<Self, TlsError> {
        Ok(Self { current: ArcSwap::from_pointee(load(config, None)?) })
    }

    /// Reloads the files. On an error the previous ones stay in use.
    ///
    /// # Errors
    /// See [`TlsAcceptor::new`].
    pub fn reload(&self) -> Result<(), TlsError> {
        self.replace(self.current.load().config.clone())
    }

    /// Replaces the configuration and loads its files. On an error the previous one stays in use. If [`ClientAuth`]
    /// or the authorities in its file differ, sessions of before are not resumed.
    ///
    /// # Errors
    /// See [`TlsAcceptor::new`].
    pub fn replace(&self, config: TlsConfig) -> Result<(), TlsError> {
        let loaded = load(config, Some(&self.current.load()))?;
        self.current.store(Arc::new(loaded));
        Ok(())
    }

    /// Reloads the files if one of them has changed, and returns whether it did.
    ///
    /// # Errors
    /// See [`TlsAcceptor::new`].
    pub fn reload_if_changed(&self) -> Result<bool, TlsError> {
        let current = self.current.load();
        if current.config.modified() == current.modified {
            return Ok(false);
        }
        self.reload().map(|()| true)
    }

    /// For each certificate in use, its first DNS name (`-` if it has none) and when it ends, in seconds since 1970.
    pub fn ends(&self) -> Vec<(String, u64)> {
        self.current.load().ends.clone()
    }

    /// Starts the TLS session of an accepted connection, offering only HTTP/1.1.
    ///
    /// # Errors
    /// The TLS library rejects its configuration.
    pub fn accept(&self) -> Result<TlsSession, rustls::Error> {
        self.accept_with(false)
    }

    /// Like [`accept`](Self::accept); `http2` also offers HTTP/2.
    pub(crate) fn accept_with(&self, http2: bool) -> Result<TlsSession, rustls::Error> {
        let current = self.current.load();
        TlsSession::new(
            &current.rustls,
            current.config.ktls,
            current.verifier.as_ref(),
            http2 && !current.config.http1_only,
        )
    }
}

fn load(config: TlsConfig, before: Option<&Loaded>) -> Result<Loaded, TlsError> {
    // Taken before the files are read, so that a file that changes meanwhile is reloaded.
    let modified = config.modified();
    if config.identities.is_empty() && config.pairs.is_empty() {
        return Err(TlsError::NoIdentity);
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let pairs = config.pairs.iter().map(|pair| load_pair(pair, &provider));
    let files = config.identities.iter().map(|identity| identity.load(&provider));
    let keys = pairs.chain(files).map(|key| key.map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let authorities = config.client_auth.file().map(|path| read_certificates(AUTHORITY, path)).transpose()?;
    let verifier =
        authorities.as_deref().map(|found| client_verifier(&config.client_auth, found, provider)).transpose()?;
    let builder = match &verifier {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
    };
    let is_required = config.client_auth.is_required();
    let tickets = match before {
        Some(before) if before.authorities == authorities && before.config.client_auth.is_required() == is_required => {
            before.tickets.clone()
        }
        _ => aws_lc_rs::Ticketer::new()?,
    };
    let ends = keys.iter().filter_map(|key| end_of(key)).collect();
    let mut rustls = builder.with_cert_resolver(Arc::new(ByName(keys)));
    rustls.alpn_protocols = vec![b"http/1.1".to_vec()];
    // All suites are secure, but a client's order may be arbitrary; ours starts with the fastest here.
    rustls.ignore_client_order = true;
    rustls.ticketer = tickets.clone();
    // Each ticket is a record of about 250 bytes, and a client uses one for its next connection.
    rustls.send_tls13_tickets = 1;
    Ok(Loaded { config, rustls: Arc::new(rustls), authorities, verifier, tickets, modified, ends })
}

const AUTHORITY: &str = "client certificate authority";

fn client_verifier(
    auth: &ClientAuth,
    authorities: &[CertificateDer<'static>],
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let bad = |error: String| TlsError::Content {
        what: AUTHORITY,
        path: auth.file().cloned().unwrap_or_default(),
        problem: format!("can't be used: {error}"),
    };
    let mut roots = RootCertStore::empty();
    for cert in authorities {
        roots.add(cert.clone()).map_err(|error| bad(error.to_string()))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let verifier = if auth.is_required() { verifier } else { verifier.allow_unauthenticated() };
    verifier.build().map_err(|error| bad(error.to_string()))
}
