use std::io::{self, Write};

use flate2::write::{GzEncoder, ZlibEncoder};

use crate::http1::accept::Coding;

/// Levels for compressing while the client waits: above them, more time saves few bytes.
const ZSTD_LEVEL: i32 = 3;
const DEFLATE_LEVEL: u32 = 5;
#[cfg(feature = "brotli")]
const BROTLI_LEVEL: u32 = 4;
/// Log2 of brotli's window in bytes.
#[cfg(feature = "brotli")]
const BROTLI_WINDOW: u32 = 19;

/// A streaming compressor that collects its output in memory.
pub(super) enum Encoder {
    Zstd(Box<zstd::stream::write::Encoder<'static, Vec<u8>>>),
    Gzip(GzEncoder<Vec<u8>>),
    Deflate(ZlibEncoder<Vec<u8>>),
    #[cfg(feature = "brotli")]
    Brotli(Box<brotli::CompressorWriter<Vec<u8>>>),
}

impl Encoder {
    /// Whether there is an encoder for `coding`.
    pub(super) fn is_available(coding: Coding) -> bool {
        match coding {
            Coding::Zstd | Coding::Gzip | Coding::Deflate => true,
            Coding::Brotli => cfg!(feature = "brotli"),
            Coding::Dcz | Coding::Identity => false,
        }
    }

    pub(super) fn new(coding: Coding) -> io::Result<Self> {
        let level = flate2::Compression::new(DEFLATE_LEVEL);
        Ok(match coding {
            Coding::Zstd => Self::Zstd(Box::new(zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL)?)),
            Coding::Gzip => Self::Gzip(GzEncoder::new(Vec::new(), level)),
            Coding::Deflate => Self::Deflate(ZlibEncoder::new(Vec::new(), level)),
            #[cfg(feature = "brotli")]
            Coding::Brotli => {
                let writer = brotli::CompressorWriter::new(Vec::new(), 16 * 1024, BROTLI_LEVEL, BROTLI_WINDOW);
                Self::Brotli(Box::new(writer))
            }
            #[cfg(not(feature = "brotli"))]
            Coding::Brotli => return Err(io::ErrorKind::Unsupported.into()),
            Coding::Dcz | Coding::Identity => return Err(io::ErrorKind::Unsupported.into()),
        })
    }

    /// Compresses all of `bytes`.
    pub(super) fn encode(coding: Coding, bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut encoder = Self::new(coding)?;
        encoder.write(bytes)?;
        encoder.finish()
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer().write_all(bytes)
    }

    /// Moves the output so far to `out`, such that the client can decompress everything written.
    pub(super) fn flush_into(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        self.writer().flush()?;
        out.append(match self {
            Self::Zstd(encoder) => encoder.get_mut(),
            Self::Gzip(encoder) => encoder.get_mut(),
            Self::Deflate(encoder) => encoder.get_mut(),
            #[cfg(feature = "brotli")]
            Self::Brotli(encoder) => encoder.get_mut(),
        });
        Ok(())
    }

    /// Ends the output, and returns the rest of it.
    pub(super) fn finish(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Zstd(encoder) => encoder.finish(),
            Self::Gzip(encoder) => encoder.finish(),
            Self::Deflate(encoder) => encoder.finish(),
            #[cfg(feature = "brotli")]
            Self::Brotli(encoder) => Ok(encoder.into_inner()),
        }
    }

    fn writer(&mut self) -> &mut dyn Write {
        match self {
            Self::Zstd(encoder) => encoder,
            Self::Gzip(encoder) => encoder,
            Self::Deflate(encoder) => encoder,
            #[cfg(feature = "brotli")]
            Self::Brotli(encoder) => encoder,
        }
    }
}
