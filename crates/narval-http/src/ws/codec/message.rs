//! Messages, and encoded frames.

use bytes::{Bytes, BytesMut};

use super::frame::{CONTROL_PAYLOAD_MAX, Opcode, SERVER_HEADER_MAX, ServerHeader};

/// A text or binary message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Text.
    Text(String),
    /// Any bytes.
    Binary(Bytes),
}

impl Message {
    /// The bytes of the message.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(data) => data,
        }
    }

    /// The text, if it is a text message.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Binary(_) => None,
        }
    }

    /// The length in octets.
    pub fn len(&self) -> usize {
        self.as_bytes().len()
    }

    /// Whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }

    pub(crate) fn opcode(&self) -> Opcode {
        match self {
            Self::Text(_) => Opcode::Text,
            Self::Binary(_) => Opcode::Binary,
        }
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::Text(text) => text.into(),
            Self::Binary(data) => data,
        }
    }
}

impl From<String> for Message {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Message {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Bytes> for Message {
    fn from(data: Bytes) -> Self {
        Self::Binary(data)
    }
}

impl From<Vec<u8>> for Message {
    fn from(data: Vec<u8>) -> Self {
        Self::Binary(data.into())
    }
}

/// A frame from the server: header and payload in one buffer. It is not masked, so the same bytes can be sent to any
/// number of connections, and a clone shares them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    bytes: Bytes,
}

impl Frame {
    /// Encodes a whole message as one frame. `compressed` says whether `payload` is compressed (RFC 7692).
    pub(crate) fn data(opcode: Opcode, compressed: bool, payload: &[u8]) -> Self {
        let header = ServerHeader::new(opcode, compressed, payload.len());
        let mut bytes = BytesMut::with_capacity(header.as_bytes().len() + payload.len());
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(payload);
        Self { bytes: bytes.freeze() }
    }

    /// Encodes a control frame. The payload is truncated to [`CONTROL_PAYLOAD_MAX`].
    pub fn control(opcode: Opcode, payload: &[u8]) -> Self {
        debug_assert!(opcode.is_control() && payload.len() <= CONTROL_PAYLOAD_MAX);
        Self::data(opcode, false, &payload[..payload.len().min(CONTROL_PAYLOAD_MAX)])
    }

    /// The encoded frame.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

impl From<&Message> for Frame {
    fn from(message: &Message) -> Self {
        Self::data(message.opcode(), false, message.as_bytes())
    }
}

const _: () = assert!(SERVER_HEADER_MAX + CONTROL_PAYLOAD_MAX < 256, "a control frame is one small allocation");
