//! `[tls]`: HTTPS, of all servers.

use std::path::PathBuf;
use std::sync::Arc;

use narval_http::tls::{ClientAuth, Identity, PemPair, TlsAcceptor, TlsConfig, TlsError, probe};

use crate::config::error::ConfigError;
use crate::config::field::{Nested, table};
use crate::config::key::At;
use crate::config::kinds::{boolean, choice, path};
use crate::ui::failure::Failure;

/// Whether the kernel encrypts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KtlsMode {
    /// Never.
    Off,
    /// If the kernel supports it.
    Auto,
    /// Fail if the kernel does not support it.
    On,
}

const KTLS: [(&str, &str, KtlsMode); 3] = [
    ("off", "Never", KtlsMode::Off),
    ("auto", "If the kernel supports it", KtlsMode::Auto),
    ("on", "Fail if the kernel does not support it", KtlsMode::On),
];

table! {
    /// HTTPS.
    Tls {
        /// Certificates; the first is for clients that name none of them.
        certificate: Vec<Certificate> = Nested::Table(None),
        /// Certificate authorities (PEM); clients must present a certificate of one of them
        client_ca: Option<At<PathBuf>> = path().option("tls-client-ca", "FILE"),
        /// Whether the kernel encrypts large files (kTLS)
        ktls: At<KtlsMode> = choice(&KTLS).or("off").option("ktls", "WHEN"),
        /// Whether HTTP/2 is offered
        http2: bool = boolean().or("true").flag("no-http2", "false", |arg| arg.help("Do not offer HTTP/2 to HTTPS clients")),
    }
}

table! {
    /// A certificate.
    Certificate {
        /// Certificate chain (PEM); all TCP ports then speak HTTPS
        ///
        /// The client's SNI chooses the certificate. Changed files are reloaded, also on SIGHUP.
        cert: PathBuf = path().option("tls-cert", "FILE"),
        /// Private key of the certificate (PEM)
        key: PathBuf = path().option("tls-key", "FILE").nix("secret"),
        /// OCSP response (DER) to staple to the certificate
        ocsp: Option<PathBuf> = path().option("tls-ocsp", "FILE"),
    }
}

impl Tls {
    /// The configuration, with certificates that are not in files; `None` without any.
    ///
    /// # Errors
    /// Keys that contradict each other, or what this machine has.
    pub fn config(&self, pairs: Vec<PemPair>) -> Result<Option<TlsConfig>, ConfigError> {
        let ktls = self.ktls()?;
        if self.certificate.is_empty() && pairs.is_empty() {
            return self.check().map(|()| None);
        }
        let (identities, client_auth) = (self.identities(), self.client_auth());
        Ok(Some(TlsConfig { identities, pairs, client_auth, ktls, http1_only: !self.http2 }))
    }

    /// Checks that authorities are not alone.
    ///
    /// # Errors
    /// They are.
    pub fn check(&self) -> Result<(), ConfigError> {
        match &self.client_ca {
            Some(at) if self.certificate.is_empty() && at.origin.is_option() => {
                Err(at.origin.error("", "needs --tls-cert and --tls-key"))
            }
            Some(at) if self.certificate.is_empty() => {
                Err(at.origin.error("tls.client-ca", "needs a certificate: give a [[tls.certificate]]"))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the files can be loaded.
    pub fn check_files(&self) -> Vec<ConfigError> {
        // Each on its own, to report its line; the server loads them together.
        let loaded = |config| TlsAcceptor::new(config).map(drop);
        let wrong = |pair: &Certificate| -> Option<ConfigError> {
            let failure: TlsError =
                loaded(TlsConfig { identities: vec![pair.identity()], ..TlsConfig::default() }).err()?;
            Some(pair.origin.error("tls.certificate", failure))
        };
        let wrong: Vec<_> = self.certificate.iter().filter_map(wrong).collect();
        // Only together with certificates that can be loaded is it known that an error is about the authorities.
        let authorities = self.client_ca.as_ref().filter(|_| wrong.is_empty() && !self.certificate.is_empty());
        let of_authorities = authorities.and_then(|at| {
            let (identities, client_auth) = (self.identities(), self.client_auth());
            let config = TlsConfig { identities, client_auth, ..TlsConfig::default() };
            Some(at.origin.error("tls.client-ca", loaded(config).err()?))
        });
        wrong.into_iter().chain(of_authorities).collect()
    }

    fn client_auth(&self) -> ClientAuth {
        self.client_ca.as_ref().map_or(ClientAuth::None, |at| ClientAuth::Required(at.value.clone()))
    }

    fn identities(&self) -> Vec<Identity> {
        self.certificate.iter().map(Certificate::identity).collect()
    }

    fn ktls(&self) -> Result<bool, ConfigError> {
        match (self.ktls.value, probe()) {
            (KtlsMode::Off, _) => Ok(false),
            (_, Ok(())) => Ok(true),
            (KtlsMode::Auto, Err(error)) => {
                tracing::info!("the kernel has no TLS ({error}): encrypting in user space");
                Ok(false)
            }
            (KtlsMode::On, Err(error)) => Err(self.ktls.origin.error(
                "tls.ktls",
                format!("this kernel does not support it ({error}): load the module 'tls', or use 'auto'"),
            )),
        }
    }
}

impl Certificate {
    fn identity(&self) -> Identity {
        Identity { cert: self.cert.clone(), key: self.key.clone(), ocsp: self.ocsp.clone() }
    }
}

/// Loads certificates; `place` is what messages call them.
pub(crate) fn accept(config: TlsConfig, place: &str) -> Result<Arc<TlsAcceptor>, Failure> {
    TlsAcceptor::new(config).map(Arc::new).map_err(|error| Failure::usage(format!("{place}: {error}")))
}
