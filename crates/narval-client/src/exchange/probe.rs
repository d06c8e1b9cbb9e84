//! What a TLS handshake shows of a server.

use std::sync::Arc;
use std::time::SystemTime;

use crate::error::HttpError;
use crate::exchange::client::Client;
use crate::url::Origin;
use crate::wire::connection::{Connection, Dial};
use crate::wire::tls::{tls_config, valid_until};

/// The outcome of a TLS handshake, whose certificates were verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsProbe {
    /// The protocol version, as `TLSv1_3`.
    pub version: String,
    /// The application protocol (ALPN) that the server chose of `h2` and `http/1.1`, if any.
    pub protocol: Option<String>,
    /// The number of certificates that the server sent.
    pub certificates: usize,
    /// When the first of these certificates to expire does so.
    pub valid_until: Option<SystemTime>,
}

impl Client {
    /// Opens a connection to a server, offers HTTP/2 and HTTP/1.1, and closes it after the TLS handshake.
    ///
    /// # Errors
    /// If the server cannot be reached, or its certificate cannot be verified.
    pub fn probe_tls(&self, origin: &Origin) -> Result<TlsProbe, HttpError> {
        let options = self.options();
        if options.offline {
            return Err(HttpError::Offline);
        }
        let proxy = self.find_proxy(origin)?;
        let dial = Dial {
            origin,
            mention: &|| self.mention(origin, &"no connection yet"),
            bounds: None,
            proxy: proxy.as_ref(),
            tls: &Arc::new(tls_config(&[b"h2", b"http/1.1"], options.ssl_cert_file.as_deref())?),
            connect_timeout: options.connect_timeout,
            stall_timeout: options.stall_timeout,
        };
        let connection = Connection::open(&dial)?;
        let session = connection.session().ok_or(HttpError::Malformed("the connection is not encrypted"))?;
        let certificates = session.peer_certificates().unwrap_or_default();
        Ok(TlsProbe {
            version: session.protocol_version().map(|version| format!("{version:?}")).unwrap_or_default(),
            protocol: session.alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned()),
            certificates: certificates.len(),
            valid_until: certificates.iter().filter_map(valid_until).min(),
        })
    }
}
