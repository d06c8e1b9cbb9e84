//! Tests of handlers without sockets.
//!
//! ```
//! use narval_http::{Json, Request, Response, Router, StatusCode, test};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Note {
//!     text: String,
//! }
//!
//! fn add(mut request: Request) -> std::io::Result<Response> {
//!     let note: Note = request.body().json(1000)?;
//!     Ok(Response::json(StatusCode::CREATED, &note))
//! }
//!
//! let app = test::client(Router::new().post("/notes", add).build()?);
//! let answer = app.post("/notes").header("cookie", "session=ada").json(&Note { text: "hi".into() }).send();
//! assert_eq!(answer.status(), StatusCode::CREATED);
//! assert_eq!(answer.json::<Note>()?.text, "hi");
//! assert_eq!(app.post("/notes").json(&1).send().status(), StatusCode::BAD_REQUEST);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A request goes through everything that a server asks for an answer: [`Handler::inline`], middlewares, [`Handler::rejected`],
//! [`Limits::body_max`]. A panic is a 500. Bodies are read as they are produced, so event streams can be tested, and
//! [WebSockets](Ask::socket). Handlers run on the thread of the test.

mod socket;

use std::fmt;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use socket::Socket;

use crate::http1::ProtoError;
use crate::http1::head::{HeadLimits, parse_head};
use crate::limits::Limits;
use crate::message::body::reader::BodyReader;
use crate::message::handler::{Handler, IntoHandler};
use crate::message::reject::Reject;
use crate::message::request::Request;
use crate::message::response::Response;
use crate::peer::{Peer, Remote};
use crate::ws;

/// How long a test waits for an event, or a message.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// The longest body that is read in one piece, in bytes.
const BODY_MAX: usize = 256 << 20;

/// A client of an application that runs in this process.
pub fn client<Form>(handler: impl IntoHandler<Form>) -> Client {
    let handler = Arc::new(handler.into_handler(Arc::new(())));
    Client { handler, limits: Limits::default(), peer: Peer::Unix, certificates: Vec::new() }
}

/// Asks a handler; see [`client`].
#[derive(Clone)]
pub struct Client {
    handler: Arc<dyn Handler>,
    limits: Limits,
    peer: Peer,
    certificates: Vec<Bytes>,
}

impl Client {
    /// Sets the limits of the server.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets where the requests come from. Default: a unix socket.
    #[must_use]
    pub fn peer(mut self, peer: Peer) -> Self {
        self.peer = peer;
        self
    }

    /// Sets what [`Request::peer_certificates`] returns. Default: none.
    #[must_use]
    pub fn peer_certificates(mut self, chain: Vec<Bytes>) -> Self {
        self.certificates = chain;
        self
    }

    /// A request with this method. The target is a path, perhaps with a query.
    pub fn request(&self, method: Method, target: &str) -> Ask {
        Ask { client: self.clone(), method, target: target.to_owned(), fields: String::new(), body: Bytes::new() }
    }

    /// GET.
    pub fn get(&self, target: &str) -> Ask {
        self.request(Method::GET, target)
    }

    /// POST.
    pub fn post(&self, target: &str) -> Ask {
        self.request(Method::POST, target)
    }

    /// PUT.
    pub fn put(&self, target: &str) -> Ask {
        self.request(Method::PUT, target)
    }

    /// PATCH.
    pub fn patch(&self, target: &str) -> Ask {
        self.request(Method::PATCH, target)
    }

    /// DELETE.
    pub fn delete(&self, target: &str) -> Ask {
        self.request(Method::DELETE, target)
    }

    /// What a server answers.
    fn answer(&self, head: Bytes, body: Bytes) -> Response {
        let rejected = |error: ProtoError| self.handler.rejected(error.into());
        let head = match parse_head(&head, &HeadLimits::default()) {
            Ok(Some(parsed)) => (head, parsed.parts),
            Ok(None) => return rejected(ProtoError::bad_request("the head is incomplete")),
            Err(error) => return rejected(error),
        };
        if body.len() as u64 > self.limits.body_max {
            return rejected(ProtoError::new(StatusCode::PAYLOAD_TOO_LARGE, "the request body is too large"));
        }
        let (head, parts) = head;
        let remote = Remote::from(self.peer.clone()).with_certificates(self.certificates.clone());
        let had_body = !body.is_empty();
        let request = Request::new(head, parts, remote, body.into());
        let answered = catch_unwind(AssertUnwindSafe(|| {
            let inline = if had_body { None } else { self.handler.inline(&request.head()) };
            inline.unwrap_or_else(|| self.handler.handle(request)).when_answered()
        }));
        answered.unwrap_or_else(|_| self.handler.rejected(Reject::of(&io::Error::other("a handler panicked"))))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("peer", &self.peer).finish_non_exhaustive()
    }
}

/// A request that is being put together.
#[derive(Clone, Debug)]
#[must_use = "it is not sent"]
pub struct Ask {
    client: Client,
    method: Method,
    target: String,
    fields: String,
    body: Bytes,
}

impl Ask {
    /// Adds a field line.
    pub fn header(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.fields += &format!("{name}: {value}\r\n");
        self
    }

    /// Sets the body.
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// Sets the body to a value as JSON, with its media type. A value that is none is an empty body.
    pub fn json(self, value: &(impl Serialize + ?Sized)) -> Self {
        let json = serde_json::to_vec(value).unwrap_or_default();
        self.header("content-type", "application/json").body(json)
    }

    /// Sets the body to a form (`application/x-www-form-urlencoded`).
    pub fn form(self, pairs: &[(&str, &str)]) -> Self {
        let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
        self.header("content-type", "application/x-www-form-urlencoded").body(form)
    }

    /// Sends it, and returns the answer when its head is there.
    pub fn send(self) -> Answer {
        let is_head = self.method == Method::HEAD;
        let mut response = self.response();
        let has_body = !is_head && !matches!(response.status().as_u16(), 204 | 304);
        let body = response.take_body();
        Answer {
            status: response.status(),
            headers: response.headers(),
            body: BodyReader::new(if has_body { body } else { crate::Body::empty() }),
            upgrade: ws::Accepted::take(&mut response),
        }
    }

    /// Opens a WebSocket.
    ///
    /// # Errors
    /// The answer, if it is not `101 Switching Protocols`.
    pub fn socket(self) -> Result<Socket, Box<Answer>> {
        let handshake = self.header("connection", "upgrade").header("upgrade", "websocket");
        // The example of RFC 6455 section 1.3.
        let handshake = handshake.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        let mut answer = handshake.header("sec-websocket-version", 13).send();
        match answer.upgrade.take().and_then(ws::Accepted::into_shared) {
            Some(shared) => Ok(Socket::new(shared)),
            None => Err(Box::new(answer)),
        }
    }

    fn response(self) -> Response {
        let Self { client, method, target, mut fields, body } = self;
        if !body.is_empty() {
            fields += &format!("Content-Length: {}\r\n", body.len());
        }
        let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        client.answer(head.into(), body)
    }
}

/// An answer, whose body may still be on its way.
pub struct Answer {
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: BodyReader,
    upgrade: Option<ws::Accepted>,
}

impl Answer {
    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The value of the first field line with this name, in lower case, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(have, _)| have == name).and_then(|(_, value)| value.to_str().ok())
    }

    /// All field lines that the application has set.
    pub fn headers(&self) -> &[(HeaderName, HeaderValue)] {
        &self.headers
    }

    /// The whole body.
    ///
    /// # Errors
    /// Its source fails. A server would have aborted the connection.
    pub fn bytes(self) -> io::Result<Bytes> {
        let mut bytes = Vec::new();
        self.body.take(BODY_MAX as u64).read_to_end(&mut bytes)?;
        Ok(bytes.into())
    }

    /// The whole body as text.
    ///
    /// # Panics
    /// Its source fails, or it is not UTF-8: the test fails.
    #[track_caller]
    #[expect(clippy::panic, reason = "for tests, which fail by panicking")]
    pub fn text(self) -> String {
        let text = self.bytes().and_then(|bytes| String::from_utf8(bytes.into()).map_err(io::Error::other));
        text.unwrap_or_else(|error| panic!("the body of the answer: {error}"))
    }

    /// The whole body as JSON.
    ///
    /// # Errors
    /// Its source fails, or it is not JSON of this form.
    pub fn json<T: DeserializeOwned>(self) -> io::Result<T> {
        Ok(serde_json::from_slice(&self.bytes()?)?)
    }

    /// The next event of a [stream](Response::events). Waits for it, at most 20 seconds.
    ///
    /// # Errors
    /// The stream has ended, or no event comes.
    pub fn event(&mut self) -> io::Result<Received> {
        let mut event = Received::default();
        let mut has_data = false;
        loop {
            let line = self.line()?;
            let (field, value) = line.split_once(": ").unwrap_or((&line, ""));
            match field {
                "event" => event.name = Some(value.to_owned()),
                "id" => event.id = Some(value.to_owned()),
                "data" => {
                    if has_data {
                        event.data.push('\n');
                    }
                    event.data += value;
                    has_data = true;
                }
                "" if has_data => return Ok(event),
                _ => {}
            }
        }
    }

    fn line(&mut self) -> io::Result<String> {
        self.body.wait_at_most(WAIT_MAX);
        let mut line = Vec::new();
        loop {
            let mut byte = [0];
            match self.body.read(&mut byte)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ if byte == *b"\n" => return String::from_utf8(line).map_err(io::Error::other),
                _ => line.extend(byte),
            }
        }
    }
}

/// Its body, as it arrives.
impl Read for Answer {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.body.read(out)
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("status", &self.status).field("headers", &self.headers).finish_non_exhaustive()
    }
}

/// An event that was received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Its type, if it has one.
    pub name: Option<String>,
    /// Its id, if it has one.
    pub id: Option<String>,
    /// Its text.
    pub data: String,
}
