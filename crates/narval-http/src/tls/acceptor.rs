use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rustls::crypto::aws_lc_rs;
use rustls::server::{ProducesTickets, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use super::identity::{ByName, load_pair, read_certificates};
use super::{Identity, PemPair, TlsError, TlsSession};

/// What to offer to TLS clients.
#[derive(Clone, Debug, Default)]
pub struct TlsConfig {
    /// Certificates and keys; the client's server name chooses, the first is for everybody else.
    pub identities: Vec<Identity>,
    /// Pairs that are in no file, such as one that was just made for a first try; they come before `identities`.
    pub pairs: Vec<PemPair>,
    /// PEM file of the authorities whose client certificates are accepted; with it, a client must have one.
    pub client_ca: Option<PathBuf>,
    /// Prepare connections so that their keys can be handed to the kernel.
    pub ktls: bool,
    /// Offer HTTP/1.1 alone, even where the server [would speak HTTP/2](crate::Builder::http2).
    pub http1_only: bool,
}

/// Accepts TLS connections. The certificates can be loaded anew while it is in use: connections that are there keep theirs.
#[derive(Debug)]
pub struct TlsAcceptor {
    /// Outlives reloads, so that sessions do: its keys rotate by themselves.
    tickets: Arc<dyn ProducesTickets>,
    current: ArcSwap<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    config: TlsConfig,
    rustls: Arc<ServerConfig>,
    /// Modification times of all files, in the order of [`TlsConfig::files`].
    modified: Vec<Option<SystemTime>>,
}

impl TlsConfig {
    /// All files that were named, in a fixed order.
    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.identities
            .iter()
            .flat_map(|identity| [Some(&identity.cert), Some(&identity.key), identity.ocsp.as_ref()])
            .chain([self.client_ca.as_ref()])
            .flatten()
    }

    fn modified(&self) -> Vec<Option<SystemTime>> {
        // A file that can't be looked at counts as one more state: loading says what is wrong with it.
        self.files().map(|file| file.metadata().and_then(|meta| meta.modified()).ok()).collect()
    }
}

impl TlsAcceptor {
    /// Loads what the configuration names.
    ///
    /// # Errors
    /// A file that is missing, unreadable, expired, or not what it should be.
    pub fn new(config: TlsConfig) -> Result<Self, TlsError> {
        let tickets = aws_lc_rs::Ticketer::new()?;
        let current = ArcSwap::from_pointee(load(config, &tickets)?);
        Ok(Self { tickets, current })
    }

    /// Loads the files again. On an error what was loaded before stays in use.
    ///
    /// # Errors
    /// As [`TlsAcceptor::new`].
    pub fn reload(&self) -> Result<(), TlsError> {
        self.replace(self.current.load().config.clone())
    }

    /// Loads what another configuration names, in place of what was loaded before. On an error that stays in use.
    ///
    /// # Errors
    /// As [`TlsAcceptor::new`].
    pub fn replace(&self, config: TlsConfig) -> Result<(), TlsError> {
        self.current.store(Arc::new(load(config, &self.tickets)?));
        Ok(())
    }

    /// Loads the files again if one of them has changed since they were loaded; says whether it did.
    ///
    /// # Errors
    /// As [`TlsAcceptor::new`].
    pub fn reload_if_changed(&self) -> Result<bool, TlsError> {
        let current = self.current.load();
        if current.config.modified() == current.modified {
            return Ok(false);
        }
        self.reload().map(|()| true)
    }

    /// The TLS side of a connection that was just accepted, which offers HTTP/1.1 alone.
    ///
    /// # Errors
    /// Only what the TLS library finds wrong with its configuration.
    pub fn accept(&self) -> Result<TlsSession, rustls::Error> {
        self.accept_with(false)
    }

    /// The same; `http2`: HTTP/2 is offered, too.
    pub(crate) fn accept_with(&self, http2: bool) -> Result<TlsSession, rustls::Error> {
        let current = self.current.load();
        TlsSession::new(
            &current.rustls,
            current.config.ktls,
            current.config.client_ca.is_some(),
            http2 && !current.config.http1_only,
        )
    }
}

fn load(config: TlsConfig, tickets: &Arc<dyn ProducesTickets>) -> Result<Loaded, TlsError> {
    // Before the files are read: one that changes meanwhile is then seen as changed, and loaded once more.
    let modified = config.modified();
    if config.identities.is_empty() && config.pairs.is_empty() {
        return Err(TlsError::NoIdentity);
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let pairs = config.pairs.iter().map(|pair| load_pair(pair, &provider));
    let files = config.identities.iter().map(|identity| identity.load(&provider));
    let keys = pairs.chain(files).map(|key| key.map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match &config.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let bad = |problem| TlsError::Content { what: "client certificate authority", path: path.clone(), problem };
            let mut roots = RootCertStore::empty();
            for cert in read_certificates("client certificate authority", path)? {
                roots.add(cert).map_err(|error| bad(format!("can't be used: {error}")))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| bad(format!("can't be used: {error}")))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut rustls = builder.with_cert_resolver(Arc::new(ByName(keys)));
    rustls.alpn_protocols = vec![b"http/1.1".to_vec()];
    // All suites are sound, but a client's order may be an accident; ours begins with what is fastest and strongest here.
    rustls.ignore_client_order = true;
    rustls.ticketer = tickets.clone();
    // Tickets are cheap to make but each is a record and ~250 bytes: one is what a client uses next.
    rustls.send_tls13_tickets = 1;
    Ok(Loaded { config, rustls: Arc::new(rustls), modified })
}
