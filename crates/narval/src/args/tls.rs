//! The TLS options shared by all servers, and reloading of certificates.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use narval_http::tls::{Identity, PemPair, TlsAcceptor, TlsConfig, TlsError, probe};

use crate::Failure;
use crate::config::{CertificateSection, TlsSection};
use crate::values::ktls_mode::KtlsMode;

/// How often certificate and key files are checked.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Options for HTTPS
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "HTTPS")]
pub struct TlsArgs {
    /// Certificate chain (PEM); all TCP ports then speak HTTPS
    ///
    /// Repeatable, each with its --tls-key: the client's SNI chooses the certificate. Changed files are reloaded, also
    /// on SIGHUP.
    #[arg(long, value_name = "FILE")]
    tls_cert: Vec<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE")]
    tls_key: Vec<PathBuf>,
    /// OCSP response (DER) to staple to the first certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ocsp: Option<PathBuf>,
    /// Certificate authorities (PEM); clients must present a certificate of one of them
    #[arg(long, value_name = "FILE")]
    tls_client_ca: Option<PathBuf>,
    /// Whether the kernel encrypts large files (kTLS) [default: off]
    #[arg(long, value_name = "WHEN")]
    ktls: Option<KtlsMode>,
    /// Do not offer HTTP/2 to HTTPS clients
    #[arg(long)]
    no_http2: bool,
}

impl TlsArgs {
    /// The acceptor for the options; `None` without TLS.
    ///
    /// # Errors
    /// Contradictory options, and unusable files.
    pub fn acceptor(&self) -> Result<Option<Arc<TlsAcceptor>>, Failure> {
        self.acceptor_with(Vec::new())
    }

    /// The same, with certificates that are not in files.
    ///
    /// # Errors
    /// As [`acceptor`](Self::acceptor).
    pub fn acceptor_with(&self, pairs: Vec<PemPair>) -> Result<Option<Arc<TlsAcceptor>>, Failure> {
        let config = self.config_over(&TlsSection::default(), pairs)?;
        config.map(|config| accept(config, "option --tls-cert")).transpose()
    }

    /// The configuration, from the options or else from a configuration file. Certificates on the command line replace
    /// those of the file.
    ///
    /// # Errors
    /// Contradictory options.
    pub fn config_over(&self, file: &TlsSection, pairs: Vec<PemPair>) -> Result<Option<TlsConfig>, Failure> {
        if self.tls_cert.len() != self.tls_key.len() {
            let (certs, keys) = (self.tls_cert.len(), self.tls_key.len());
            return Err(Failure::usage(format!(
                "options --tls-cert and --tls-key: {certs} certificates and {keys} keys: give one key for each certificate"
            )));
        }
        let ktls = ktls(self.ktls.or(file.ktls).unwrap_or_default())?;
        let mut identities: Vec<_> = std::iter::zip(&self.tls_cert, &self.tls_key)
            .map(|(cert, key)| Identity { cert: cert.clone(), key: key.clone(), ocsp: None })
            .collect();
        if let Some(first) = identities.first_mut() {
            first.ocsp.clone_from(&self.tls_ocsp);
        } else {
            identities.extend(file.certificates.iter().map(identity));
        }
        let client_ca = self.tls_client_ca.clone().or_else(|| Some(file.client_ca.as_ref()?.value.clone()));
        if identities.is_empty() && pairs.is_empty() {
            return match client_ca {
                Some(_) => Err(Failure::usage("option --tls-client-ca: needs --tls-cert and --tls-key")),
                None => Ok(None),
            };
        }
        let http1_only = self.no_http2 || file.http2 == Some(false);
        Ok(Some(TlsConfig { identities, pairs, client_ca, ktls, http1_only }))
    }
}

/// Loads certificates; `place` is the option or key that named them.
pub(crate) fn accept(config: TlsConfig, place: &str) -> Result<Arc<TlsAcceptor>, Failure> {
    TlsAcceptor::new(config).map(Arc::new).map_err(|error| Failure::usage(format!("{place}: {error}")))
}

/// Checks that a certificate of a configuration file can be loaded.
pub(crate) fn check_certificate(pair: &CertificateSection) -> Result<(), TlsError> {
    TlsAcceptor::new(TlsConfig { identities: vec![identity(pair)], ..TlsConfig::default() }).map(|_| ())
}

/// Checks that the certificate authorities of a configuration file can be loaded, besides its certificates.
pub(crate) fn check_authorities(file: &TlsSection) -> Result<(), TlsError> {
    let identities = file.certificates.iter().map(identity).collect();
    let client_ca = file.client_ca.as_ref().map(|at| at.value.clone());
    TlsAcceptor::new(TlsConfig { identities, client_ca, ..TlsConfig::default() }).map(|_| ())
}

fn identity(pair: &CertificateSection) -> Identity {
    Identity { cert: pair.cert.clone(), key: pair.key.clone(), ocsp: pair.ocsp.clone() }
}

fn ktls(mode: KtlsMode) -> Result<bool, Failure> {
    match (mode, probe()) {
        (KtlsMode::Off, _) => Ok(false),
        (_, Ok(())) => Ok(true),
        (KtlsMode::Auto, Err(error)) => {
            tracing::info!("the kernel has no TLS ({error}): encrypting in user space");
            Ok(false)
        }
        (KtlsMode::On, Err(error)) => Err(Failure::usage(format!(
            "option --ktls on: this kernel does not support it ({error}): load the module 'tls', or use --ktls auto"
        ))),
    }
}

/// Reloads certificates and keys when their files change. If that fails, the old ones stay in use.
///
/// # Errors
/// The thread cannot be started.
pub fn keep_fresh(tls: Arc<TlsAcceptor>) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::runtime(format!("cannot watch the certificates: {error}"));
    thread::Builder::new()
        .name("certificates".into())
        .spawn(move || {
            let mut said = String::new();
            loop {
                thread::sleep(LOOK_EVERY);
                match tls.reload_if_changed() {
                    Ok(true) => tracing::info!("the certificates have changed and were reloaded"),
                    Ok(false) => {}
                    // The files of a pair are often replaced one by one: an error is reported once.
                    Err(error) if error.to_string() != said => {
                        said = error.to_string();
                        tracing::error!("{said}; the old certificates stay in use");
                    }
                    Err(_) => {}
                }
            }
        })
        .map_err(failed)?;
    Ok(())
}
