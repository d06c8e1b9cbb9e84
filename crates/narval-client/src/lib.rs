//! A blocking HTTP/1.1 client made for this one job: many files from few servers, each body read by the thread that
//! decodes it.
//!
//! A general client was weighed and not taken, because it must be known here, and could not be told there: that no read
//! stays without data for longer than a limit (a limit on the whole body would cut slow links), that a connection with
//! bytes left on it is never used again, that a reused connection which fails before the first byte of an answer is not
//! an attempt, and how many connections are open.

#![forbid(unsafe_code)]

mod auth;
mod body;
mod client;
mod coding;
mod connect;
mod connection;
mod error;
mod file;
mod head;
mod pool;
mod proxy;
mod resume;
mod retry;
mod tls;
mod url;

pub use auth::{Credentials, Netrc};
pub use body::Body;
pub use client::{Client, ClientOptions, Method, Request, Response};
pub use coding::{Codings, DecoderOf};
pub use connect::ATTEMPT_DELAY;
pub use error::HttpError;
pub use file::OpenFile;
pub use head::Head;
pub use proxy::Proxies;
pub use resume::ResumingBody;
pub use retry::RetryPolicy;
pub use tls::TrustedCertificates;
pub use url::{Origin, Scheme, URL_LEN_MAX, Url, UrlError};

use std::time::Duration;

/// How long a TCP connection and the TLS handshake may each take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long caches have to say what they are, once another one has: those that take longer are left out of the run.
pub const OPEN_PATIENCE: Duration = Duration::from_secs(3);
/// How long any single read or write may stay without progress.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection idle for longer is not used again: load balancers drop idle ones silently.
pub const IDLE_AGE_MAX: Duration = Duration::from_secs(15);
/// Open connections per origin, in use and idle together.
pub const CONNECTIONS_PER_ORIGIN_MAX: usize = 64;
/// The longest head of an answer.
pub const HEAD_LEN_MAX: usize = 64 * 1024;
/// Field lines in the head of an answer.
pub const FIELDS_MAX: usize = 128;
/// Redirects followed for one request.
pub const REDIRECTS_MAX: usize = 10;
/// What is read of a body nobody wants, to keep its connection. More than that, and the connection is closed.
pub const DRAIN_LEN_MAX: u64 = 64 * 1024;
/// The longest metadata file (narinfo, listing) after decoding its content coding.
pub const METADATA_LEN_MAX: u64 = 64 * 1024 * 1024;
