//! WebSockets: RFC 6455, with compressed messages (RFC 7692), also over HTTP/2 (RFC 8441).
//!
//! A handler turns the connection of a request (over HTTP/2: its stream) into a WebSocket by returning the response of
//! [`Upgrade::accept`]. From then on, worker threads call a [`WsHandler`] with the events of the connection, one at a time,
//! and any thread that holds a [`WebSocket`] may send. An idle connection holds no buffer and no thread.
//!
//! ```
//! use narval_http::ws::{CloseCode, SendStatus, Upgrade, UpgradeError, WebSocket, WsEvent};
//! use narval_http::{Request, Response};
//!
//! fn greet(request: Request) -> Result<Response, UpgradeError> {
//!     Ok(Upgrade::new(&request)?.accept(|socket: &WebSocket, event| {
//!         let status = match event {
//!             WsEvent::Open => socket.send("welcome"),
//!             WsEvent::Message(message) => socket.send(message),
//!             _ => return,
//!         };
//!         if status == SendStatus::Dropped {
//!             socket.close(CloseCode::POLICY_VIOLATION, "too slow");
//!         }
//!     }))
//! }
//! ```
//!
//! The protocol itself is in `codec`, which knows nothing of sockets and threads.

pub(crate) mod codec;
mod error;
mod handshake;
mod inbox;
mod options;
mod outbox;
mod run;
mod socket;
mod stream;
mod upgrade;

pub use crate::message::upgrade_error::UpgradeError;
pub use codec::{CloseCode, CloseFrame, Frame, Message, ProtocolError, WsLimits};
pub use error::{CloseReason, WsError};
pub use options::{Options, WsCompression};
pub use outbox::SendStatus;
pub use socket::{SharedMessage, WebSocket, WsEvent, WsHandler};
pub use upgrade::Upgrade;

pub(crate) use run::Turn;
pub(crate) use socket::Shared;
pub(crate) use stream::{Runs, Stream, Told, start};
pub(crate) use upgrade::Accepted;
