//! WebSocket frames: pieces parse as the whole does, limits hold, and no memory is held between messages.

#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_http::codecs::ws::{Decoder, Incoming, ProtocolError, WsLimits};

const MESSAGE_BYTES_MAX: usize = 4096;

fn decode(input: &[u8], step: usize, compression: bool) -> (Vec<Incoming>, Option<ProtocolError>) {
    let mut decoder = Decoder::new(WsLimits { message_bytes_max: MESSAGE_BYTES_MAX }, compression);
    let mut seen = Vec::new();
    for mut piece in input.chunks(step) {
        loop {
            match decoder.next(&mut piece) {
                Ok(Some(incoming)) => {
                    check(&incoming);
                    seen.push(incoming);
                }
                Ok(None) => break,
                Err(error) => {
                    assert!(decoder.has_ended());
                    return (seen, Some(error));
                }
            }
        }
        assert!(piece.is_empty());
        assert!(decoder.is_within_message() || decoder.buffered() == 0);
        assert!(decoder.buffered() <= 2 * MESSAGE_BYTES_MAX);
    }
    (seen, None)
}

fn check(incoming: &Incoming) {
    let (length, limit) = match incoming {
        Incoming::Message(message) => (message.len(), MESSAGE_BYTES_MAX),
        Incoming::Compressed(message) => (message.data.len(), MESSAGE_BYTES_MAX),
        Incoming::Ping(payload) | Incoming::Pong(payload) => (payload.len(), 125),
        Incoming::Close(frame) => (frame.as_ref().map_or(0, |frame| frame.reason.len()), 123),
    };
    assert!(length <= limit);
}

fuzz_target!(|data: &[u8]| {
    let Some((&first, input)) = data.split_first() else { return };
    let (step, compression) = (usize::from(first >> 1) + 1, first & 1 == 1);
    assert_eq!(decode(input, input.len().max(1), compression), decode(input, step, compression));
});
