//! Close codes and the payload of Close frames (RFC 6455 sections 5.5.1 and 7.4).

use super::frame::{CONTROL_PAYLOAD_MAX, Opcode};
use super::{Frame, ProtocolError};

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

/// The contents of a Close frame: a code and a reason. A Close frame may also be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseFrame {
    /// The code.
    pub code: CloseCode,
    /// The human-readable reason; at most 123 octets.
    pub reason: String,
}

impl CloseFrame {
    /// The maximum length of a reason in octets: a control frame's payload without the code.
    pub const REASON_MAX: usize = CONTROL_PAYLOAD_MAX - 2;

    /// Parses the payload of a Close frame; an empty one is `None`.
    ///
    /// # Errors
    /// A single octet, a code that is not allowed, or a reason that is not UTF-8.
    pub fn parse(payload: &[u8]) -> Result<Option<Self>, ProtocolError> {
        if payload.is_empty() {
            return Ok(None);
        }
        let (code, reason) = payload.split_first_chunk().ok_or(ProtocolError::CloseWithoutCode)?;
        let code = u16::from_be_bytes(*code);
        let code = CloseCode::new(code).ok_or(ProtocolError::InvalidCloseCode(code))?;
        let reason = simdutf8::basic::from_utf8(reason).map_err(|_| ProtocolError::InvalidUtf8)?;
        Ok(Some(Self { code, reason: reason.to_owned() }))
    }
}

/// A Close frame with this code and reason. A reason that is too long is truncated at a character boundary.
pub fn encode(code: CloseCode, reason: &str) -> Frame {
    let mut payload = [0; CONTROL_PAYLOAD_MAX];
    let reason = &reason.as_bytes()[..reason.floor_char_boundary(CloseFrame::REASON_MAX)];
    let length = 2 + reason.len();
    payload[..2].copy_from_slice(&code.get().to_be_bytes());
    payload[2..length].copy_from_slice(reason);
    Frame::control(Opcode::Close, &payload[..length])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_6455_7_4_codes_that_may_be_sent() {
        for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999] {
            assert!(CloseCode::new(code).is_some(), "{code}");
        }
        for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535] {
            assert!(CloseCode::new(code).is_none(), "{code}");
            assert_eq!(CloseFrame::parse(&u16::to_be_bytes(code)), Err(ProtocolError::InvalidCloseCode(code)));
        }
    }

    #[test]
    fn rfc_6455_5_5_1_payload() {
        assert_eq!(CloseFrame::parse(b""), Ok(None));
        assert_eq!(CloseFrame::parse(b"\x03"), Err(ProtocolError::CloseWithoutCode));
        let normal = CloseFrame { code: CloseCode::NORMAL, reason: "bye".to_owned() };
        assert_eq!(CloseFrame::parse(b"\x03\xe8bye"), Ok(Some(normal)));
        assert_eq!(CloseFrame::parse(b"\x03\xe8\xff"), Err(ProtocolError::InvalidUtf8));
    }

    #[test]
    fn a_long_reason_is_cut_at_a_character() {
        let frame = encode(CloseCode::NORMAL, &"ä".repeat(100));
        let payload = &frame.bytes()[2..];
        let parsed = CloseFrame::parse(payload).unwrap().unwrap();
        assert_eq!(parsed.reason, "ä".repeat(61));
    }
}
