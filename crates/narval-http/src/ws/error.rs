//! Why a WebSocket has ended.

use super::codec::{CloseCode, CloseFrame, ProtocolError};

/// Why a connection ended without a closing handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WsError {
    /// The client violated the protocol, or sent a message that is too large.
    #[error("the client violated the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// The connection ended without a Close frame.
    #[error("the connection was lost")]
    Lost,
    /// The client did not answer a Ping.
    #[error("the client did not answer a ping")]
    PingTimeout,
    /// The client did not read queued data in time.
    #[error("the client did not read what was sent")]
    WriteTimeout,
    /// The client did not complete the closing handshake.
    #[error("the client did not complete the closing handshake")]
    CloseTimeout,
    /// It held more than others for a client that does not read or sends too much, when memory was short
    /// ([`Limits::output_memory_max`](crate::Limits::output_memory_max)).
    #[error("the server ran out of memory for what its clients do not read")]
    TooSlow,
    /// The handler panicked.
    #[error("the handler panicked")]
    Panicked,
}

/// How a connection was closed; like the `CloseEvent` of browsers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseReason {
    /// The close code: the client's, or ours if we failed the connection; 1005 if the Close frame had none, 1006
    /// without a Close frame.
    pub code: u16,
    /// The reason in the Close frame.
    pub reason: String,
    /// Whether the closing handshake was completed.
    pub is_clean: bool,
}

impl CloseReason {
    /// A Close frame without a code (RFC 6455 section 7.1.5).
    pub const NO_CODE: u16 = 1005;
    /// No Close frame (RFC 6455 section 7.1.5).
    pub const ABNORMAL: u16 = 1006;

    pub(crate) fn clean(frame: Option<CloseFrame>) -> Self {
        match frame {
            Some(CloseFrame { code, reason }) => Self { code: code.get(), reason, is_clean: true },
            None => Self { code: Self::NO_CODE, reason: String::new(), is_clean: true },
        }
    }

    /// The connection was failed with `code`; `None`: it was lost.
    pub(crate) fn failed(code: Option<CloseCode>, error: WsError) -> Self {
        Self { code: code.map_or(Self::ABNORMAL, CloseCode::get), reason: error.to_string(), is_clean: false }
    }
}
