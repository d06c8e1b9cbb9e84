//! WebSockets: RFC 6455, with compressed messages (RFC 7692).
//!
//! A request becomes a WebSocket by answering it with what [`Upgrade::accept`] gives. From then on a [`WsHandler`] is
//! called with the events of the connection, one after the other, on worker threads; and any thread that holds a
//! [`WebSocket`] may send. An open connection on which nothing happens holds no buffer and no thread.
//!
//! ```
//! use std::sync::Arc;
//!
//! use narval_http::ws::{Upgrade, UpgradeError, WebSocket, WsEvent};
//! use narval_http::{Request, Response};
//!
//! fn greet(request: Request) -> Result<Response, UpgradeError> {
//!     let (response, socket) = Upgrade::new(&request)?.accept(Arc::new(|socket: &WebSocket, event| {
//!         if let WsEvent::Message(message) = event {
//!             socket.send(message);
//!         }
//!     }));
//!     socket.send("welcome"); // waits for the response, then goes out
//!     Ok(response)
//! }
//! ```
//!
//! The protocol itself is in [`codec`], which knows nothing of sockets and threads.

pub mod codec;
mod handler;
mod handshake;
mod inbox;
mod options;
mod outbox;
mod run;
mod socket;
mod stream;
mod upgrade;

pub use codec::{CloseCode, CloseFrame, Frame, Message, ProtocolError, WsLimits};
pub use handler::{CloseReason, WsError, WsEvent, WsHandler};
pub use handshake::UpgradeError;
pub use options::{Options, WsCompression};
pub use socket::{SendStatus, SharedMessage, WebSocket};
pub use upgrade::Upgrade;

pub(crate) use run::Turn;
pub(crate) use socket::Shared;
pub(crate) use stream::{Stream, start};
pub(crate) use upgrade::Accepted;
