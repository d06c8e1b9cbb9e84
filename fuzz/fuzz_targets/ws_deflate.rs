//! permessage-deflate: decompressed data stays within the limit, compressed data round-trips, and one message leaves
//! no state for the next. The same bytes are also read as an extension offer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use narval_http::codecs::ws::deflate::{Deflater, Inflater, Settings, compress, decompress};
use narval_http::codecs::ws::extension::negotiate;

const LIMIT: usize = 64 * 1024;

fuzz_target!(|data: &[u8]| {
    let Some((&first, input)) = data.split_first() else { return };
    let refused = decompress(input, LIMIT);
    assert!(refused.as_ref().is_ok_and(|message| message.len() <= LIMIT) || refused.is_err());
    assert_eq!(Inflater::default().message(input, LIMIT), refused);

    let settings = Settings { level: first % 10, window_bits: 9 + first % 7 };
    assert_eq!(decompress(&compress(settings, input), input.len()).as_deref(), Ok(input));

    let (mut deflater, mut inflater) = (Deflater::new(settings), Inflater::default());
    for message in input.chunks(usize::from(first) + 1) {
        assert_eq!(inflater.message(&deflater.message(message), message.len()).as_deref(), Ok(message));
    }

    if let Ok(offer) = std::str::from_utf8(input)
        && let Ok(Some(agreed)) = negotiate([offer], first & 1 == 1)
    {
        assert_eq!(negotiate([agreed.to_string().as_str()], true), Ok(Some(agreed)));
    }
});
