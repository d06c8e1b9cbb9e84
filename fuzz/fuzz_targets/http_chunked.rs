//! The chunked coding: pieces decode as the whole does, and the decoded body encodes to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_http::codecs::chunked::{ChunkedDecoder, TRAILER_FIELDS_MAX, encode_chunk, encode_end};

/// The body and the bytes consumed; `None` while incomplete, `Err` if refused.
fn decode(input: &[u8], step: usize) -> Result<Option<(Vec<u8>, usize)>, ()> {
    let mut decoder = ChunkedDecoder::new();
    let (mut body, mut start, mut end) = (Vec::new(), 0, 0);
    loop {
        let decoded = decoder.decode(&input[start..end]).map_err(|_| ())?;
        assert!(decoded.data.len() <= decoded.consumed);
        body.extend_from_slice(decoded.data);
        start += decoded.consumed;
        if decoded.done {
            assert!(decoder.is_done() && decoder.trailers().len() <= TRAILER_FIELDS_MAX);
            return Ok(Some((body, start)));
        }
        if start == end {
            if end == input.len() {
                return Ok(None);
            }
            end = (end + step).min(input.len());
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&cut, input)) = data.split_first() else { return };
    let whole = decode(input, input.len().max(1));
    assert_eq!(whole, decode(input, usize::from(cut) + 1));
    if let Ok(Some((body, end))) = whole {
        assert!(input[..end].ends_with(b"\r\n"));
        let mut encoded = Vec::new();
        for chunk in body.chunks(usize::from(cut) + 1) {
            encode_chunk(chunk, &mut encoded);
        }
        encode_end(&[], &mut encoded);
        assert_eq!(decode(&encoded, 3), Ok(Some((body, encoded.len()))));
    }
});
