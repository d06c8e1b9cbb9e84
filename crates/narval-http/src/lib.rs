//! An HTTP/1.1 engine with plain blocking handlers on threads and multiplexed sockets.
//!
//! Handlers are ordinary functions from a [`Request`] to a [`Response`]. A pool of worker threads runs them;
//! a small number of shards (one thread each) multiplex all sockets. Nobody writes `async`.
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
//! - [`Router`]: paths and methods to handlers, [`Middleware`] around them ([`Compression`], [`Cors`]).
//! - [`Handler`]: what answers; [`IntoResponse`]: what it may return.
//! - [`Body`]: answers from memory, from files, made as the client takes them ([`BodySource`]), or written meanwhile
//!   ([`BodyWriter`]); [`EventStream`]: server-sent events; [`Responder`]: answers that come later.
//! - [`Multipart`]: forms, read as they arrive. [`files`]: folders as sites. [`ws`]: WebSockets.
//! - [`proto`]: HTTP/1.1 itself, as functions over bytes.

mod access_log;
mod body;
mod body_memory;
mod clock;
mod compress;
mod connection;
mod cors;
mod counters;
mod doorbell;
mod driver;
mod early;
mod engine;
mod events;
mod exchange;
pub mod files;
mod guard;
mod handler;
mod head;
mod histogram;
mod intake;
mod into_response;
mod lease;
mod limits;
mod listen;
mod log_format;
mod mailbox;
mod middleware;
mod multipart;
mod openmetrics;
mod pool;
pub mod proto;
mod push;
mod query;
mod redirect;
mod request;
mod responder;
mod response;
mod router;
mod secure;
mod server;
mod shard;
#[cfg(any(test, feature = "sim"))]
#[doc(hidden)]
pub mod sim;
mod socket;
mod sync;
mod timers;
#[cfg(feature = "tls")]
pub mod tls;
mod transmit;
mod worker;
pub mod ws;

pub use access_log::{AccessLog, Entry as AccessEntry};
pub use body::{Body, BodySource, BodyWaker, FileRange, Fill, SegmentBuf};
pub use bytes::Bytes;
pub use compress::Compression;
pub use cors::Cors;
pub use counters::Snapshot;
pub use driver::uring::give_back_large_blocks;
pub use events::{Event, EventOptions, EventStream};
pub use handler::Handler;
pub use head::{HeadParts, HeadRef, Span};
pub use histogram::Histogram;
pub use http::{HeaderName, HeaderValue, Method, StatusCode, Version, header};
pub use into_response::IntoResponse;
pub use limits::Limits;
pub use listen::{Listen, ListenAddress};
pub use log_format::{LogFormat, LogWriter};
pub use middleware::{Middleware, Next, Wrapped, wrap};
pub use multipart::{Multipart, PartReader};
pub use push::BodyWriter;
pub use request::{Peer, Request, RequestBody};
pub use responder::Responder;
pub use response::{Prepared, Response};
pub use router::{HandlerPanicked, PathParams, Pattern, PatternError, RouteError, Router, RoutingTable};
pub use server::{Builder, DriverChoice, Server, ServerError, ServerHandle};
