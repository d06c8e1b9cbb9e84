//! The options about TLS that all servers share, and keeping certificates fresh while they run.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use narval_http::tls::{Identity, PemPair, TlsAcceptor, TlsConfig, TlsError, probe};

use crate::Failure;
use crate::config::{CertificateSection, TlsSection};

/// How often the files of certificates and keys are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Options for HTTPS
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "HTTPS")]
pub struct TlsArgs {
    /// Certificate chain (PEM); all TCP ports then speak HTTPS
    ///
    /// Repeatable, each with its --tls-key: the server name in the client's hello chooses. Changed files are reloaded, also
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
}

/// When the kernel encrypts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum KtlsMode {
    /// Never.
    #[default]
    Off,
    /// If the kernel supports it.
    Auto,
    /// Fail if the kernel does not support it.
    On,
}

impl TlsArgs {
    /// What the options ask for; `None` where they ask for no TLS.
    ///
    /// # Errors
    /// Options that don't fit together, and files that can't be used.
    pub fn acceptor(&self) -> Result<Option<Arc<TlsAcceptor>>, Failure> {
        self.acceptor_with(Vec::new())
    }

    /// The same with certificates that are in no file.
    ///
    /// # Errors
    /// As [`acceptor`](Self::acceptor).
    pub fn acceptor_with(&self, pairs: Vec<PemPair>) -> Result<Option<Arc<TlsAcceptor>>, Failure> {
        let config = self.config_over(&TlsSection::default(), pairs)?;
        config.map(|config| accept(config, "option --tls-cert")).transpose()
    }

    /// What the options ask for, over a configuration file. Certificates of the command line replace those of the file.
    ///
    /// # Errors
    /// Options that don't fit together.
    pub fn config_over(&self, file: &TlsSection, pairs: Vec<PemPair>) -> Result<Option<TlsConfig>, Failure> {
        if self.tls_cert.len() != self.tls_key.len() {
            let (certs, keys) = (self.tls_cert.len(), self.tls_key.len());
            return Err(Failure::usage(format!(
                "options --tls-cert and --tls-key: {certs} certificates and {keys} keys: give each certificate its key"
            )));
        }
        let ktls = ktls(self.ktls.or(file.ktls).unwrap_or_default())?;
        let mut identities: Vec<_> = std::iter::zip(&self.tls_cert, &self.tls_key)
            .map(|(cert, key)| Identity { cert: cert.clone(), key: key.clone(), ocsp: None })
            .collect();
        if let Some(first) = identities.first_mut() {
            first.ocsp.clone_from(&self.tls_ocsp);
        } else {
            identities.extend(file.certificates.iter().map(|pair| Identity {
                cert: pair.cert.clone(),
                key: pair.key.clone(),
                ocsp: pair.ocsp.clone(),
            }));
        }
        let client_ca = self.tls_client_ca.clone().or_else(|| Some(file.client_ca.as_ref()?.value.clone()));
        if identities.is_empty() && pairs.is_empty() {
            return match client_ca {
                Some(_) => Err(Failure::usage("option --tls-client-ca: needs --tls-cert and --tls-key")),
                None => Ok(None),
            };
        }
        Ok(Some(TlsConfig { identities, pairs, client_ca, ktls }))
    }
}

/// Loads certificates; `place` is what named them.
pub(crate) fn accept(config: TlsConfig, place: &str) -> Result<Arc<TlsAcceptor>, Failure> {
    TlsAcceptor::new(config).map(Arc::new).map_err(|error| Failure::usage(format!("{place}: {error}")))
}

/// Loads a certificate of a configuration file, to see whether it can be.
pub(crate) fn check_certificate(pair: &CertificateSection) -> Result<(), TlsError> {
    let identity = Identity { cert: pair.cert.clone(), key: pair.key.clone(), ocsp: pair.ocsp.clone() };
    TlsAcceptor::new(TlsConfig { identities: vec![identity], ..TlsConfig::default() }).map(|_| ())
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
            "option --ktls on: this kernel can't ({error}): load the module 'tls', or use --ktls auto"
        ))),
    }
}

/// Reads certificates and keys again when their files change. What can't be read leaves the old ones in use.
///
/// # Errors
/// No thread can be started.
pub fn keep_fresh(tls: Arc<TlsAcceptor>) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::runtime(format!("cannot watch the certificates: {error}"));
    thread::Builder::new()
        .name("certificates".into())
        .spawn(move || {
            let mut said = String::new();
            loop {
                thread::sleep(LOOK_EVERY);
                match tls.reload_if_changed() {
                    Ok(true) => tracing::info!("the certificates have changed: read again"),
                    Ok(false) => {}
                    // A pair is often replaced one file after the other: the same trouble is told once.
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
