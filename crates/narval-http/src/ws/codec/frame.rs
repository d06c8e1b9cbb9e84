//! Frame headers (RFC 6455 section 5.2).

use super::error::ProtocolError;

/// The largest payload of a control frame in octets (RFC 6455 section 5.5).
pub const CONTROL_PAYLOAD_MAX: usize = 125;
/// The longest header from a client: two octets, a 64-bit length, a masking key.
pub const CLIENT_HEADER_MAX: usize = 14;
/// The longest header from a server: no masking key.
pub const SERVER_HEADER_MAX: usize = 10;

const FIN: u8 = 0x80;
const RSV1: u8 = 0x40;
const RSV2_RSV3: u8 = 0x30;
const MASKED: u8 = 0x80;
const LENGTH_16: u8 = 126;
const LENGTH_64: u8 = 127;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Continues the message that a Text or Binary frame started.
    Continuation = 0,
    /// A text message, or the first fragment of one.
    Text = 1,
    /// A binary message, or the first fragment of one.
    Binary = 2,
    /// The closing handshake.
    Close = 8,
    /// Must be answered by a Pong with the same payload.
    Ping = 9,
    /// The answer to a Ping, or an unsolicited heartbeat.
    Pong = 10,
}

impl Opcode {
    fn new(bits: u8) -> Result<Self, ProtocolError> {
        Ok(match bits {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            other => return Err(ProtocolError::ReservedOpcode(other)),
        })
    }

    /// Whether this is Close, Ping or Pong: never fragmented, and allowed between the fragments of a message.
    pub fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

/// The header of a frame that a client sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientHeader {
    /// Whether this is the last fragment of its message.
    pub fin: bool,
    /// Whether the message is compressed (RFC 7692 section 6).
    pub rsv1: bool,
    /// The type of the frame.
    pub opcode: Opcode,
    /// The length of the payload in octets.
    pub payload_len: u64,
    /// The masking key.
    pub mask: [u8; 4],
}

impl ClientHeader {
    /// Parses the header at the start of `bytes`: returns the header and its length, or `None` if more bytes are
    /// needed. Errors are reported as soon as the bytes allow it.
    ///
    /// # Errors
    /// Reserved bits or opcodes, a frame that is not masked, a control frame that is fragmented or too long, a length
    /// that is not in its shortest form or has its top bit set.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ProtocolError> {
        let Some(&first) = bytes.first() else { return Ok(None) };
        if first & RSV2_RSV3 != 0 {
            return Err(ProtocolError::ReservedBits);
        }
        let (fin, rsv1, opcode) = (first & FIN != 0, first & RSV1 != 0, Opcode::new(first & 0x0f)?);
        if opcode.is_control() && !fin {
            return Err(ProtocolError::FragmentedControl);
        }
        let Some(&second) = bytes.get(1) else { return Ok(None) };
        if second & MASKED == 0 {
            return Err(ProtocolError::Unmasked);
        }
        if opcode.is_control() && usize::from(second & !MASKED) > CONTROL_PAYLOAD_MAX {
            return Err(ProtocolError::LongControl);
        }
        let Some((payload_len, length_len)) = payload_len(second & !MASKED, bytes.get(2..).unwrap_or_default())? else {
            return Ok(None);
        };
        let Some(&mask) = bytes.get(2 + length_len..).and_then(<[u8]>::first_chunk) else { return Ok(None) };
        Ok(Some((Self { fin, rsv1, opcode, payload_len, mask }, 2 + length_len + mask.len())))
    }
}

/// The payload length, and the number of octets of the extended length field.
fn payload_len(short: u8, rest: &[u8]) -> Result<Option<(u64, usize)>, ProtocolError> {
    let (length, length_len, longest_shorter_form) = match short {
        LENGTH_16 => match rest.first_chunk() {
            Some(length) => (u64::from(u16::from_be_bytes(*length)), 2, u64::from(LENGTH_16 - 1)),
            None => return Ok(None),
        },
        LENGTH_64 => match rest.first_chunk() {
            Some(length) => (u64::from_be_bytes(*length), 8, u64::from(u16::MAX)),
            None => return Ok(None),
        },
        length => return Ok(Some((u64::from(length), 0))),
    };
    if length <= longest_shorter_form || length > i64::MAX as u64 {
        return Err(ProtocolError::InvalidLength);
    }
    Ok(Some((length, length_len)))
}

/// The header of a frame from the server.
#[derive(Clone, Copy, Debug)]
pub struct ServerHeader {
    bytes: [u8; SERVER_HEADER_MAX],
    len: u8,
}

impl ServerHeader {
    /// The header of a whole message or control frame of `payload_len` octets. `rsv1` marks a compressed message.
    pub fn new(opcode: Opcode, rsv1: bool, payload_len: usize) -> Self {
        let mut bytes = [0; SERVER_HEADER_MAX];
        bytes[0] = FIN | if rsv1 { RSV1 } else { 0 } | opcode as u8;
        let len = if let Ok(short @ 0..LENGTH_16) = u8::try_from(payload_len) {
            bytes[1] = short;
            2
        } else if let Ok(medium) = u16::try_from(payload_len) {
            bytes[1] = LENGTH_16;
            bytes[2..4].copy_from_slice(&medium.to_be_bytes());
            4
        } else {
            bytes[1] = LENGTH_64;
            bytes[2..].copy_from_slice(&(payload_len as u64).to_be_bytes());
            10
        };
        Self { bytes, len }
    }

    /// The encoded header.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Option<(ClientHeader, usize)>, ProtocolError> {
        // No prefix of a header may give another result than the whole.
        let whole = ClientHeader::parse(bytes);
        for length in 0..bytes.len() {
            match ClientHeader::parse(&bytes[..length]) {
                Ok(None) => {}
                early => assert_eq!(early, whole, "prefix of {length}"),
            }
        }
        whole
    }

    fn lengths(bytes: &[u8]) -> (u64, usize) {
        let (header, length) = parse(bytes).unwrap().unwrap();
        (header.payload_len, length)
    }

    #[test]
    fn rfc_6455_5_2_lengths() {
        assert_eq!(lengths(b"\x81\x85abcd"), (5, 6));
        assert_eq!(lengths(b"\x82\xfe\x00\x7eabcd"), (126, 8));
        assert_eq!(lengths(b"\x82\xff\x00\x00\x00\x00\x00\x01\x00\x00abcd"), (65536, 14));
        assert_eq!(lengths(b"\x82\xff\x00\x00\x01\x00\x00\x00\x00\x00abcd"), (1 << 40, 14));
    }

    #[test]
    fn rfc_6455_5_2_lengths_must_be_minimal_and_positive() {
        for bytes in [
            b"\x82\xfe\x00\x7dabcd".as_slice(),
            b"\x82\xff\x00\x00\x00\x00\x00\x00\xff\xffabcd",
            b"\x82\xff\x80\x00\x00\x00\x00\x01\x00\x00abcd",
        ] {
            assert_eq!(parse(bytes), Err(ProtocolError::InvalidLength));
        }
    }

    #[test]
    fn rfc_6455_5_reserved_and_unmasked_are_refused() {
        assert_eq!(parse(b"\xa1\x80abcd"), Err(ProtocolError::ReservedBits));
        assert_eq!(parse(b"\x91\x80abcd"), Err(ProtocolError::ReservedBits));
        assert_eq!(parse(b"\x83\x80abcd"), Err(ProtocolError::ReservedOpcode(3)));
        assert_eq!(parse(b"\x8b\x80abcd"), Err(ProtocolError::ReservedOpcode(11)));
        assert_eq!(parse(b"\x81\x05"), Err(ProtocolError::Unmasked));
        assert_eq!(parse(b"\x09\x80abcd"), Err(ProtocolError::FragmentedControl));
        assert_eq!(parse(b"\x89\xfe\x00\x7eabcd"), Err(ProtocolError::LongControl));
    }

    #[test]
    fn server_headers_use_the_shortest_length() {
        for (length, header) in [
            (0, b"\x82\x00".as_slice()),
            (125, b"\x82\x7d"),
            (126, b"\x82\x7e\x00\x7e"),
            (65535, b"\x82\x7e\xff\xff"),
            (65536, b"\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00"),
        ] {
            assert_eq!(ServerHeader::new(Opcode::Binary, false, length).as_bytes(), header);
        }
        assert_eq!(ServerHeader::new(Opcode::Text, true, 1).as_bytes(), b"\xc1\x01");
    }
}
