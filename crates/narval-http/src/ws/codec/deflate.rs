//! Compression of messages: `permessage-deflate` (RFC 7692).
//!
//! By default no state is kept between messages ("no context takeover"), so a connection costs no memory between them:
//! compressor and decompressor belong to the thread and are shared by all connections.

use std::cell::RefCell;

use bytes::Bytes;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::error::ProtocolError;

/// The end of every flushed deflate stream, which is not sent (RFC 7692 section 7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];
/// The capacity reserved for output at a time, in bytes.
const STEP: usize = 16 * 1024;
/// The largest window, which any client may use.
const WINDOW_BITS_DEFAULT: u8 = 15;

thread_local! {
    static INFLATE: RefCell<Decompress> = RefCell::new(new_inflate());
    static DEFLATE: RefCell<Option<(Settings, Compress)>> = const { RefCell::new(None) };
}

/// Settings of a compressor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The compression level, 0 (none) to 9 (best).
    pub level: u8,
    /// The window as a power of two, 9 to 15.
    pub window_bits: u8,
}

impl Settings {
    fn compressor(self) -> Compress {
        let level = Compression::new(u32::from(self.level.min(9)));
        Compress::new_with_window_bits(level, false, self.window_bits.clamp(9, WINDOW_BITS_DEFAULT))
    }
}

/// Compresses messages that may refer to earlier ones (context takeover): about 256 KiB per connection.
#[derive(Debug)]
pub struct Deflater {
    compress: Compress,
}

impl Deflater {
    /// A compressor for one connection.
    pub fn new(settings: Settings) -> Self {
        Self { compress: settings.compressor() }
    }

    /// Compresses the next message.
    pub fn message(&mut self, message: &[u8]) -> Bytes {
        deflate_into(&mut self.compress, message)
    }
}

/// Decompresses messages that may refer to earlier ones (context takeover): about 40 KiB per connection.
#[derive(Debug)]
pub struct Inflater {
    inflate: Decompress,
}

impl Default for Inflater {
    fn default() -> Self {
        Self { inflate: new_inflate() }
    }
}

impl Inflater {
    /// Decompresses the next message, to at most `limit` bytes.
    ///
    /// # Errors
    /// [`ProtocolError::MessageTooBig`] above the limit, [`ProtocolError::InvalidDeflate`] if zlib rejects the data.
    pub fn message(&mut self, compressed: &[u8], limit: usize) -> Result<Vec<u8>, ProtocolError> {
        self.message_within(compressed, limit, &mut |_| true)
    }

    /// The same, if `may_grow` to each size of the output.
    pub(crate) fn message_within(
        &mut self,
        compressed: &[u8],
        limit: usize,
        may_grow: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Vec<u8>, ProtocolError> {
        inflate_into(&mut self.inflate, compressed, limit, may_grow)
    }
}

/// Compresses an independent message.
pub fn compress(settings: Settings, message: &[u8]) -> Bytes {
    DEFLATE.with_borrow_mut(|shared| match shared {
        Some((made_with, compress)) if *made_with == settings => {
            compress.reset();
            deflate_into(compress, message)
        }
        _ => {
            let (_, compress) = shared.insert((settings, settings.compressor()));
            deflate_into(compress, message)
        }
    })
}

/// Decompresses an independent message, to at most `limit` bytes.
///
/// # Errors
/// [`ProtocolError::MessageTooBig`] above the limit, [`ProtocolError::InvalidDeflate`] if zlib rejects the data.
pub fn decompress(compressed: &[u8], limit: usize) -> Result<Vec<u8>, ProtocolError> {
    decompress_within(compressed, limit, &mut |_| true)
}

/// The same, if `may_grow` to each size of the output.
pub(crate) fn decompress_within(
    compressed: &[u8],
    limit: usize,
    may_grow: &mut dyn FnMut(usize) -> bool,
) -> Result<Vec<u8>, ProtocolError> {
    INFLATE.with_borrow_mut(|inflate| {
        inflate.reset(false);
        inflate_into(inflate, compressed, limit, may_grow)
    })
}

fn new_inflate() -> Decompress {
    Decompress::new_with_window_bits(false, WINDOW_BITS_DEFAULT)
}

fn deflate_into(compress: &mut Compress, message: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(message.len() / 2 + 64);
    let start = compress.total_in();
    loop {
        let consumed = (compress.total_in() - start) as usize;
        let rest = message.get(consumed..).unwrap_or_default();
        // deflate only fails for a stream that is not set up, which ours is.
        let Ok(_) = compress.compress_vec(rest, &mut out, FlushCompress::Sync) else { break };
        // A flush is complete when it leaves room (zlib manual, `deflate`).
        if out.len() < out.capacity() {
            break;
        }
        out.reserve(STEP);
    }
    match out.strip_suffix(&TAIL) {
        // An empty message is one empty block, of which a single octet remains (RFC 7692 section 7.2.3.6).
        Some([]) | None => out = vec![0],
        Some(body) => out.truncate(body.len()),
    }
    out.into()
}

fn inflate_into(
    inflate: &mut Decompress,
    compressed: &[u8],
    limit: usize,
    may_grow: &mut dyn FnMut(usize) -> bool,
) -> Result<Vec<u8>, ProtocolError> {
    let mut out = Vec::new();
    for piece in [compressed, TAIL.as_slice()] {
        let mut rest = piece;
        loop {
            let had = out.capacity();
            reserve(&mut out, rest.len(), limit);
            if out.capacity() > had && !may_grow(out.capacity()) {
                return Err(ProtocolError::MessageTooBig);
            }
            let (in_before, out_before) = (inflate.total_in(), out.len());
            let status = inflate
                .decompress_vec(rest, &mut out, FlushDecompress::Sync)
                .map_err(|_| ProtocolError::InvalidDeflate)?;
            let consumed = (inflate.total_in() - in_before) as usize;
            rest = rest.get(consumed..).unwrap_or_default();
            if out.len() > limit {
                return Err(ProtocolError::MessageTooBig);
            }
            if status == Status::StreamEnd {
                // A block with BFINAL ends a stream; the message continues with another one (RFC 7692 section 7.2.3.4).
                inflate.reset(false);
            } else if consumed == 0 && out.len() == out_before && !rest.is_empty() {
                return Err(ProtocolError::InvalidDeflate);
            }
            if rest.is_empty() && out.len() < out.capacity() {
                break;
            }
        }
    }
    Ok(out)
}

/// Reserves room for output: never for more than one byte over the limit, which is enough to detect that it is
/// exceeded.
fn reserve(out: &mut Vec<u8>, compressed: usize, limit: usize) {
    if out.len() == out.capacity() {
        let wanted = out.len().max(compressed.saturating_mul(3)).clamp(256, STEP.max(out.len()));
        out.reserve_exact(wanted.min(limit.saturating_add(1).saturating_sub(out.len())).max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DEFAULT: Settings = Settings { level: 6, window_bits: 15 };

    #[test]
    fn rfc_7692_7_2_3_examples() {
        let hello = b"Hello".to_vec();
        assert_eq!(decompress(b"\xf2\x48\xcd\xc9\xc9\x07\x00", 5), Ok(hello.clone()));
        assert_eq!(decompress(b"\x00\x05\x00\xfa\xff\x48\x65\x6c\x6c\x6f\x00", 5), Ok(hello.clone()));
        assert_eq!(decompress(b"\xf3\x48\xcd\xc9\xc9\x07\x00\x00", 5), Ok(hello.clone()), "BFINAL");
        assert_eq!(decompress(b"\xf2\x48\x05\x00\x00\x00\xff\xff\xca\xc9\xc9\x07\x00", 5), Ok(hello.clone()));
        assert_eq!(compress(DEFAULT, b"Hello").as_ref(), b"\xf2\x48\xcd\xc9\xc9\x07\x00");
        assert_eq!(compress(DEFAULT, b"").as_ref(), b"\x00");
        assert_eq!(decompress(b"\x00", 5), Ok(Vec::new()));
        let mut takeover = Inflater::default();
        assert_eq!(takeover.message(b"\xf2\x48\xcd\xc9\xc9\x07\x00", 5), Ok(hello.clone()));
        assert_eq!(takeover.message(b"\xf2\x00\x11\x00\x00", 5), Ok(hello));
    }

    #[test]
    fn a_bomb_is_refused_at_the_limit() {
        let bomb = compress(DEFAULT, &vec![0; 10 << 20]);
        assert!(bomb.len() < 11_000);
        assert_eq!(decompress(&bomb, 1 << 20), Err(ProtocolError::MessageTooBig));
        assert_eq!(decompress(&bomb, 10 << 20).map(|message| message.len()), Ok(10 << 20));
        assert_eq!(decompress(&bomb, (10 << 20) - 1), Err(ProtocolError::MessageTooBig));
        assert_eq!(decompress(&compress(DEFAULT, b"x"), 0), Err(ProtocolError::MessageTooBig));
    }

    #[test]
    fn rubbish_is_refused_and_leaves_no_trace() {
        assert_eq!(decompress(b"\xff\xff\xff", 100), Err(ProtocolError::InvalidDeflate));
        assert_eq!(decompress(&compress(DEFAULT, b"fine"), 100), Ok(b"fine".to_vec()));
        // Refers to what an earlier message would have held.
        assert_eq!(decompress(b"\xf2\x00\x11\x00\x00", 100), Err(ProtocolError::InvalidDeflate));
    }

    fn compressible() -> impl Strategy<Value = Vec<u8>> {
        (prop::collection::vec(any::<u8>(), 0..300), 1..400usize).prop_map(|(seed, times)| seed.repeat(times))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_compressed_comes_back(message in compressible(), level in 0..=9u8, window_bits in 9..=15u8) {
            let compressed = compress(Settings { level, window_bits }, &message);
            prop_assert_eq!(decompress(&compressed, message.len()), Ok(message));
        }

        #[test]
        fn context_takeover_comes_back(messages in prop::collection::vec(compressible(), 1..5), window_bits in 9..=15u8) {
            let mut deflater = Deflater::new(Settings { level: 6, window_bits });
            let mut inflater = Inflater::default();
            for message in messages {
                let compressed = deflater.message(&message);
                prop_assert_eq!(inflater.message(&compressed, message.len()), Ok(message));
            }
        }

        #[test]
        fn any_bytes_stay_within_the_limit(bytes: Vec<u8>, limit in 0..5000usize) {
            if let Ok(message) = decompress(&bytes, limit) {
                prop_assert!(message.len() <= limit && message.capacity() <= limit + 1);
            }
        }
    }
}
