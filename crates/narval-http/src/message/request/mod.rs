pub(crate) mod form_values;
pub(crate) mod path_params;
mod query;

use std::any::Any;
use std::io::{self, Read};
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};

use serde::de::DeserializeOwned;

use crate::http1::ProtoError;
use crate::http1::head::{HeadLimits, parse_head};
use crate::http1::head_parts::{HeadParts, HeadRef};
use crate::message::body::memory::{Buffered, Share};
use crate::message::body::pipe::BodyPipe;
use crate::message::departure::Departure;
use crate::message::informational::{Informational, Informer};
use crate::message::reject::Reject;
use crate::message::request::path_params::PathParams;
use crate::observe::request_id::RequestId;
use crate::peer::{Peer, Remote};

/// A request as passed to a handler.
#[derive(Debug)]
pub struct Request {
    head: Bytes,
    parts: HeadParts,
    remote: Remote,
    body: RequestBody,
    pub(crate) params: PathParams,
    pub(crate) id: RequestId,
    pub(crate) departure: Departure,
    pub(crate) informer: Option<Informer>,
    extensions: Extensions,
}

impl Request {
    /// Creates a request from its parts: the bytes of the head, the result of parsing them, the peer and the body.
    pub fn new(head: Bytes, parts: HeadParts, remote: impl Into<Remote>, body: RequestBody) -> Self {
        Self {
            head,
            parts,
            remote: remote.into(),
            body,
            params: PathParams::default(),
            id: RequestId::NONE,
            departure: Departure::default(),
            informer: None,
            extensions: Extensions::new(),
        }
    }

    /// Creates a request from the text of its head and its body, with a unix socket as the peer. For tests of more than one
    /// function there is [`test`](mod@crate::test).
    ///
    /// ```
    /// use narval_http::{Bytes, Handler, Request, StatusCode};
    ///
    /// let handler = |request: Request| format!("you asked for {}", request.path());
    /// let request = Request::parse("GET /x HTTP/1.1\r\nHost: h\r\n\r\n", Bytes::new())?;
    /// assert_eq!(handler.handle(request).status(), StatusCode::OK);
    /// # Ok::<(), narval_http::Reject>(())
    /// ```
    ///
    /// # Errors
    /// A malformed or incomplete head.
    pub fn parse(head: impl Into<Bytes>, body: impl Into<Bytes>) -> Result<Self, Reject> {
        let head = head.into();
        let parsed =
            parse_head(&head, &HeadLimits::default())?.ok_or(ProtoError::bad_request("the head is incomplete"))?;
        Ok(Self::new(head, parsed.parts, Peer::Unix, body.into().into()))
    }

    /// The path parameters of the matching route.
    ///
    /// ```
    /// use narval_http::{Request, Router};
    ///
    /// let object = |request: Request| format!("object {}\n", request.params().get("id").unwrap_or_default());
    /// let app = Router::new().get("/objects/@id", object).build()?;
    /// # Ok::<(), narval_http::RouteError>(())
    /// ```
    pub fn params(&self) -> &PathParams {
        &self.params
    }

    /// A view of the head.
    pub fn head(&self) -> HeadRef<'_> {
        HeadRef::new(&self.head, &self.parts, &self.remote)
    }

    /// Takes what the handler's `inline` has [handed over](HeadRef::hand_over), if it is of this type.
    ///
    /// ```
    /// use narval_http::{Handler, HeadRef, Request, Response, StatusCode};
    ///
    /// struct Articles;
    ///
    /// impl Handler for Articles {
    ///     fn inline(&self, head: &HeadRef<'_>) -> Option<Response> {
    ///         let number: u64 = head.path().strip_prefix("/articles/")?.parse().ok()?;
    ///         head.hand_over(number);
    ///         None
    ///     }
    ///
    ///     fn handle(&self, mut request: Request) -> Response {
    ///         match request.handed_over::<u64>() {
    ///             Some(number) => Response::text(StatusCode::OK, format!("article {number}\n")),
    ///             None => Response::new(StatusCode::NOT_FOUND),
    ///         }
    ///     }
    /// }
    ///
    /// let mut request = Request::parse("GET /articles/7 HTTP/1.1\r\nHost: h\r\n\r\n", "")?;
    /// assert!(Articles.inline(&request.head()).is_none());
    /// assert_eq!(Articles.handle(request).status(), StatusCode::OK);
    /// # Ok::<(), narval_http::Reject>(())
    /// ```
    pub fn handed_over<T: Any>(&mut self) -> Option<Box<T>> {
        self.parts.handed_over.take()
    }

    /// Copies what a [`HeadRef`] needs, so that the head can be used after the request was passed on.
    pub(crate) fn head_parts(&self) -> (Bytes, HeadParts, Remote) {
        (self.head.clone(), self.parts.clone(), self.remote.clone())
    }

    /// The request method.
    pub fn method(&self) -> &Method {
        &self.parts.method
    }

    /// HTTP/1.0, HTTP/1.1 or HTTP/2.
    pub fn version(&self) -> Version {
        self.parts.version
    }

    /// The path, percent-encoded as sent, without the query.
    pub fn path(&self) -> &str {
        self.head().path()
    }

    /// The query, percent-encoded as sent, without its `?`.
    pub fn query(&self) -> Option<&str> {
        self.head().query()
    }

    /// The value of the first field line with this name, in any case; `None` if there is none, or if it is not UTF-8.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head().header(name)
    }

    /// The value of the first field line with this name, in any case, as it was sent: any bytes but control characters.
    ///
    /// ```
    /// use narval_http::{Bytes, Request};
    ///
    /// let head = Bytes::from_static(b"GET / HTTP/1.1\r\nHost: h\r\nX-Text: caf\xc3\xa9\r\nX-Latin: caf\xe9\r\n\r\n");
    /// let request = Request::parse(head, Bytes::new())?;
    /// assert_eq!(request.header("x-text"), Some("café"));
    /// assert_eq!((request.header("x-latin"), request.header_bytes("x-latin")), (None, Some(&b"caf\xe9"[..])));
    /// # Ok::<(), narval_http::Reject>(())
    /// ```
    pub fn header_bytes(&self, name: &str) -> Option<&[u8]> {
        self.head().header_bytes(name)
    }

    /// Its id, for logs.
    pub fn id(&self) -> &RequestId {
        &self.id
    }

    /// The other side of the connection: the client, or a proxy; see [`client_ip`](Self::client_ip).
    pub fn peer(&self) -> &Peer {
        self.remote.peer()
    }

    /// The certificate that the [peer](Self::peer) has presented over TLS, as DER, and behind it those that it sent with it; see
    /// [`HeadRef::peer_certificates`].
    ///
    /// ```
    /// use narval_http::{Bytes, Reject, Request, Router, StatusCode, test};
    ///
    /// fn whoami(request: Request) -> Result<String, Reject> {
    ///     let own = request.peer_certificates().first();
    ///     let own = own.ok_or(Reject::new(StatusCode::FORBIDDEN, "a client certificate is needed here"))?;
    ///     Ok(format!("a certificate of {} bytes\n", own.len()))
    /// }
    ///
    /// let app = test::client(Router::new().get("/", whoami).build()?);
    /// assert_eq!(app.get("/").send().status(), StatusCode::FORBIDDEN);
    /// let app = app.peer_certificates(vec![Bytes::from_static(b"DER")]);
    /// assert_eq!(app.get("/").send().text(), "a certificate of 3 bytes\n");
    /// # Ok::<(), narval_http::RouteError>(())
    /// ```
    pub fn peer_certificates(&self) -> &[Bytes] {
        self.remote.certificates()
    }

    /// The client's address; see [`HeadRef::client_ip`].
    ///
    /// ```no_run
    /// use narval_http::{Listen, Request, Server};
    ///
    /// let whoami = |request: Request| match request.client_ip() {
    ///     Some(ip) => format!("{ip} asked for {}://{}\n", request.scheme(), request.host().unwrap_or_default()),
    ///     None => "somebody on this machine\n".to_owned(),
    /// };
    /// let behind_nginx = Server::builder(whoami).trusted_proxies(["10.0.0.0/8", "unix"]);
    /// behind_nginx.listen(Listen::Unix("/run/whoami.sock".into())).build()?.run()?;
    /// # Ok::<(), narval_http::ServerError>(())
    /// ```
    pub fn client_ip(&self) -> Option<IpAddr> {
        self.head().client_ip()
    }

    /// `https` or `http`; see [`HeadRef::scheme`].
    pub fn scheme(&self) -> &'static str {
        self.head().scheme()
    }

    /// The host (and port) the request is for; see [`HeadRef::host`].
    pub fn host(&self) -> Option<&str> {
        self.head().host()
    }

    /// Whether the client is there. `false` once it has left, and nobody needs the answer; see [`Departure`].
    pub fn is_connected(&self) -> bool {
        !self.departure.is_gone()
    }

    /// A handle that tells when the client leaves. It can be kept after the request is gone.
    pub fn departure(&self) -> Departure {
        self.departure.clone()
    }

    /// Sends an informational response (RFC 9110 section 15.2), such as `103 Early Hints`, before the response. A
    /// handler may send any number, and so may any thread that has the request. Returns `false` if it was not sent: to HTTP/1.0
    /// clients, which do not know them, if the socket is full, and once the response has begun.
    ///
    /// ```
    /// use narval_http::{HeaderValue, Request, Response, StatusCode, header};
    ///
    /// fn page(request: Request) -> Response {
    ///     let style = (header::LINK, HeaderValue::from_static("</style.css>; rel=preload; as=style"));
    ///     // Only a hint: it does not matter whether it was sent.
    ///     let _ = request.informational(StatusCode::EARLY_HINTS, &[style]);
    ///     Response::text(StatusCode::OK, "what took a while to make")
    /// }
    /// # let _: &dyn narval_http::Handler = &page;
    /// ```
    ///
    /// # Errors
    /// The status is not informational (`100 Continue` and `101 Switching Protocols` are sent by the engine), or the
    /// connection is broken.
    pub fn informational(&self, status: StatusCode, fields: &[(HeaderName, HeaderValue)]) -> io::Result<bool> {
        let message = Informational::new(status, fields)?;
        let informer = self.informer.as_ref().filter(|_| Informational::is_known_to(self.version()));
        informer.map_or(Ok(false), |informer| informer.send(&message, &self.departure))
    }

    /// The body.
    pub fn body(&mut self) -> &mut RequestBody {
        if self.body.content_type.is_empty()
            && let Some(value) = HeadRef::new(&self.head, &self.parts, &self.remote).header_bytes("content-type")
        {
            self.body.content_type = self.head.slice_ref(value);
        }
        &mut self.body
    }

    /// What a middleware has found out about the request.
    ///
    /// ```
    /// use narval_http::{Next, Reject, Request, Response, Router, StatusCode};
    ///
    /// #[derive(Clone)]
    /// struct User(String);
    ///
    /// fn sign_in(mut request: Request, next: Next<'_>) -> Result<Response, Reject> {
    ///     let name = request.header("x-user").ok_or(Reject::new(StatusCode::UNAUTHORIZED, "who are you?"))?;
    ///     let user = User(name.to_owned());
    ///     request.extensions_mut().insert(user);
    ///     Ok(next.run(request))
    /// }
    ///
    /// fn me(request: Request) -> Option<String> {
    ///     request.extension::<User>().map(|user| user.0.clone())
    /// }
    ///
    /// let app = Router::new().layer(sign_in).get("/me", me).build()?;
    /// # Ok::<(), narval_http::RouteError>(())
    /// ```
    pub fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<&T> {
        self.extensions.get()
    }

    /// Values for the handlers and middlewares further inside, one of each type; see [`extension`](Self::extension).
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }
}

/// The body of a request, read with [`io::Read`].
///
/// A body of up to [`Limits::body_buffer_max`](crate::Limits::body_buffer_max) is in memory before the handler runs. A
/// larger one is received as the handler reads it. A client that expects `100 Continue` gets it at
/// the first read, or earlier if many bodies are being received.
#[derive(Debug, Default)]
pub struct RequestBody {
    buffered: Bytes,
    /// Its share of the memory for bodies, if it came over a connection.
    _share: Option<Share>,
    /// The trailers of a buffered body.
    trailers: HeaderMap,
    pipe: Option<Arc<BodyPipe>>,
    /// As the head says; empty if it does not.
    content_type: Bytes,
    /// How many more bytes may be read, and the limit that was set.
    limit: Option<(u64, u64)>,
}

impl RequestBody {
    pub(crate) fn streamed(pipe: Arc<BodyPipe>) -> Self {
        Self { pipe: Some(pipe), ..Self::default() }
    }

    pub(crate) fn buffered(body: Buffered, trailers: HeaderMap) -> Self {
        Self { buffered: body.bytes.into(), _share: Some(body.share), trailers, ..Self::default() }
    }

    /// Where it is received while it is read, if it is.
    pub(crate) fn pipe(&self) -> Option<&Arc<BodyPipe>> {
        self.pipe.as_ref()
    }

    /// The trailer fields of a chunked body (RFC 9110 section 6.5); empty until the body has been read to its end. They
    /// are sent by the client, and never merged into the fields of the head.
    pub fn trailers(&self) -> HeaderMap {
        match &self.pipe {
            Some(pipe) => pipe.trailers(),
            None => self.trailers.clone(),
        }
    }
}

/// Reading the whole body. Choose a limit for each handler: it bounds the memory of a request.
impl RequestBody {
    /// Reads the rest of the body, up to `bytes_max` bytes.
    ///
    /// ```
    /// use narval_http::{Bytes, Handler, Request, StatusCode};
    ///
    /// fn note(mut request: Request) -> std::io::Result<String> {
    ///     Ok(format!("{} bytes", request.body().bytes(1000)?.len()))
    /// }
    ///
    /// let post = |body: &'static str| Request::parse("POST / HTTP/1.1\r\nHost: h\r\n\r\n", Bytes::from(body));
    /// assert_eq!(note(post("hello")?).unwrap(), "5 bytes");
    /// let long = Box::leak("x".repeat(1001).into_boxed_str());
    /// assert_eq!(note.handle(post(long)?).status(), StatusCode::PAYLOAD_TOO_LARGE);
    /// # Ok::<(), narval_http::Reject>(())
    /// ```
    ///
    /// # Errors
    /// The body is larger, or was aborted. A handler that returns the error answers 413, or the status that fits the
    /// error.
    pub fn bytes(&mut self, bytes_max: usize) -> io::Result<Bytes> {
        let body = match &self.pipe {
            None if self.limit.is_none() => std::mem::take(&mut self.buffered),
            _ => {
                let mut body = Vec::new();
                self.by_ref().take((bytes_max as u64).saturating_add(1)).read_to_end(&mut body)?;
                body.into()
            }
        };
        if body.len() > bytes_max {
            return Err(too_large(bytes_max as u64).into());
        }
        Ok(body)
    }

    /// Whatever reads it: no more than this.
    pub(crate) fn limit(&mut self, bytes_max: u64) {
        if self.limit.is_none_or(|(left, _)| left > bytes_max) {
            self.limit = Some((bytes_max, bytes_max));
        }
    }

    /// Whether the media type, without its parameters, fits.
    fn is_of_type(&self, fits: impl FnOnce(&str) -> bool) -> bool {
        let essence = self.content_type.split(|byte| *byte == b';').next().unwrap_or_default();
        std::str::from_utf8(essence.trim_ascii()).is_ok_and(|essence| fits(&essence.to_ascii_lowercase()))
    }

    /// Reads the rest of the body as UTF-8.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes), and 400 if it is not UTF-8.
    pub fn text(&mut self, bytes_max: usize) -> io::Result<String> {
        let malformed = |_| ProtoError::bad_request("the request body is not UTF-8").into();
        String::from_utf8(self.bytes(bytes_max)?.into()).map_err(malformed)
    }

    /// Reads the rest of the body as JSON: of the media type `application/json`, or one that ends in `+json`. Pages of other
    /// sites cannot send these without the server's consent ([`Cors`](crate::Cors)).
    ///
    /// ```
    /// use narval_http::{Request, Router, StatusCode, test};
    ///
    /// fn sum(mut request: Request) -> std::io::Result<String> {
    ///     let numbers: Vec<i64> = request.body().json(10_000)?;
    ///     Ok(numbers.iter().sum::<i64>().to_string())
    /// }
    ///
    /// let app = test::client(Router::new().post("/sum", sum).build()?);
    /// assert_eq!(app.post("/sum").json(&[1, 2, 39]).send().text(), "42");
    /// assert_eq!(app.post("/sum").body("[1, 2, 39]").send().status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    /// # Ok::<(), narval_http::RouteError>(())
    /// ```
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes), 415 if it is of another media type, and 400 with the reason and its place if it is not JSON of
    /// this form.
    pub fn json<T: DeserializeOwned>(&mut self, bytes_max: usize) -> io::Result<T> {
        if !self.is_of_type(|essence| essence == "application/json" || essence.ends_with("+json")) {
            return Err(unsupported("the request body must be of the type application/json").into());
        }
        self.json_of_any_type(bytes_max)
    }

    /// Reads the rest of the body as JSON, whatever its media type.
    ///
    /// # Errors
    /// As [`json`](Self::json), without the 415.
    pub fn json_of_any_type<T: DeserializeOwned>(&mut self, bytes_max: usize) -> io::Result<T> {
        let malformed = |error| Reject::new(StatusCode::BAD_REQUEST, format!("the request body: {error}"));
        Ok(serde_json::from_slice(&self.bytes(bytes_max)?).map_err(malformed)?)
    }

    /// Reads the rest of the body as a form, `application/x-www-form-urlencoded`, into a struct with a field for each name, as
    /// [`Request::query_as`] does. Forms with files are [`multipart`](Request::multipart).
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes), 415 if it is of another media type, and 400 with the name and the reason.
    pub fn form<T: DeserializeOwned>(&mut self, bytes_max: usize) -> io::Result<T> {
        if !self.is_of_type(|essence| essence == "application/x-www-form-urlencoded") {
            return Err(unsupported("the request body must be of the type application/x-www-form-urlencoded").into());
        }
        let malformed = |reason| Reject::new(StatusCode::BAD_REQUEST, reason);
        Ok(form_values::parse(&self.text(bytes_max)?).map_err(malformed)?)
    }
}

impl From<Bytes> for RequestBody {
    fn from(buffered: Bytes) -> Self {
        Self { buffered, ..Self::default() }
    }
}

impl Read for RequestBody {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = match &self.pipe {
            Some(pipe) => pipe.read(out)?,
            None => {
                let n = self.buffered.len().min(out.len());
                out[..n].copy_from_slice(&self.buffered.split_to(n));
                n
            }
        };
        if let Some((left, limit)) = &mut self.limit {
            *left = left.checked_sub(n as u64).ok_or_else(|| too_large(*limit))?;
        }
        Ok(n)
    }
}

fn too_large(bytes_max: u64) -> Reject {
    Reject::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the request body has more than {bytes_max} bytes"))
}

fn unsupported(reason: &'static str) -> Reject {
    Reject::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, reason)
}
