//! The content codings of caches, using the decoders for NARs.

use std::io::{self, BufRead, Read};

use narval_nix::Compression;

use crate::decode::Decoder;
use narval_client::Codings;

/// The codings of binary caches: `zstd`, `br` and `gzip` are accepted.
pub const CODINGS: Codings = Codings { accepted: "zstd, br, gzip", decoder };

/// The compression that a content coding is, by its name in lower case.
pub fn of_coding(name: &str) -> Option<Compression> {
    Some(match name {
        "zstd" => Compression::Zstd,
        "br" => Compression::Brotli,
        "gzip" | "x-gzip" => Compression::Gzip,
        "xz" => Compression::Xz,
        "bzip2" => Compression::Bzip2,
        "compress" | "x-compress" => Compression::Compress,
        _ => return None,
    })
}

fn decoder(name: &str, source: Box<dyn BufRead + Send>) -> Option<io::Result<Box<dyn Read + Send>>> {
    if name == "deflate" {
        return Some(Ok(Box::new(Deflate::Unknown(Some(source)))));
    }
    let decoder = Decoder::new(&of_coding(name)?, source, 1);
    Some(decoder.map(|decoder| Box::new(decoder) as Box<dyn Read + Send>).map_err(io::Error::other))
}

/// A `deflate` coding, with the zlib header or, as some servers send it, without.
enum Deflate<R> {
    Unknown(Option<R>),
    Zlib(flate2::bufread::ZlibDecoder<R>),
    Bare(flate2::bufread::DeflateDecoder<R>),
}

impl<R: BufRead> Read for Deflate<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if let Self::Unknown(source) = self
            && let Some(mut source) = source.take()
        {
            // RFC 1950 section 2.2: the method is 8, and the first two bytes are a multiple of 31. If only one byte has
            // arrived, it is enough: as the first byte of a bare stream, it would be an invalid block type.
            let zlib = match source.fill_buf()? {
                [first, second, ..] => first & 0x0f == 8 && u16::from_be_bytes([*first, *second]) % 31 == 0,
                [first] => first & 0x0f == 8,
                [] => true,
            };
            *self = if zlib {
                Self::Zlib(flate2::bufread::ZlibDecoder::new(source))
            } else {
                Self::Bare(flate2::bufread::DeflateDecoder::new(source))
            };
        }
        match self {
            Self::Unknown(_) => Ok(0),
            Self::Zlib(decoder) => decoder.read(out),
            Self::Bare(decoder) => decoder.read(out),
        }
    }
}
