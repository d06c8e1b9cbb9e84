use std::io::{self, Read};
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};

use serde::de::DeserializeOwned;

use super::body_pipe::BodyPipe;
use super::departure::Departure;
use super::informational::{self, Informational};
use super::path_params::PathParams;
use crate::http1::ProtoError;
use crate::http1::conn::body_memory::{Buffered, Share};
use crate::http1::head::{HeadLimits, parse_head};
use crate::http1::head_parts::{HeadParts, HeadRef};
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
        }
    }

    /// Creates a request from the text of its head and its body, with a unix socket as the peer: for testing handlers
    /// without sockets.
    ///
    /// ```
    /// use narval_http::{Bytes, Handler, Request, StatusCode};
    ///
    /// let handler = |request: Request| format!("you asked for {}", request.path());
    /// let request = Request::parse("GET /x HTTP/1.1\r\nHost: h\r\n\r\n", Bytes::new())?;
    /// assert_eq!(handler.handle(request).status(), StatusCode::OK);
    /// # Ok::<(), narval_http::http1::ProtoError>(())
    /// ```
    ///
    /// # Errors
    /// A malformed or incomplete head.
    pub fn parse(head: impl Into<Bytes>, body: impl Into<Bytes>) -> Result<Self, ProtoError> {
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

    /// Copies what a [`HeadRef`] needs, so that the head can be used after the request was passed on.
    pub(crate) fn head_parts(&self) -> (Bytes, HeadParts, Remote) {
        (self.head.clone(), self.parts.clone(), self.remote.clone())
    }

    /// The request method.
    pub fn method(&self) -> &Method {
        &self.parts.method
    }

    /// HTTP/1.0 or HTTP/1.1.
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
    /// # Ok::<(), narval_http::http1::ProtoError>(())
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
    /// handler may send any number, on the thread it was called on. Returns `false` if it was not sent: to HTTP/1.0
    /// clients, which do not know them, if the socket is full, and on another thread (see
    /// [`Responder::informational`](crate::Responder::informational)).
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
        if Informational::is_known_to(self.version()) {
            informational::send(self.address(), &message)
        } else {
            Ok(false)
        }
    }

    /// Identifies this request among all others.
    pub(crate) fn address(&self) -> usize {
        self.head.as_ptr().addr()
    }

    /// The body.
    pub fn body(&mut self) -> &mut RequestBody {
        &mut self.body
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
}

impl RequestBody {
    pub(crate) fn streamed(pipe: Arc<BodyPipe>) -> Self {
        Self { pipe: Some(pipe), ..Self::default() }
    }

    pub(crate) fn buffered(body: Buffered, trailers: HeaderMap) -> Self {
        Self { buffered: body.bytes.into(), _share: Some(body.share), trailers, pipe: None }
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
    /// # Ok::<(), narval_http::http1::ProtoError>(())
    /// ```
    ///
    /// # Errors
    /// The body is larger, or was aborted. A handler that returns the error answers 413, or the status that fits the
    /// error.
    pub fn bytes(&mut self, bytes_max: usize) -> io::Result<Bytes> {
        let body = match &self.pipe {
            None => std::mem::take(&mut self.buffered),
            Some(_) => {
                let mut body = Vec::new();
                self.by_ref().take((bytes_max as u64).saturating_add(1)).read_to_end(&mut body)?;
                body.into()
            }
        };
        if body.len() > bytes_max {
            return Err(ProtoError::new(StatusCode::PAYLOAD_TOO_LARGE, "the request body is too large").into());
        }
        Ok(body)
    }

    /// Reads the rest of the body as UTF-8.
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes), and 400 if it is not UTF-8.
    pub fn text(&mut self, bytes_max: usize) -> io::Result<String> {
        let malformed = |_| ProtoError::bad_request("the request body is not UTF-8").into();
        String::from_utf8(self.bytes(bytes_max)?.into()).map_err(malformed)
    }

    /// Reads the rest of the body as JSON.
    ///
    /// ```
    /// use narval_http::{Bytes, Request, StatusCode};
    ///
    /// fn sum(mut request: Request) -> std::io::Result<String> {
    ///     let numbers: Vec<i64> = request.body().json(10_000)?;
    ///     Ok(numbers.iter().sum::<i64>().to_string())
    /// }
    ///
    /// let request = Request::parse("POST / HTTP/1.1\r\nHost: h\r\n\r\n", Bytes::from("[1, 2, 39]"))?;
    /// assert_eq!(sum(request).unwrap(), "42");
    /// # Ok::<(), narval_http::http1::ProtoError>(())
    /// ```
    ///
    /// # Errors
    /// As [`bytes`](Self::bytes), and 400 if it is not JSON of this type.
    pub fn json<T: DeserializeOwned>(&mut self, bytes_max: usize) -> io::Result<T> {
        let malformed = |_| ProtoError::bad_request("the request body is not JSON of the expected form").into();
        serde_json::from_slice(&self.bytes(bytes_max)?).map_err(malformed)
    }
}

impl From<Bytes> for RequestBody {
    fn from(buffered: Bytes) -> Self {
        Self { buffered, ..Self::default() }
    }
}

impl Read for RequestBody {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let Some(pipe) = &self.pipe {
            return pipe.read(out);
        }
        let n = self.buffered.len().min(out.len());
        out[..n].copy_from_slice(&self.buffered.split_to(n));
        Ok(n)
    }
}
