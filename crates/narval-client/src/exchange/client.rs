//! Requests: one attempt each, redirects followed, connections reused.

use std::fmt::Display;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::ClientConfig;

use crate::auth::Credentials;
use crate::bounds::Bounds;
use crate::error::HttpError;
use crate::exchange::body::Body;
use crate::exchange::request::{Extra, Method, Request, Response};
use crate::limits::{
    CONNECT_TIMEOUT, CONNECTIONS_PER_ORIGIN_MAX, MENTIONED_AFTER, METADATA_LEN_MAX, OPEN_PATIENCE, REDIRECTS_MAX,
    STALL_TIMEOUT,
};
use crate::message::coding::{Codings, names};
use crate::message::head::Head;
use crate::message::request_id;
use crate::retry_budget::Budget;
use crate::retry_policy::RetryPolicy;
use crate::trace::{self, Span, Work};
use crate::url::{Origin, Scheme, Url};
use crate::wire::connection::{Connection, Dial};
use crate::wire::pool::{Pool, Pooled, Taken};
use crate::wire::proxy::{Proxies, Proxy};
use crate::wire::tls;

/// Options of a [`Client`].
pub struct ClientOptions {
    /// Credentials.
    pub credentials: Credentials,
    /// Proxies.
    pub proxies: Proxies,
    /// The timeout for connecting.
    pub connect_timeout: Duration,
    /// How long a read may wait without data.
    pub stall_timeout: Duration,
    /// Open connections per origin.
    pub connections_max: usize,
    /// How long to wait for a server's first response once another server has responded.
    pub open_patience: Duration,
    /// The retry policy.
    pub retry: RetryPolicy,
    /// Which requests may be retries; all requests count. `None`: as many as the policy allows.
    pub retries: Option<Arc<Budget>>,
    /// Whether every request fails, because only folders may be read.
    pub offline: bool,
    /// The content codings that responses may have.
    pub codings: Codings,
    /// Where requests may lead; `None`: anywhere.
    pub bounds: Option<Bounds>,
    /// The file with trusted certificates that `ssl-cert-file` of Nix's settings names. Otherwise the environment names it, or the
    /// system's is used.
    pub ssl_cert_file: Option<PathBuf>,
    /// Signs the requests for `s3://` URLs. If `None`, requests for them fail.
    pub buckets: Option<Arc<dyn Buckets>>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            credentials: Credentials::default(),
            proxies: Proxies::from_env(),
            connect_timeout: CONNECT_TIMEOUT,
            stall_timeout: STALL_TIMEOUT,
            connections_max: CONNECTIONS_PER_ORIGIN_MAX,
            open_patience: OPEN_PATIENCE,
            retry: RetryPolicy::default(),
            retries: None,
            offline: false,
            codings: Codings::default(),
            bounds: None,
            ssl_cert_file: None,
            buckets: None,
        }
    }
}

/// Handles `s3://` addresses (`ClientOptions::buckets`).
pub trait Buckets: Send + Sync {
    /// Returns the HTTP URL for a request for an object, signed for this method and for the fields and the query of
    /// `extra`. Credentials that must be fetched are fetched with `client`.
    ///
    /// # Errors
    /// If the address names no bucket, or the credentials are not available.
    fn sign(&self, client: &Client, method: Method, url: &Url, extra: Extra<'_>) -> Result<Url, HttpError>;

    /// Interprets an unsuccessful response: returns the status that it means.
    ///
    /// # Errors
    /// Why the request failed, if it was not answered.
    fn interpret_error(&self, url: &Url, head: &Head, body: &[u8]) -> Result<u16, HttpError>;
}

/// A client. Shared between threads behind an `Arc`.
pub struct Client {
    options: ClientOptions,
    pool: Arc<Pool>,
    tls: OnceLock<Arc<ClientConfig>>,
    requests: AtomicU64,
    connections: AtomicU64,
}

impl Client {
    /// A client with these options. Nothing is opened yet.
    pub fn new(options: ClientOptions) -> Self {
        let pool = Pool::new(options.connections_max);
        Self { options, pool, tls: OnceLock::new(), requests: AtomicU64::new(0), connections: AtomicU64::new(0) }
    }

    pub(crate) const fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// How long a single read or write may wait without progress.
    pub const fn stall_timeout(&self) -> Duration {
        self.options.stall_timeout
    }

    /// How long to wait for a server's first response once another server has responded.
    pub const fn open_patience(&self) -> Duration {
        self.options.open_patience
    }

    /// The content codings that responses may have.
    pub(crate) const fn codings(&self) -> &Codings {
        &self.options.codings
    }

    /// Whether the client uses no network.
    pub const fn is_offline(&self) -> bool {
        self.options.offline
    }

    /// The number of requests sent and connections opened so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.connections.load(Ordering::Relaxed))
    }

    /// Sends a request and follows redirects. Any other status is a response, not an error.
    pub fn send(&self, request: &Request<'_>) -> Result<Response, HttpError> {
        if let Some(retries) = &self.options.retries {
            retries.earn();
        }
        if request.url.scheme() == Scheme::S3 {
            return self.send_to_bucket(request);
        }
        let mut url = request.url.clone();
        for _ in 0..=REDIRECTS_MAX {
            let response = self.send_once(&Request { url: &url, ..request.clone() })?;
            if !matches!(response.head.status, 301 | 302 | 303 | 307 | 308) {
                return Ok(response);
            }
            if matches!(request.method, Method::Put | Method::Post | Method::Delete) {
                return Err(HttpError::Redirect("a request with a body is not sent elsewhere"));
            }
            let location = response.head.field("location").ok_or(HttpError::Redirect("it names no Location"))?;
            let next = url.join(location)?;
            if (url.scheme(), next.scheme()) == (Scheme::Https, Scheme::Http) {
                return Err(HttpError::Redirect("from https:// to http://"));
            }
            response.body.drain();
            url = next;
        }
        Err(HttpError::Redirect("more than 10 in a row"))
    }

    /// Sends a request, and follows no redirect: the fields of `request.extra` reach no other server.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_once(&self, request: &Request<'_>) -> Result<Response, HttpError> {
        if request.url.scheme() == Scheme::File {
            let path = request.url.file_path().display().to_string();
            return Err(HttpError::File { path, source: io::ErrorKind::Unsupported.into() });
        }
        if self.options.offline {
            return Err(HttpError::Offline);
        }
        let mut span = self.span(request.method, request.url, request.extra);
        let answer = self.exchanged(request);
        span.answered(answer.as_ref().map(|answer| answer.head.status).map_err(|error| error as &dyn Display));
        answer
    }

    /// What is measured of a request: up to the head of its answer.
    pub(crate) fn span(&self, method: Method, url: &Url, extra: Extra<'_>) -> Span {
        let work = if extra.is_signed { Work::Storage } else { Work::Server };
        let mut span = trace::begin(work, || format!("{} {}", method.name(), url.origin().host));
        span.note("server.address", || url.origin().host.clone());
        span.note("http.request.method", || method.name().to_owned());
        span
    }

    fn exchanged(&self, request: &Request<'_>) -> Result<Response, HttpError> {
        let origin = request.url.origin();
        let proxy = self.find_proxy(origin)?;
        let bytes = self.render(request, proxy.as_ref());
        loop {
            let mut connection = self.connection(origin, proxy.as_ref())?;
            let mention = || self.mention(origin, &"no answer yet");
            match exchange(&mut connection, &bytes, &mention) {
                Ok(head) => {
                    // A proxy may answer this in place of a server that was never there.
                    if head.status < 500 {
                        self.pool.answered(origin);
                    }
                    let has_body = request.method != Method::Head && !matches!(head.status, 204 | 304);
                    let body = Body::network(connection, &head, has_body, &self.pool, origin)?;
                    return Ok(Response { head, body });
                }
                // The server closed it while it was idle, so this does not count as an attempt. Its other idle
                // connections are closed as well.
                Err(HttpError::Broken { .. }) if connection.reused && !connection.has_buffered() => {
                    drop(connection);
                    self.pool.forget_idle(origin);
                }
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) fn find_proxy(&self, origin: &Origin) -> Result<Option<Proxy>, HttpError> {
        self.options.proxies.find(origin)
    }

    pub(crate) const fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// A connection for one more request.
    pub(crate) fn connection(&self, origin: &Origin, proxy: Option<&Proxy>) -> Result<Pooled, HttpError> {
        let bounds = self.options.bounds.as_ref();
        let bounds = bounds.map(|bounds| bounds.check(origin).map(|host| (bounds, host))).transpose()?;
        let connection = match self.pool.take(origin) {
            Taken::Idle(connection) => *connection,
            Taken::Permit(permit) => {
                self.connections.fetch_add(1, Ordering::Relaxed);
                let dial = Dial {
                    origin,
                    mention: &|| self.mention(origin, &"no connection yet"),
                    proxy,
                    bounds,
                    tls: self.tls()?,
                    connect_timeout: self.options.connect_timeout,
                    stall_timeout: self.options.stall_timeout,
                };
                let connection = Connection::open(&dial)?;
                // A proxy's connection does not show that the server is there.
                if proxy.is_none() {
                    self.pool.connected(origin);
                }
                permit.hold(connection)
            }
        };
        self.requests.fetch_add(1, Ordering::Relaxed);
        Ok(connection)
    }

    fn tls(&self) -> Result<&Arc<ClientConfig>, HttpError> {
        if let Some(config) = self.tls.get() {
            return Ok(config);
        }
        let config = tls::config(self.options.ssl_cert_file.as_deref())?;
        Ok(self.tls.get_or_init(|| config))
    }

    fn render(&self, request: &Request<'_>, proxy: Option<&Proxy>) -> Vec<u8> {
        let usual = if request.accepts_coding { self.options.codings.accepted } else { "identity" };
        let coding = request.own_codings.unwrap_or(usual);
        let mut head = self.render_head(request.method, request.url, coding, proxy, request.extra);
        if request.from > 0 {
            head.push_str(&format!("Range: bytes={}-\r\n", request.from));
            if let Some(tag) = request.if_range {
                head.push_str(&format!("If-Range: {tag}\r\n"));
            }
        }
        if matches!(request.method, Method::Post | Method::Put) {
            head.push_str(&format!("Content-Length: {}\r\n", request.body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(request.body);
        bytes
    }

    /// The request line and the fields that every request has.
    pub(crate) fn render_head(
        &self,
        method: Method,
        url: &Url,
        coding: &str,
        proxy: Option<&Proxy>,
        extra: Extra<'_>,
    ) -> String {
        let origin = url.origin();
        let plain_proxy = proxy.filter(|_| origin.scheme == Scheme::Http);
        let target = if plain_proxy.is_some() { format!("{origin}{}", url.target()) } else { url.target() };
        let mut head = format!("{} {target} HTTP/1.1\r\nHost: {}\r\n", method.name(), origin.host_field());
        head.push_str(concat!("User-Agent: narval/", env!("CARGO_PKG_VERSION"), "\r\nAccept: */*\r\n"));
        head.push_str(&format!("Accept-Encoding: {coding}\r\n"));
        if let Some(authorization) = plain_proxy.and_then(|proxy| proxy.authorization.as_ref()) {
            head.push_str(&format!("Proxy-Authorization: {authorization}\r\n"));
        }
        if !extra.is_signed {
            for (name, value) in self.options.credentials.lines_for(origin) {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            let carried = request_id::current();
            if let Some(id) = carried.id() {
                head.push_str(&format!("X-Request-Id: {id}\r\n"));
            }
            if let Some(context) = carried.trace().filter(|context| context.span != 0) {
                head.push_str(&format!("traceparent: {context}\r\n"));
            }
        }
        for (name, value) in extra.fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head
    }

    /// Says that a server is waited for, once.
    pub(crate) fn mention(&self, origin: &Origin, what: &dyn Display) {
        if self.pool.mentions(origin) {
            tracing::warn!("waiting for {origin}: {what}");
        }
    }

    /// Whether a status says that there is no such file: 404, 410, or 403, the answer of object stores whose folders may not be
    /// listed. If credentials are sent to this server, 403 means that they are wrong or have expired.
    pub(crate) fn says_absent(&self, status: u16, url: &Url) -> bool {
        let has_credentials = || url.scheme() != Scheme::S3 && self.options.credentials.has_for(url.origin());
        matches!(status, 404 | 410) || status == 403 && !has_credentials()
    }

    /// Fetches a small file (narinfo, listing, cache info) whole and decodes its content coding, with one attempt. `None` if the server
    /// does not have it.
    ///
    /// # Errors
    /// If the server cannot be reached, answers another status, is too slow, or used a coding that is not known.
    pub fn metadata_once(&self, url: &Url, limit: u64) -> Result<Option<Vec<u8>>, HttpError> {
        let request = Request { accepts_coding: true, ..Request::get(url) };
        self.small_answer(&request, limit.min(METADATA_LEN_MAX))
    }

    /// As [`metadata_once`](Self::metadata_once), but returns a reader that decodes the answer while it arrives. How much is read is for the
    /// caller to bound.
    ///
    /// # Errors
    /// If the server cannot be reached, answers another status, or used a coding that is not known.
    pub fn metadata_reader(&self, url: &Url) -> Result<Option<Box<dyn Read + Send>>, HttpError> {
        let Response { head, body } = self.send(&Request { accepts_coding: true, ..Request::get(url) })?;
        match head.status {
            200 => self.options.codings.reader(body, &names(&head)?).map(Some),
            _ => self.absent(url, &head, body).map(|()| None),
        }
    }

    /// Sends a request, and reads its small response.
    pub fn small_answer(&self, request: &Request<'_>, limit: u64) -> Result<Option<Vec<u8>>, HttpError> {
        let Response { head, body } = self.send(request)?;
        match head.status {
            200 | 201 | 204 => {
                let bytes = body.read_all(limit)?;
                self.options.codings.decoded(bytes, &names(&head)?, limit).map(Some)
            }
            // A token may allow to write alone.
            403 if request.method == Method::Head => Ok(None),
            _ => self.absent(request.url, &head, body).map(|()| None),
        }
    }

    fn absent(&self, url: &Url, head: &Head, body: Body) -> Result<(), HttpError> {
        let (status, retry_after) = (head.status, head.retry_after());
        body.drain();
        match (self.says_absent(status, url), status) {
            (true, _) => Ok(()),
            (false, 401) if let Some(from) = self.options.credentials.source_for(url.origin()) => {
                Err(HttpError::Denied { from })
            }
            (false, _) => Err(HttpError::Status { status, retry_after }),
        }
    }
}

/// Sends a request and waits for the head of the final response.
fn exchange(connection: &mut Connection, bytes: &[u8], mention: &dyn Fn()) -> Result<Head, HttpError> {
    connection.send(bytes)?;
    if !connection.becomes_readable(MENTIONED_AFTER) {
        mention();
    }
    connection.read_final_head()
}
