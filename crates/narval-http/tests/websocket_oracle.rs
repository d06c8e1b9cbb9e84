//! The WebSocket codec against tungstenite: both must decode the same bytes to the same messages, and each must decode what the
//! other encodes.
#![allow(clippy::unwrap_used, reason = "a test fails so")]

use std::io::{self, Read, Write};

use narval_http::Bytes;
use narval_http::codecs::ws::frame::Opcode;
use narval_http::codecs::ws::{Decoder, Frame, Incoming, Message, WsLimits};
use proptest::prelude::*;
use tungstenite::protocol::{Role, WebSocket, WebSocketConfig};

const MESSAGE_BYTES_MAX: usize = 70_000;

/// A recorded stream: it reads `input` and then ends, and records what is written.
#[derive(Default)]
struct Recorded {
    input: io::Cursor<Vec<u8>>,
    output: Vec<u8>,
}

impl Read for Recorded {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.input.read(out)
    }
}

impl Write for Recorded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The decoded contents of a stream, in a form that both sides share.
#[derive(Debug, PartialEq)]
enum Seen {
    Text(String),
    Binary(Bytes),
    Ping(Bytes),
    Pong(Bytes),
    /// A Close frame or a protocol violation.
    End,
}

fn by_narval(mut bytes: &[u8]) -> Vec<Seen> {
    let mut decoder = Decoder::new(WsLimits { message_bytes_max: MESSAGE_BYTES_MAX }, false);
    let mut seen = Vec::new();
    loop {
        seen.push(match decoder.next(&mut bytes) {
            Ok(Some(Incoming::Message(Message::Text(text)))) => Seen::Text(text),
            Ok(Some(Incoming::Message(Message::Binary(data)))) => Seen::Binary(data),
            Ok(Some(Incoming::Ping(payload))) => Seen::Ping(payload),
            Ok(Some(Incoming::Pong(payload))) => Seen::Pong(payload),
            Ok(Some(Incoming::Close(_))) | Err(_) => {
                seen.push(Seen::End);
                return seen;
            }
            Ok(Some(Incoming::Compressed(_))) => unreachable!("compression was not agreed on"),
            Ok(None) => return seen,
        });
    }
}

fn by_tungstenite(bytes: &[u8], role: Role) -> Vec<Seen> {
    let stream = Recorded { input: io::Cursor::new(bytes.to_vec()), output: Vec::new() };
    let limits =
        WebSocketConfig::default().max_message_size(Some(MESSAGE_BYTES_MAX)).max_frame_size(Some(MESSAGE_BYTES_MAX));
    let mut socket = WebSocket::from_raw_socket(stream, role, Some(limits));
    let mut seen = Vec::new();
    loop {
        seen.push(match socket.read() {
            Ok(tungstenite::Message::Text(text)) => Seen::Text(text.to_string()),
            Ok(tungstenite::Message::Binary(data)) => Seen::Binary(data),
            Ok(tungstenite::Message::Ping(payload)) => Seen::Ping(payload),
            Ok(tungstenite::Message::Pong(payload)) => Seen::Pong(payload),
            Ok(tungstenite::Message::Frame(_)) => unreachable!("a raw frame was read"),
            // The end of the recording.
            Err(tungstenite::Error::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake)) => {
                return seen;
            }
            Ok(tungstenite::Message::Close(_)) | Err(_) => {
                seen.push(Seen::End);
                return seen;
            }
        });
    }
}

/// A whole frame: mostly a valid one, in any order, with the mistakes that clients make.
fn client_frame() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![
        4 => prop::sample::select(vec![0u8, 1, 2]),
        2 => prop::sample::select(vec![9u8, 10]),
        1 => prop_oneof![Just(8u8), 0..16u8],
    ];
    let payload = prop_oneof![
        4 => "[a-zä€😀]{0,9}".prop_map(String::into_bytes),
        2 => prop::collection::vec(any::<u8>(), 0..9),
        1 => (124..130usize).prop_map(|length| vec![b'x'; length]),
        1 => (65_530..65_540usize).prop_map(|length| vec![b'y'; length]),
    ];
    let rsv = prop_oneof![30 => Just(0u8), 1 => 1..8u8];
    (any::<bool>(), rsv, opcode, prop::bool::weighted(0.97), any::<[u8; 4]>(), payload).prop_map(
        |(fin, rsv, opcode, masked, key, payload)| {
            let mut frame = vec![u8::from(fin) << 7 | rsv << 4 | opcode];
            let mask_bit = u8::from(masked) << 7;
            match payload.len() {
                short @ 0..126 => frame.push(mask_bit | short as u8),
                medium @ 126..65_536 => {
                    frame.push(mask_bit | 126);
                    frame.extend((medium as u16).to_be_bytes());
                }
                long => {
                    frame.push(mask_bit | 127);
                    frame.extend((long as u64).to_be_bytes());
                }
            }
            if masked {
                frame.extend(key);
                frame.extend(payload.iter().zip(key.iter().cycle()).map(|(byte, mask)| byte ^ mask));
            } else {
                frame.extend(payload);
            }
            frame
        },
    )
}

fn client_message() -> impl Strategy<Value = tungstenite::Message> {
    prop_oneof![
        any::<String>().prop_map(tungstenite::Message::text),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(tungstenite::Message::binary),
        prop::collection::vec(any::<u8>(), 0..=125).prop_map(|payload| tungstenite::Message::Ping(payload.into())),
        (65_530..65_540usize).prop_map(|length| tungstenite::Message::binary(vec![7; length])),
    ]
}

proptest! {
    #[test]
    fn both_decode_the_same_frames_alike(frames in prop::collection::vec(client_frame(), 0..12)) {
        let bytes = frames.concat();
        prop_assert_eq!(by_narval(&bytes), by_tungstenite(&bytes, Role::Server));
    }

    #[test]
    fn frames_from_tungstenite_are_decoded(messages in prop::collection::vec(client_message(), 0..6)) {
        let mut client = WebSocket::from_raw_socket(Recorded::default(), Role::Client, None);
        for message in &messages {
            client.write(message.clone()).unwrap();
        }
        client.flush().unwrap();
        let expected: Vec<_> = messages.into_iter().map(|message| match message {
            tungstenite::Message::Text(text) => Seen::Text(text.to_string()),
            tungstenite::Message::Ping(payload) => Seen::Ping(payload),
            other => Seen::Binary(other.into_data()),
        }).collect();
        prop_assert_eq!(by_narval(&client.get_ref().output), expected);
    }

    #[test]
    fn frames_from_narval_are_decoded(text: String, length in prop::sample::select(vec![0, 1, 125, 126, 65_535, 65_536]), ping in prop::collection::vec(any::<u8>(), 0..=125)) {
        let data = Bytes::from(vec![9; length]);
        let mut sent = Frame::from(&Message::Text(text.clone())).bytes().to_vec();
        sent.extend_from_slice(Frame::control(Opcode::Ping, &ping).bytes());
        sent.extend_from_slice(Frame::from(&Message::Binary(data.clone())).bytes());
        let expected = vec![Seen::Text(text), Seen::Ping(ping.into()), Seen::Binary(data)];
        prop_assert_eq!(by_tungstenite(&sent, Role::Client), expected);
    }
}
