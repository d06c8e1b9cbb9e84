//! Why a request for a WebSocket is refused: beside `Reject`, which an error handler makes of it.

/// Why a request is not a valid handshake. Converted to a [`Response`](crate::Response), it is 426 if the client must use another
/// protocol or version, 400 for a broken handshake, and 403 for a foreign origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UpgradeError {
    /// The request has no Upgrade to WebSocket.
    #[error("this resource is a WebSocket: an Upgrade request is required")]
    NotAnUpgrade,
    /// The request is not a GET of HTTP/1.1 without a body, nor an extended CONNECT of HTTP/2.
    #[error("a WebSocket handshake is a GET request of HTTP/1.1 without a body")]
    NotAGet,
    /// The version is not 13.
    #[error("WebSocket version 13 is required")]
    Version,
    /// `Sec-WebSocket-Key` is missing, duplicate, or not 16 bytes of base64.
    #[error("Sec-WebSocket-Key must be 16 bytes in base64")]
    Key,
    /// `Sec-WebSocket-Extensions` is not an extension list.
    #[error("malformed Sec-WebSocket-Extensions")]
    Extensions,
    /// `Sec-WebSocket-Protocol` is not a list of tokens.
    #[error("malformed Sec-WebSocket-Protocol")]
    Protocols,
    /// The page is from another host.
    #[error("WebSockets from other origins are not allowed")]
    Origin,
}
