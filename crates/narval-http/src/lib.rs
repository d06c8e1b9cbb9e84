//! An HTTP server engine: HTTP/1.1, HTTP/2 and WebSocket, with plain blocking handlers.
//!
//! A handler is an ordinary function from a [`Request`] to a [`Response`]. A pool of worker threads runs the handlers, and
//! a few shards, one thread each, multiplex all sockets by epoll or io_uring. There is no `async`.
//!
//! ```no_run
//! use narval_http::{Compression, Listen, Request, Router, Server};
//!
//! fn greet(request: Request) -> String {
//!     format!("Hello, {}!\n", request.params().get("name").unwrap_or("world"))
//! }
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let app = Router::new().layer(Compression::default()).get("/hello/@name", greet).build()?;
//!     Server::builder(app).listen(Listen::Tcp("127.0.0.1:8080".parse()?)).build()?.run()?;
//!     Ok(())
//! }
//! ```
//!
//! # Where to look
//!
//! - [`Router`]: maps paths and methods to handlers, with [`Middleware`] around them ([`Compression`], [`Cors`], [`Timeout`],
//!   [`RateLimit`], [`BodyLimit`], [`SecurityHeaders`], [`SameOrigin`], [`BasicAuth`], [`BearerAuth`], [`Trace`]).
//! - [`Handler`]: answers requests; [`IntoResponse`]: the types that a handler may return; [`Reject`]: early answers;
//!   [`Router::errors`]: what clients get when something goes wrong.
//! - [`mod@test`]: tests without sockets.
//! - [`Body`]: from memory, from files, produced on demand ([`BodySource`]), or written while it is sent
//!   ([`BodyWriter`]); [`EventStream`]: server-sent events; [`Topic`]: the same to many; [`Responder`]: answers that follow later.
//! - [`RequestBody`]: reads request bodies, in whole or as they arrive; [`Multipart`]: forms; [`Cookie`]: cookies.
//! - [`files`]: static sites. [`ws`]: WebSockets.
//! - `tls`: certificates. A server with TLS also speaks HTTP/2; handlers need not know.
//! - [`Limits`]: the maximum of every queue, buffer and timeout. The defaults suit servers on the open internet.
//! - [`ServerHandle`]: counters, and a stop that lets running requests finish.
//! - [`semantics`]: ranges, conditions, content negotiation, paths and dates, as functions over bytes.
//!
//! # What blocks what
//!
//! A slow handler occupies a worker, and no other request waits for it while a worker is free. A slow client occupies no
//! worker: small request bodies are complete before their handler runs, handlers of large ones run on threads of their
//! own, and a response is produced as fast as its client reads. When all workers are busy, requests wait in a bounded
//! queue; when that is full, they are answered 503.
//!
//! # Features
//!
//! - `tls` (default): TLS by rustls, and HTTP/2.
//! - `brotli` (default): the content coding `br`.

mod http1;
mod http2;
mod io;
mod limits;
mod message;
mod observe;
mod peer;
mod run;
#[cfg(any(test, feature = "sim"))]
#[doc(hidden)]
pub mod sim;
#[cfg(not(feature = "tls"))]
mod tls;
#[cfg(feature = "tls")]
pub mod tls;
mod web;
pub mod ws;

/// What handlers that serve their own representations need of HTTP (RFC 9110), as functions over bytes.
pub mod semantics {
    pub use crate::http1::{ProtoError, accept, conditional, date, path, range};
}

/// The codecs, for fuzz targets and tests. They change with the engine.
#[doc(hidden)]
pub mod codecs {
    pub use crate::http1::{chunked, head, multipart};
    pub mod ws {
        pub use crate::ws::codec::*;
    }
}

pub use bytes::Bytes;
pub use http::{Extensions, HeaderName, HeaderValue, Method, StatusCode, Version, header};
pub use http1::head_parts::{HandedOver, HeadParts, HeadRef, Span};
pub use http1::response_head::Prepared;
pub use io::listen::{Listen, ListenAddress, OpenedListener};
pub use io::unsafe_calls::give_back_large_blocks;
pub use limits::Limits;
pub use message::body::Body;
pub use message::body::source::{BodySource, BodyWaker, FileRange, Fill, SegmentBuf};
pub use message::body::writer::BodyWriter;
pub use message::cookie::{Cookie, SameSite, SignedCookies};
pub use message::departure::Departure;
pub use message::handler::{Handler, IntoHandler};
pub use message::into_response::{IntoResponse, Json};
pub use message::invalid_header::InvalidHeader;
pub use message::reject::Reject;
pub use message::request::path_params::PathParams;
pub use message::request::{Request, RequestBody};
pub use message::responder::Responder;
pub use message::response::Response;
pub use observe::access_log::{AccessLog, Entry as AccessEntry};
pub use observe::counters::Snapshot;
pub use observe::histogram::Histogram;
pub use observe::log_format::{LogFormat, LogWriter};
pub use observe::logfmt::push_logfmt;
pub use observe::request_id::RequestId;
pub use peer::{InvalidProxy, Peer, Remote, TrustedProxy, network};
pub use run::server::{Builder, DriverChoice, Server, ServerError, ServerHandle, StopSignals};
pub use web::compress::Compression;
pub use web::cors::Cors;
pub use web::events::{Event, EventOptions, EventStream};
pub use web::files;
pub use web::layers::auth::{BasicAuth, BearerAuth};
pub use web::layers::body_limit::BodyLimit;
pub use web::layers::rate_limit::RateLimit;
pub use web::layers::same_origin::SameOrigin;
pub use web::layers::security_headers::SecurityHeaders;
pub use web::layers::timeout::Timeout;
pub use web::layers::trace::Trace;
pub use web::middleware::{Middleware, Next, Wrapped, wrap};
pub use web::multipart_reader::{Multipart, PartReader};
pub use web::router::{Failure, HandlerPanicked, Pattern, PatternError, Problems, RouteError, Router, RoutingTable};
pub use web::test;
pub use web::topic::{Member, Topic};
