//! Content codings: of metadata, which caches store compressed (Nix 2.32 `narinfo-compression`), and of NARs from servers
//! that send one nobody asked for.

use std::io::{self, BufRead, BufReader, Read};

use narval_nix::Compression;

use super::HttpError;
use super::head::Head;
use crate::decode::{Decoder, INPUT_LEN};

/// What is asked for with metadata.
pub(crate) const ACCEPT_ENCODING: &str = "zstd, br, gzip";

/// The most codings on one answer.
const CODINGS_MAX: usize = 4;

/// A content coding (RFC 9110 section 8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    /// One that NARs have as well.
    Compression(Compression),
    /// zlib; some servers mean the bare deflate stream.
    Deflate,
}

/// The codings of an answer, in the order in which they were applied. Names are compared without regard to case, and
/// `identity`, which is none, is sometimes spelt `none`.
pub(super) fn codings(head: &Head) -> Result<Vec<Coding>, HttpError> {
    let mut all = Vec::new();
    for name in head.list("content-encoding") {
        all.push(match name.to_ascii_lowercase().as_str() {
            "" | "identity" | "none" => continue,
            "zstd" => Coding::Compression(Compression::Zstd),
            "br" => Coding::Compression(Compression::Brotli),
            "gzip" | "x-gzip" => Coding::Compression(Compression::Gzip),
            "xz" => Coding::Compression(Compression::Xz),
            "bzip2" => Coding::Compression(Compression::Bzip2),
            "compress" | "x-compress" => Coding::Compression(Compression::Compress),
            "deflate" => Coding::Deflate,
            other => return Err(HttpError::Coding(format!("unknown coding '{other}'"))),
        });
        if all.len() > CODINGS_MAX {
            return Err(HttpError::Coding(format!("more than {CODINGS_MAX} of them")));
        }
    }
    Ok(all)
}

/// Undoes codings while the bytes are read.
pub(super) fn reader<'a>(
    source: impl Read + Send + 'a,
    codings: &[Coding],
) -> Result<Box<dyn Read + Send + 'a>, HttpError> {
    let mut reader: Box<dyn Read + Send + 'a> = Box::new(source);
    for coding in codings.iter().rev() {
        let source = BufReader::with_capacity(INPUT_LEN, reader);
        reader = match coding {
            Coding::Compression(compression) => {
                let decoder = Decoder::new(compression, source, 1);
                Box::new(decoder.map_err(|error| HttpError::Coding(error.to_string()))?)
            }
            Coding::Deflate => Box::new(Deflate::Unknown(Some(source))),
        };
    }
    Ok(reader)
}

/// Undoes the codings of a whole answer, up to `limit` bytes.
pub(super) fn decoded(bytes: Vec<u8>, codings: &[Coding], limit: u64) -> Result<Vec<u8>, HttpError> {
    if codings.is_empty() {
        return Ok(bytes);
    }
    let mut out = Vec::new();
    let mut reader = reader(io::Cursor::new(bytes), codings)?.take(limit.saturating_add(1));
    reader.read_to_end(&mut out).map_err(|error| HttpError::Coding(error.to_string()))?;
    if out.len() as u64 > limit { Err(HttpError::TooLarge { limit }) } else { Ok(out) }
}

/// A `deflate` coding, with the head of zlib or without.
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
            // RFC 1950 section 2.2: the method is 8, and the first two bytes are a multiple of 31. One byte decides where no
            // more have come: a bare stream begins so only with a block type that does not exist.
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
