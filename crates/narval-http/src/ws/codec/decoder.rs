//! Decodes received bytes into messages and control frames.

use bytes::Bytes;

use super::close::CloseFrame;
use super::error::ProtocolError;
use super::frame::{CLIENT_HEADER_MAX, CONTROL_PAYLOAD_MAX, ClientHeader, Opcode};
use super::mask;
use super::message::Message;
use super::utf8::Utf8Check;

/// Decodes a client's frames. It consumes all bytes it is given and stores only what it must: nothing between frames,
/// and within one at most a header and the message so far.
///
/// ```
/// use narval_http::codecs::ws::{Decoder, Incoming, Message, WsLimits};
///
/// let mut decoder = Decoder::new(WsLimits::default(), false);
/// let mut input: &[u8] = b"\x81\x82\x00\x00\x00\x00hi\x89\x80\x00\x00\x00\x00";
/// assert_eq!(decoder.next(&mut input), Ok(Some(Incoming::Message(Message::from("hi")))));
/// assert_eq!(decoder.next(&mut input), Ok(Some(Incoming::Ping(Default::default()))));
/// assert_eq!(decoder.next(&mut input), Ok(None));
/// ```
#[derive(Debug)]
pub struct Decoder {
    limits: WsLimits,
    compression: bool,
    ended: Option<End>,
    header_len: u8,
    header: [u8; CLIENT_HEADER_MAX],
    frame: Option<OpenFrame>,
    message: Option<Box<OpenMessage>>,
}

/// Limits of a [`Decoder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WsLimits {
    /// The largest message in octets, compressed and decompressed. A frame that would make its message larger is
    /// rejected when its header is read.
    pub message_bytes_max: usize,
}

impl Default for WsLimits {
    fn default() -> Self {
        Self { message_bytes_max: 1024 * 1024 }
    }
}

/// An event from the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A message.
    Message(Message),
    /// A message that is still compressed: see [`deflate`](super::deflate).
    Compressed(CompressedMessage),
    /// A Ping, which must be answered by a Pong with the same payload.
    Ping(Bytes),
    /// A Pong.
    Pong(Bytes),
    /// A Close frame; everything after it is ignored.
    Close(Option<CloseFrame>),
}

/// A message as the client compressed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressedMessage {
    /// Whether it is text, which must be validated after decompression.
    pub text: bool,
    /// The compressed payload.
    pub data: Bytes,
}

/// What ended the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Close,
    Error,
}

/// The frame whose payload is being read.
#[derive(Debug)]
struct OpenFrame {
    header: ClientHeader,
    received: u64,
    /// The payload so far of a control frame; a data frame's goes to its message.
    control: Vec<u8>,
}

/// The message that is being assembled.
#[derive(Debug)]
struct OpenMessage {
    text: bool,
    compressed: bool,
    utf8: Utf8Check,
    data: Vec<u8>,
}

impl Decoder {
    /// A decoder for a new connection. `compression` says that `permessage-deflate` was agreed on.
    pub fn new(limits: WsLimits, compression: bool) -> Self {
        let header = [0; CLIENT_HEADER_MAX];
        Self { limits, compression, ended: None, header_len: 0, header, frame: None, message: None }
    }

    /// Consumes bytes from the front of `input` up to the end of the next message or control frame. Returns `None` when
    /// `input` is consumed. After a Close frame or an error all further input is discarded.
    ///
    /// # Errors
    /// The client violated the protocol.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Incoming>, ProtocolError> {
        let result = self.advance(input);
        self.ended = match result {
            Err(_) => Some(End::Error),
            Ok(Some(Incoming::Close(_))) => Some(End::Close),
            Ok(_) => return result,
        };
        self.frame = None;
        self.message = None;
        result
    }

    /// Whether a Close frame or an error has ended the input.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Whether a Close frame was read.
    pub fn is_closed(&self) -> bool {
        self.ended == Some(End::Close)
    }

    /// Whether a frame or a message is incomplete.
    pub fn is_within_message(&self) -> bool {
        self.header_len > 0 || self.frame.is_some() || self.message.is_some()
    }

    /// The number of bytes that the decoder holds on the heap.
    pub fn buffered(&self) -> usize {
        self.message.as_ref().map_or(0, |message| size_of::<OpenMessage>() + message.data.capacity())
            + self.frame.as_ref().map_or(0, |frame| frame.control.capacity())
    }

    fn advance(&mut self, input: &mut &[u8]) -> Result<Option<Incoming>, ProtocolError> {
        loop {
            if self.ended.is_some() {
                *input = &[];
                return Ok(None);
            }
            let frame = match self.frame.take() {
                Some(frame) => frame,
                None => match self.read_header(input)? {
                    Some(header) => self.open(header)?,
                    None => return Ok(None),
                },
            };
            let done = if frame.header.opcode.is_control() {
                self.read_control(frame, input)?
            } else {
                self.read_data(frame, input)?
            };
            if done.is_some() || self.frame.is_some() {
                return Ok(done);
            }
        }
    }

    /// The next header, from `input` and the start of it in earlier pieces.
    fn read_header(&mut self, input: &mut &[u8]) -> Result<Option<ClientHeader>, ProtocolError> {
        if self.header_len == 0
            && let Some((header, length)) = ClientHeader::parse(input)?
        {
            *input = input.get(length..).unwrap_or_default();
            return Ok(Some(header));
        }
        // Octet by octet: there are at most 14, and each may be invalid.
        while let Some((&byte, rest)) = input.split_first() {
            *input = rest;
            if let Some(slot) = self.header.get_mut(usize::from(self.header_len)) {
                *slot = byte;
                self.header_len += 1;
            }
            let begun = self.header.get(..usize::from(self.header_len)).unwrap_or_default();
            if let Some((header, _)) = ClientHeader::parse(begun)? {
                self.header_len = 0;
                return Ok(Some(header));
            }
        }
        Ok(None)
    }

    /// Checks a header against the state of the connection.
    fn open(&mut self, header: ClientHeader) -> Result<OpenFrame, ProtocolError> {
        let begins_message = matches!(header.opcode, Opcode::Text | Opcode::Binary);
        if header.rsv1 && !(self.compression && begins_message) {
            return Err(ProtocolError::ReservedBits);
        }
        if !header.opcode.is_control() {
            let so_far = match (&self.message, begins_message) {
                (None, true) => 0,
                (Some(message), false) => message.data.len(),
                (None, false) => return Err(ProtocolError::NothingToContinue),
                (Some(_), true) => return Err(ProtocolError::MessageWithinMessage),
            };
            let room = self.limits.message_bytes_max.saturating_sub(so_far) as u64;
            if header.payload_len > room {
                return Err(ProtocolError::MessageTooBig);
            }
            if begins_message {
                let text = header.opcode == Opcode::Text;
                let message =
                    OpenMessage { text, compressed: header.rsv1, utf8: Utf8Check::default(), data: Vec::new() };
                self.message = Some(Box::new(message));
            }
        }
        Ok(OpenFrame { header, received: 0, control: Vec::new() })
    }

    fn read_control(&mut self, mut frame: OpenFrame, input: &mut &[u8]) -> Result<Option<Incoming>, ProtocolError> {
        debug_assert!(frame.header.payload_len <= CONTROL_PAYLOAD_MAX as u64);
        let ended = frame.take_payload(input, |frame, piece| {
            append_unmasked(&mut frame.control, piece, frame.header.mask, frame.received)
        });
        if !ended {
            self.frame = Some(frame);
            return Ok(None);
        }
        let payload = Bytes::from(frame.control);
        Ok(Some(match frame.header.opcode {
            Opcode::Ping => Incoming::Ping(payload),
            Opcode::Pong => Incoming::Pong(payload),
            _ => Incoming::Close(CloseFrame::parse(&payload)?),
        }))
    }

    fn read_data(&mut self, mut frame: OpenFrame, input: &mut &[u8]) -> Result<Option<Incoming>, ProtocolError> {
        let Some(mut message) = self.message.take() else { return Err(ProtocolError::NothingToContinue) };
        let fresh_from = message.data.len();
        let room = self.limits.message_bytes_max.saturating_sub(fresh_from);
        let ended = frame.take_payload(input, |frame, piece| {
            let missing = usize::try_from(frame.header.payload_len - frame.received).unwrap_or(usize::MAX);
            // Nothing follows the last fragment; after another one, the message may grow up to its limit.
            grow(&mut message.data, piece.len(), if frame.header.fin { missing } else { room });
            append_unmasked(&mut message.data, piece, frame.header.mask, frame.received);
        });
        if ended && frame.header.fin {
            return message.finish(fresh_from).map(Some);
        }
        if message.text && !message.compressed {
            message.utf8.feed(message.data.get(fresh_from..).unwrap_or_default())?;
        }
        self.message = Some(message);
        if !ended {
            self.frame = Some(frame);
        }
        Ok(None)
    }
}

impl OpenFrame {
    /// Passes the payload in `input` to `sink`, and returns whether that completed it.
    fn take_payload(&mut self, input: &mut &[u8], sink: impl FnOnce(&mut Self, &[u8])) -> bool {
        let missing = self.header.payload_len - self.received;
        let length = usize::try_from(missing).unwrap_or(usize::MAX).min(input.len());
        let (piece, rest) = input.split_at(length);
        *input = rest;
        sink(self, piece);
        self.received += length as u64;
        self.received == self.header.payload_len
    }
}

impl OpenMessage {
    /// The complete message. Its last piece starts at `fresh_from`, and is not validated as UTF-8 yet.
    fn finish(mut self, fresh_from: usize) -> Result<Incoming, ProtocolError> {
        if self.compressed {
            return Ok(Incoming::Compressed(CompressedMessage { text: self.text, data: self.data.into() }));
        }
        if !self.text {
            return Ok(Incoming::Message(Message::Binary(self.data.into())));
        }
        if fresh_from > 0 {
            // Cheaper than validating a large message at its end, and the error is at the right place.
            self.utf8.feed(self.data.get(fresh_from..).unwrap_or_default())?;
            self.utf8.finish()?;
        }
        let text = String::from_utf8(self.data).map_err(|_| ProtocolError::InvalidUtf8)?;
        Ok(Incoming::Message(Message::Text(text)))
    }
}

fn append_unmasked(data: &mut Vec<u8>, piece: &[u8], key: [u8; 4], received: u64) {
    let start = data.len();
    data.extend_from_slice(piece);
    mask::apply(data.get_mut(start..).unwrap_or_default(), key, (received % 4) as usize);
}

/// Reserves capacity for `piece` more bytes: by doubling, but never for more than `most`, the bytes that may follow. An
/// announced length alone reserves nothing.
fn grow(data: &mut Vec<u8>, piece: usize, most: usize) {
    if data.capacity() - data.len() < piece {
        data.reserve_exact(data.capacity().max(piece).min(most));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A masked frame, as from a client.
    fn client_frame(first: u8, payload: &[u8], key: [u8; 4]) -> Vec<u8> {
        let mut frame = vec![first];
        match payload.len() {
            short @ 0..126 => frame.push(0x80 | short as u8),
            medium @ 126..65536 => {
                frame.push(0x80 | 126);
                frame.extend((medium as u16).to_be_bytes());
            }
            long => {
                frame.push(0x80 | 127);
                frame.extend((long as u64).to_be_bytes());
            }
        }
        frame.extend(key);
        let start = frame.len();
        frame.extend(payload);
        mask::apply(&mut frame[start..], key, 0);
        frame
    }

    fn stream(frames: &[(u8, &[u8])]) -> Vec<u8> {
        frames.iter().flat_map(|(first, payload)| client_frame(*first, payload, *b"\x12\xfe\x00\x9a")).collect()
    }

    type Outcome = (Vec<Incoming>, Option<ProtocolError>);

    fn decode(limits: WsLimits, bytes: &[u8], pieces: usize) -> Outcome {
        let mut decoder = Decoder::new(limits, true);
        let mut seen = Vec::new();
        for mut piece in bytes.chunks(pieces.max(1)) {
            loop {
                match decoder.next(&mut piece) {
                    Ok(Some(incoming)) => seen.push(incoming),
                    Ok(None) => break,
                    Err(error) => return (seen, Some(error)),
                }
            }
            assert!(piece.is_empty());
        }
        (seen, None)
    }

    fn decode_all_ways(bytes: &[u8]) -> Outcome {
        let whole = decode(WsLimits::default(), bytes, bytes.len());
        for pieces in 1..bytes.len().min(40) {
            assert_eq!(decode(WsLimits::default(), bytes, pieces), whole, "in pieces of {pieces}");
        }
        whole
    }

    #[test]
    fn a_message_of_tiny_fragments_grows_by_doubling() {
        let mut decoder = Decoder::new(WsLimits { message_bytes_max: 70_000 }, false);
        let (mut capacity, mut moves) = (0, 0);
        for at in 0..70_000u32 {
            let first = if at == 0 { 0x02 } else { 0 };
            let frame = client_frame(first, b"x", [0; 4]);
            assert_eq!(decoder.next(&mut frame.as_slice()), Ok(None));
            moves += usize::from(decoder.buffered() != capacity);
            capacity = decoder.buffered();
        }
        assert!(moves <= 20, "moved {moves} times");
        assert!(capacity <= 70_000 + size_of::<OpenMessage>(), "{capacity} bytes held, more than a message may have");
        let end = client_frame(0x80, b"", [0; 4]);
        let message = decoder.next(&mut end.as_slice());
        assert!(matches!(message, Ok(Some(Incoming::Message(message))) if message.len() == 70_000));
    }

    #[test]
    fn rfc_6455_5_4_control_frames_between_fragments() {
        let bytes = stream(&[(0x01, b"a\xc3"), (0x89, b"ping"), (0x00, b"\xa4"), (0x8a, b""), (0x80, b"z")]);
        let ping = Incoming::Ping(Bytes::from_static(b"ping"));
        let text = Incoming::Message(Message::from("aäz"));
        assert_eq!(decode_all_ways(&bytes), (vec![ping, Incoming::Pong(Bytes::new()), text], None));
    }

    #[test]
    fn rfc_6455_5_4_fragments_out_of_order_are_refused() {
        assert_eq!(decode_all_ways(&stream(&[(0x80, b"")])).1, Some(ProtocolError::NothingToContinue));
        assert_eq!(decode_all_ways(&stream(&[(0x01, b""), (0x81, b"")])).1, Some(ProtocolError::MessageWithinMessage));
    }

    #[test]
    fn rfc_6455_8_1_text_must_be_utf_8() {
        for frames in [&[(0x81u8, b"\xff".as_slice())][..], &[(0x01, b"\xc3"), (0x80, b"")], &[(0x01, b"\xed\xa0")]] {
            assert_eq!(decode_all_ways(&stream(frames)).1, Some(ProtocolError::InvalidUtf8), "{frames:?}");
        }
    }

    #[test]
    fn rfc_7692_6_rsv1_is_for_the_first_fragment_of_a_message() {
        let data = Bytes::from_static(b"abcd");
        let compressed = Incoming::Compressed(CompressedMessage { text: true, data });
        assert_eq!(decode_all_ways(&stream(&[(0x41, b"ab"), (0x80, b"cd")])), (vec![compressed], None));
        assert_eq!(decode_all_ways(&stream(&[(0x41, b"ab"), (0xc0, b"cd")])).1, Some(ProtocolError::ReservedBits));
        assert_eq!(decode_all_ways(&stream(&[(0xc9, b"")])).1, Some(ProtocolError::ReservedBits));
        let plain = Decoder::new(WsLimits::default(), false).next(&mut stream(&[(0xc1, b"")]).as_slice());
        assert_eq!(plain, Err(ProtocolError::ReservedBits));
    }

    #[test]
    fn a_message_over_the_limit_is_refused_at_its_header() {
        let limits = WsLimits { message_bytes_max: 10 };
        let mut decoder = Decoder::new(limits, false);
        assert_eq!(decoder.next(&mut b"\x82\x8babcd".as_slice()), Err(ProtocolError::MessageTooBig));
        let fragments = stream(&[(0x02, b"123456"), (0x80, b"12345")]);
        assert_eq!(decode(limits, &fragments, 1).1, Some(ProtocolError::MessageTooBig));
        let huge = b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xffabcd";
        assert_eq!(Decoder::new(limits, false).next(&mut huge.as_slice()), Err(ProtocolError::MessageTooBig));
    }

    #[test]
    fn an_announced_length_reserves_nothing() {
        let mut decoder = Decoder::new(WsLimits { message_bytes_max: 1 << 30 }, false);
        let mut input = b"\x82\xff\x00\x00\x00\x00\x3f\xff\xff\xffabcdefgh".as_slice();
        assert_eq!(decoder.next(&mut input), Ok(None));
        assert!(decoder.buffered() < 256, "{}", decoder.buffered());
    }

    #[test]
    fn an_idle_decoder_holds_nothing() {
        let mut decoder = Decoder::new(WsLimits::default(), true);
        let bytes = stream(&[(0x01, b"abc"), (0x89, b"x"), (0x80, b"def")]);
        for mut piece in bytes.chunks(1) {
            decoder.next(&mut piece).unwrap();
        }
        assert_eq!((decoder.buffered(), decoder.is_within_message()), (0, false));
        assert!(size_of::<Decoder>() <= 128, "{}", size_of::<Decoder>());
    }

    #[test]
    fn nothing_counts_behind_a_close() {
        let bytes = stream(&[(0x88, b"\x03\xe8"), (0x81, b"\xff")]);
        let close = CloseFrame { code: crate::ws::CloseCode::NORMAL, reason: String::new() };
        assert_eq!(decode_all_ways(&bytes), (vec![Incoming::Close(Some(close))], None));
    }

    proptest! {
        #[test]
        fn any_bytes_give_the_same_however_cut(bytes in prop::collection::vec(any::<u8>(), 0..200), pieces in 1..20usize) {
            let limits = WsLimits { message_bytes_max: 100 };
            prop_assert_eq!(decode(limits, &bytes, pieces), decode(limits, &bytes, bytes.len()));
        }

        #[test]
        fn any_message_in_any_fragments_comes_out_whole(
            text: String,
            fragments in 1..9usize,
            pieces in 1..300usize,
            key: [u8; 4],
        ) {
            let parts: Vec<&[u8]> = text.as_bytes().chunks((text.len() / fragments).max(1)).collect();
            let mut bytes = client_frame(0x01, b"", key);
            for part in parts {
                bytes.extend(client_frame(0x00, part, key));
            }
            bytes.extend(client_frame(0x80, b"", key));
            let expected = vec![Incoming::Message(Message::Text(text))];
            prop_assert_eq!(decode(WsLimits::default(), &bytes, pieces), (expected, None));
        }
    }
}
