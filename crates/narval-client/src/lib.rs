//! A blocking HTTP/1.1 client for one job: fetching many files from few servers, each body read by the thread that uses it.
//!
//! A [`Client`] keeps a pool of connections per origin, speaks TLS and through proxies, sends credentials only where they
//! belong, and follows redirects. It is shared between threads behind an [`Arc`](std::sync::Arc):
//!
//! - [`Client::send`] makes one request, without a retry; the [`Body`] of its [`Response`] is read directly from the
//!   socket.
//! - [`Client::metadata_once`] fetches a small file whole; [`Client::retrying`] retries it according to the [`RetryPolicy`].
//! - [`ResumingBody`] reads a large file, and continues where a connection broke.
//! - [`Client::upload`] sends a body, from memory or from a file.
//!
//! Requests for `s3://` URLs are signed by [`ClientOptions::buckets`]. Content codings are decoded by
//! [`ClientOptions::codings`]: the client has no decoders of its own. A [`Url`] may name a folder (`file://`), but the
//! client cannot read it: requests for it fail.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::sync::Arc;
//!
//! use narval_client::{Client, ClientOptions, ResumingBody, Url};
//!
//! // A server that answers once.
//! let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
//! let url = Url::parse(&format!("http://{}/file", listener.local_addr()?))?;
//! std::thread::spawn(move || {
//!     let (mut socket, _) = listener.accept().unwrap();
//!     let _ = socket.read(&mut [0; 4096]).unwrap();
//!     socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").unwrap();
//! });
//!
//! let options = ClientOptions { proxies: Default::default(), ..ClientOptions::default() };
//! let client = Arc::new(Client::new(options));
//! let mut body = ResumingBody::open(&client, &url)?.ok_or("404")?;
//! let mut buffer = [0; 1024];
//! let len = body.read_some(&mut buffer)?;
//! assert_eq!(&buffer[..len], b"hello");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # Why not a general client
//!
//! General clients do not guarantee all of these: no read waits longer than a limit without data (a limit on the whole
//! body would break slow links), a connection with unread bytes is never reused, the failure of a reused connection
//! before the first byte of a response does not count as an attempt, and the number of open connections is known.

#![forbid(unsafe_code)]

mod auth;
mod bounds;
mod bucket;
pub mod clock;
mod error;
mod exchange;
mod limits;
mod message;
mod retry_budget;
mod retry_policy;
mod retrying;
pub mod trace;
mod url;
mod wire;
pub use limits::{
    CONNECT_TIMEOUT, CONNECTIONS_PER_ORIGIN_MAX, DRAIN_LEN_MAX, FIELDS_MAX, HEAD_LEN_MAX, IDLE_AGE_MAX,
    MENTIONED_AFTER, METADATA_LEN_MAX, OPEN_PATIENCE, REDIRECTS_MAX, SMALL_RATE_MIN, STALL_TIMEOUT,
};
pub use message::request_id;

pub use auth::{Bearer, Credentials, Netrc};
pub use bounds::{Bounds, HostPattern};
pub use error::HttpError;
pub use exchange::body::Body;
pub use exchange::client::{Buckets, Client, ClientOptions};
pub use exchange::probe::TlsProbe;
pub use exchange::request::{Extra, Method, Request, Response, Valid};
pub use exchange::upload::{Answer, Payload, Upload};
pub use message::coding::{Codings, DecoderOf};
pub use message::head::Head;
pub use retry_budget::{BUDGET_MAX, Budget};
pub use retry_policy::{RetryPolicy, random_fraction};
pub use retrying::breaker::Breaker;
pub use retrying::resume::{OwnCodings, ResumingBody};
pub use retrying::retry::Attempts;
pub use retrying::trouble::Trouble;
pub use url::{Origin, Scheme, URL_LEN_MAX, Url, UrlError, escaped};
pub use wire::connect::ATTEMPT_DELAY;
pub use wire::proxy::Proxies;
pub use wire::tls::{TrustedCertificates, tls_config};
