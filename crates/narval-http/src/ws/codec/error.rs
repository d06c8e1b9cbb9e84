//! Violations of the protocol, and the codes that connections are closed with (RFC 6455 section 7.4).

use super::utf8::InvalidUtf8;

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CloseCode(u16);

impl CloseCode {
    /// Normal closure.
    pub const NORMAL: Self = Self(1000);
    /// The server is shutting down, or the user has left the page.
    pub const GOING_AWAY: Self = Self(1001);
    /// A protocol error.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// A type of data that the endpoint does not accept.
    pub const UNSUPPORTED_DATA: Self = Self(1003);
    /// Data that does not fit its message type: text that is not UTF-8, an invalid compressed message.
    pub const INVALID_DATA: Self = Self(1007);
    /// A message that violates a rule of the application.
    pub const POLICY_VIOLATION: Self = Self(1008);
    /// A message larger than the limit.
    pub const MESSAGE_TOO_BIG: Self = Self(1009);
    /// An unexpected condition.
    pub const INTERNAL_ERROR: Self = Self(1011);
    /// The server restarts.
    pub const SERVICE_RESTART: Self = Self(1012);
    /// The server is overloaded.
    pub const TRY_AGAIN_LATER: Self = Self(1013);

    /// Makes a close code that is allowed in a Close frame: 1000–1003, 1007–1014 and 3000–4999. The others are
    /// reserved, or mean that there was no frame.
    ///
    /// ```
    /// use narval_http::ws::CloseCode;
    /// assert_eq!(CloseCode::new(1000), Some(CloseCode::NORMAL));
    /// assert_eq!(CloseCode::new(1005), None);
    /// ```
    pub const fn new(code: u16) -> Option<Self> {
        match code {
            1000..=1003 | 1007..=1014 | 3000..=4999 => Some(Self(code)),
            _ => None,
        }
    }

    /// The code as a number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// A protocol violation. The connection must be closed with [`ProtocolError::close_code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// RSV2 or RSV3 is set, or RSV1 on a frame that starts no message or without negotiated compression.
    #[error("reserved bits are set")]
    ReservedBits,
    /// A reserved opcode.
    #[error("reserved opcode {0}")]
    ReservedOpcode(u8),
    /// A client's frame is not masked.
    #[error("frame is not masked")]
    Unmasked,
    /// A length that is not in its shortest form, or over 63 bits.
    #[error("invalid payload length")]
    InvalidLength,
    /// A control frame without FIN.
    #[error("fragmented control frame")]
    FragmentedControl,
    /// A control frame over 125 octets.
    #[error("control frame is too long")]
    LongControl,
    /// A Continuation frame without a message to continue.
    #[error("continuation of no message")]
    NothingToContinue,
    /// A Text or Binary frame within a fragmented message.
    #[error("message within a message")]
    MessageWithinMessage,
    /// The message is over the limit, compressed or decompressed.
    #[error("message is too big")]
    MessageTooBig,
    /// A text message or a close reason that is not UTF-8.
    #[error("text that is not UTF-8")]
    InvalidUtf8,
    /// A compressed message that cannot be decompressed.
    #[error("broken compressed message")]
    InvalidDeflate,
    /// A Close frame with a payload of one octet.
    #[error("close frame without a whole code")]
    CloseWithoutCode,
    /// A Close frame with a code that may not be sent.
    #[error("invalid close code {0}")]
    InvalidCloseCode(u16),
}

impl ProtocolError {
    /// The code to close the connection with.
    pub fn close_code(self) -> CloseCode {
        match self {
            Self::MessageTooBig => CloseCode::MESSAGE_TOO_BIG,
            Self::InvalidUtf8 | Self::InvalidDeflate => CloseCode::INVALID_DATA,
            _ => CloseCode::PROTOCOL_ERROR,
        }
    }
}

impl From<InvalidUtf8> for ProtocolError {
    fn from(_: InvalidUtf8) -> Self {
        Self::InvalidUtf8
    }
}
