//! The payload of Close frames (RFC 6455 section 5.5.1).

use super::error::{CloseCode, ProtocolError};
use super::frame::{CONTROL_PAYLOAD_MAX, Opcode};
use super::message::Frame;

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
