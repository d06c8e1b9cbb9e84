use std::sync::Arc;

use super::codec::extension::Agreement;
use super::handshake::{self, Handshake};
use super::options::{Options, WsCompression};
use super::socket::WsHandler;
use super::socket::{Deflate, Shared, WebSocket};
use crate::message::request::Request;
use crate::message::response::Response;
use crate::message::upgrade_error::UpgradeError;

/// A valid WebSocket handshake, to be accepted.
///
/// ```
/// use narval_http::ws::{CloseCode, Upgrade, UpgradeError, WebSocket, WsCompression, WsEvent};
/// use narval_http::{Request, Response};
///
/// fn echo(request: Request) -> Result<Response, UpgradeError> {
///     let upgrade = Upgrade::new(&request)?.compress(WsCompression::default())?;
///     Ok(upgrade.accept(|socket: &WebSocket, event| {
///         if let WsEvent::Message(message) = event
///             && !socket.send(message).is_accepted()
///         {
///             socket.close(CloseCode::POLICY_VIOLATION, "too slow");
///         }
///     }))
/// }
/// # let _: &dyn narval_http::Handler = &echo;
/// ```
#[derive(Debug)]
pub struct Upgrade<'a> {
    request: &'a Request,
    handshake: Handshake,
    deflate: Option<(Agreement, WsCompression)>,
    options: Options,
}

impl<'a> Upgrade<'a> {
    /// Validates the request. Any web page may open a WebSocket to any server, with the user's cookies: where these
    /// matter, call [`same_origin`](Self::same_origin) as well.
    ///
    /// # Errors
    /// The request is not a valid WebSocket handshake (RFC 6455 section 4.2.1). Converted to a [`Response`], the error
    /// is the answer.
    pub fn new(request: &'a Request) -> Result<Self, UpgradeError> {
        let handshake = Handshake::check(&request.head())?;
        Ok(Self { request, handshake, deflate: None, options: Options::default() })
    }

    /// Refuses pages of other origins (RFC 6455 section 10.2).
    ///
    /// # Errors
    /// [`UpgradeError::Origin`] if the request has an `Origin` whose host is not the request's.
    pub fn same_origin(self) -> Result<Self, UpgradeError> {
        handshake::check_same_origin(&self.request.head())?;
        Ok(self)
    }

    /// Chooses the first of `supported` subprotocols that the client offers; see [`protocol`](Self::protocol).
    ///
    /// # Errors
    /// [`UpgradeError::Protocols`] if the offer is malformed.
    pub fn protocols(mut self, supported: &[&str]) -> Result<Self, UpgradeError> {
        self.handshake.choose_protocol(&self.request.head(), supported)?;
        Ok(self)
    }

    /// The chosen subprotocol; `None` if there is none in common.
    pub fn protocol(&self) -> Option<&str> {
        self.handshake.protocol()
    }

    /// Compresses messages if the client offers it.
    ///
    /// # Errors
    /// [`UpgradeError::Extensions`] if the offer is malformed.
    pub fn compress(mut self, compression: WsCompression) -> Result<Self, UpgradeError> {
        let agreed = handshake::negotiate(&self.request.head(), compression.context_takeover)?;
        self.deflate = agreed.map(|agreed| (agreed, compression));
        Ok(self)
    }

    /// Sets limits and timeouts.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Returns the 101 response (over HTTP/2: 200), to be returned by the request's handler. From then on `handler` gets the events of the
    /// connection, [`WsHandler::open`] first.
    pub fn accept(self, handler: impl WsHandler) -> Response {
        self.accept_with_handle(handler).0
    }

    /// [`accept`](Self::accept), with a handle on the new WebSocket. It may be used at once: messages are sent after the
    /// response. If the response is dropped, the socket is closed, and `handler` gets no event.
    pub fn accept_with_handle(self, handler: impl WsHandler) -> (Response, WebSocket) {
        let deflate = self.deflate.map(|(agreed, compression)| Deflate::new(agreed, compression));
        let shared = Shared::new(self.request.peer().clone(), self.options, deflate, Box::new(handler));
        let mut response = self.handshake.response(self.deflate.map(|(agreed, _)| agreed));
        response.upgrade = Some(Box::new(Accepted { shared: Some(shared.clone()) }));
        (response, WebSocket { shared })
    }
}

/// A WebSocket whose response is not sent yet.
#[derive(Debug)]
pub(crate) struct Accepted {
    shared: Option<Arc<Shared>>,
}

impl Accepted {
    /// That of a response.
    pub(crate) fn take(response: &mut Response) -> Option<Self> {
        response.upgrade.take()?.downcast().ok().map(|accepted| *accepted)
    }

    /// The response is being sent.
    pub(crate) fn into_shared(mut self) -> Option<Arc<Shared>> {
        self.shared.take()
    }
}

impl Drop for Accepted {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.take() {
            shared.out.detach();
        }
    }
}
