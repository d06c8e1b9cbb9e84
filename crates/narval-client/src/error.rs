//! Why an HTTP exchange failed, and whether to retry.

use std::io;
use std::time::Duration;

use crate::url::UrlError;

/// One failed exchange.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The name does not resolve.
    #[error("cannot find the host '{host}': {source}")]
    Resolve {
        /// The host name.
        host: String,
        /// The resolver's error.
        source: io::Error,
    },
    /// No address accepted a connection.
    #[error("cannot connect to {host}: {source}")]
    Connect {
        /// Host and port.
        host: String,
        /// The last address's error.
        source: io::Error,
    },
    /// The TLS handshake failed, most often on a certificate.
    #[error("TLS with {host} failed: {reason}")]
    Tls {
        /// The server's name.
        host: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The trusted certificates cannot be read.
    #[error("{0}")]
    Certificates(String),
    /// The proxy refused the connection, or its protocol is not supported.
    #[error("proxy {proxy}: {reason}")]
    Proxy {
        /// Host and port of the proxy.
        proxy: String,
        /// The reason.
        reason: String,
    },
    /// No data arrived within the timeout.
    #[error("no data for {} s while {what}", .limit.as_secs())]
    Stalled {
        /// What was being done.
        what: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// A small response does not end.
    #[error("too slow: {received} bytes in {} s", .elapsed.as_secs())]
    Slow {
        /// Bytes received.
        received: u64,
        /// Since the first of them was waited for.
        elapsed: Duration,
    },
    /// The connection broke.
    #[error("the connection broke while {what}: {source}")]
    Broken {
        /// What was being done.
        what: &'static str,
        /// The socket's error.
        source: io::Error,
    },
    /// The body ended before its announced length or its last chunk.
    #[error("the server closed the connection after {received} bytes of the body{}", .expected.map(|n| format!(" of {n}")).unwrap_or_default())]
    Truncated {
        /// Bytes received.
        received: u64,
        /// Bytes announced.
        expected: Option<u64>,
    },
    /// The response is not valid HTTP.
    #[error("the server's response is not valid HTTP: {0}")]
    Malformed(&'static str),
    /// The status is neither success nor absence.
    #[error("the server answered {status}")]
    Status {
        /// The status code.
        status: u16,
        /// From `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// 401, although credentials were sent.
    #[error(
        "the server answered 401: it does not accept the credentials of {from}, which are wrong, expired or revoked"
    )]
    Denied {
        /// Where they come from: a file with a line, an option, or the address.
        from: String,
    },
    /// A request to a bucket (`s3://`) failed.
    #[error("{message}")]
    Bucket {
        /// The status code; 0 without a response.
        status: u16,
        /// The bucket's error, and what to do.
        message: String,
        /// From `Retry-After`.
        retry_after: Option<Duration>,
        /// Whether another attempt can help.
        is_retryable: bool,
    },
    /// A redirect that must not or cannot be followed.
    #[error("redirect refused: {0}")]
    Redirect(&'static str),
    /// A redirect or a reference leads out of the client's [`Bounds`](crate::Bounds).
    #[error("it leads to {host}, where it must not: {reason}")]
    OutOfBounds {
        /// Scheme, host and port.
        host: String,
        /// Why.
        reason: &'static str,
    },
    /// A redirect to an invalid URL.
    #[error("redirect refused: {0}")]
    RedirectUrl(#[from] UrlError),
    /// The file changed during the download.
    #[error("the file changed on the server during the download")]
    Changed,
    /// The content coding is unknown, or decoding failed.
    #[error("cannot decode the response's content coding: {0}")]
    Coding(String),
    /// The body is larger than this type of file may be.
    #[error("the response is larger than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: u64,
    },
    /// A local file cannot be read: one of a `file://` cache, or one to be sent.
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The cache is skipped in this run.
    #[error("not queried: it did not respond at the start of this run")]
    LeftOut,
    /// The client may not use the network.
    #[error("not queried: --offline")]
    Offline,
}

impl HttpError {
    /// Whether another attempt can help: not for 4xx other than 408 and 429, and not for 501, 505 and 511 (as in Nix).
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Resolve { .. }
            | Self::Connect { .. }
            | Self::Stalled { .. }
            | Self::Slow { .. }
            | Self::Broken { .. }
            | Self::Truncated { .. } => true,
            Self::Status { status, .. } => match status {
                408 | 429 => true,
                501 | 505 | 511 => false,
                other => *other >= 500,
            },
            Self::Malformed(_) => true,
            Self::Bucket { is_retryable, .. } => *is_retryable,
            _ => false,
        }
    }

    /// Whether the server may be away: it cannot be reached, or it, or a proxy in front of it, ends what it has begun.
    pub const fn is_outage(&self) -> bool {
        matches!(
            self,
            Self::Resolve { .. }
                | Self::Connect { .. }
                | Self::Broken { .. }
                | Self::Truncated { .. }
                | Self::Status { status: 502..=504, .. }
                | Self::Bucket { status: 502..=504, is_retryable: true, .. }
        )
    }

    /// Whether the server, or one on the way to it, has answered what it will answer again: it works, and refuses this request.
    pub fn is_answer(&self) -> bool {
        let refuses = matches!(self, Self::Status { status: 400..=499, .. });
        matches!(self, Self::OutOfBounds { .. } | Self::Denied { .. }) || refuses && !self.is_retryable()
    }

    /// Whether credentials are missing or wrong (401, 403, 407), which does not mean that the file is absent. A bucket's
    /// refusals count as well: they concern credentials or the address.
    pub const fn is_auth(&self) -> bool {
        matches!(
            self,
            Self::Status { status: 401 | 403 | 407, .. }
                | Self::Denied { .. }
                | Self::Bucket { is_retryable: false, .. }
        )
    }

    /// How long the server asks to wait.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } | Self::Bucket { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the server is overloaded (429, 503), which makes the back-off longer.
    pub const fn is_overload(&self) -> bool {
        matches!(self, Self::Status { status: 429 | 503, .. } | Self::Bucket { status: 429 | 503, .. })
    }

    /// Converts a socket error: distinguishes a timeout from a broken connection.
    pub(crate) fn from_socket(source: io::Error, what: &'static str, limit: Duration) -> Self {
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Stalled { what, limit },
            _ => Self::Broken { what, source },
        }
    }
}
