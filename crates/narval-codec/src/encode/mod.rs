//! Encoders for NARs: uncompressed, or zstd in frames that a client can decompress on several cores.

mod delta;
mod entry;
mod frames;

use std::io::{self, Read};

use narval_nix::{Compression, NarHash, Sha256Hasher};

pub use delta::{DELTA_FORMAT, is_delta_of, make_delta, make_smallest_delta};
pub use entry::write_nar;
pub use frames::{EncodeError, FRAMES_AT_ONCE_MAX, FRAMES_FORMAT, FrameEncoder, Sink};

/// Size of the buffer for uncompressed NARs.
const BUFFER_LEN: usize = 256 * 1024;

/// How a NAR is written to a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Uncompressed.
    None,
    /// zstd in frames, at this level (1 to 22).
    Zstd(i32),
}

impl Encoding {
    /// The `Compression` of the narinfo.
    pub const fn compression(self) -> Compression {
        match self {
            Self::None => Compression::None,
            Self::Zstd(_) => Compression::Zstd,
        }
    }

    /// Reads the NAR of this size (in bytes) and hash, and passes the file to the sink.
    ///
    /// # Errors
    /// See [`EncodeError`].
    pub fn encode(self, nar: &mut impl Read, size: u64, expected: NarHash, sink: Sink<'_>) -> Result<(), EncodeError> {
        match self {
            Self::None => copy(nar, size, expected, sink),
            Self::Zstd(level) => {
                let encoder = FrameEncoder::new(level, size, expected, FRAMES_AT_ONCE_MAX);
                let mut encoder = encoder.map_err(EncodeError::Nar)?;
                while !encoder.is_complete() {
                    encoder.advance(nar, sink)?;
                }
                Ok(())
            }
        }
    }
}

fn copy(nar: &mut impl Read, size: u64, expected: NarHash, sink: Sink<'_>) -> Result<(), EncodeError> {
    let (mut hasher, mut buffer, mut left) = (Sha256Hasher::new(), vec![0; BUFFER_LEN], size);
    while left > 0 {
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(BUFFER_LEN);
        let piece = buffer.get_mut(..len).unwrap_or_default();
        nar.read_exact(piece).map_err(EncodeError::Nar)?;
        hasher.update(piece);
        left -= len as u64;
        if left == 0 && hasher.clone().finish() != expected {
            return Err(EncodeError::Corrupt);
        }
        sink(piece).map_err(EncodeError::Sink)?;
    }
    Ok(())
}

impl From<EncodeError> for io::Error {
    fn from(error: EncodeError) -> Self {
        match error {
            EncodeError::Nar(error) | EncodeError::Sink(error) => error,
            EncodeError::Corrupt => Self::new(io::ErrorKind::InvalidData, "the NAR does not have the expected hash"),
        }
    }
}
