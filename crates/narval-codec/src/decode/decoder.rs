//! The decoder of any compression.

use std::io::{self, BufRead, Read};

use narval_nix::Compression;

use super::error::DecodeError;
use super::memory::{NoWindow, Window};
use super::{brotli, compress, lz4, xz, zstd};

/// What bzip2, brotli and lz4 decoders need at most; those of gzip and compress need less than their buffers.
const BZIP2_MEMORY: u64 = 4 * 1024 * 1024;
const BROTLI_MEMORY: u64 = 18 * 1024 * 1024;
const LZ4_MEMORY: u64 = 9 * 1024 * 1024;

/// A decoder reading from `R`.
pub struct Decoder<R: BufRead>(Kind<R>, Option<Window>);

enum Kind<R: BufRead> {
    None(R),
    Xz(xz::Xz<R>),
    Zstd(zstd::Zstd<R>),
    Bzip2(Box<bzip2::bufread::MultiBzDecoder<R>>),
    Gzip(Box<flate2::bufread::MultiGzDecoder<R>>),
    Brotli(Box<brotli::Brotli<R>>),
    Lz4(Box<lz4::Lz4<R>>),
    Compress(Box<compress::Compress<R>>),
}

impl<R: BufRead> Decoder<R> {
    /// A decoder for `compression`. With more than one thread, xz files of several blocks and zstd files of several frames
    /// are decoded in parallel.
    ///
    /// ```
    /// use std::io::Read;
    /// use narval_codec::decode::Decoder;
    /// let mut decoder = Decoder::new(&narval_nix::Compression::None, &b"as it is"[..], 1).unwrap();
    /// let mut text = String::new();
    /// decoder.read_to_string(&mut text).unwrap();
    /// assert_eq!(text, "as it is");
    /// ```
    pub fn new(compression: &Compression, source: R, threads: usize) -> Result<Self, DecodeError> {
        let kind = match compression {
            Compression::None => Kind::None(source),
            Compression::Xz => Kind::Xz(xz::Xz::new(source, xz::Format::Xz, threads)),
            Compression::Lzma => Kind::Xz(xz::Xz::new(source, xz::Format::Lzma, 1)),
            Compression::Lzip => Kind::Xz(xz::Xz::new(source, xz::Format::Lzip, 1)),
            Compression::Zstd => Kind::Zstd(zstd::Zstd::new(source, threads)?),
            Compression::Bzip2 => Kind::Bzip2(Box::new(bzip2::bufread::MultiBzDecoder::new(source))),
            Compression::Gzip => Kind::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(source))),
            Compression::Brotli => Kind::Brotli(Box::new(brotli::Brotli::new(source))),
            Compression::Lz4 => Kind::Lz4(Box::new(lz4::Lz4::new(source))),
            Compression::Compress => Kind::Compress(Box::new(compress::Compress::new(source))),
            other => return Err(DecodeError::Unsupported(*other)),
        };
        Ok(Self(kind, None))
    }

    /// A decoder for an upload, which anybody may have made: as [`with_window`](Self::with_window), and skippable zstd frames are refused.
    ///
    /// # Errors
    /// See [`with_window`](Self::with_window).
    pub fn of_upload(compression: &Compression, source: R, window: Window) -> Result<Self, DecodeError> {
        Self::reserving(compression, source, window, true)
    }

    /// A decoder that reserves its memory before it allocates it. Reading fails with [`NoWindow`] if there is none at the moment.
    ///
    /// # Errors
    /// As [`new`](Self::new), and if there is no memory.
    pub fn with_window(compression: &Compression, source: R, window: Window) -> Result<Self, DecodeError> {
        Self::reserving(compression, source, window, false)
    }

    fn reserving(
        compression: &Compression,
        source: R,
        mut window: Window,
        is_strict: bool,
    ) -> Result<Self, DecodeError> {
        let bytes = match compression {
            Compression::Bzip2 => BZIP2_MEMORY,
            Compression::Brotli => BROTLI_MEMORY,
            Compression::Lz4 => LZ4_MEMORY,
            _ => 0,
        };
        window.grow_to(bytes).map_err(|_| NoWindow)?;
        let mut decoder = Self::new(compression, source, 1)?;
        match &mut decoder.0 {
            Kind::Xz(xz) => xz.reserve_in(window),
            Kind::Zstd(zstd) => zstd.reserve_in(window, is_strict),
            _ => decoder.1 = Some(window),
        }
        Ok(decoder)
    }

    /// The source, at the position where the decoder stopped.
    pub fn source_mut(&mut self) -> &mut R {
        match &mut self.0 {
            Kind::None(source) => source,
            Kind::Xz(decoder) => decoder.source_mut(),
            Kind::Zstd(decoder) => decoder.source_mut(),
            Kind::Bzip2(decoder) => decoder.get_mut(),
            Kind::Gzip(decoder) => decoder.get_mut(),
            Kind::Brotli(decoder) => decoder.source_mut(),
            Kind::Lz4(decoder) => decoder.source_mut(),
            Kind::Compress(decoder) => decoder.source_mut(),
        }
    }
}

impl<R: BufRead> Read for Decoder<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Kind::None(source) => source.read(out),
            Kind::Xz(decoder) => decoder.read(out),
            Kind::Zstd(decoder) => decoder.read(out),
            Kind::Bzip2(decoder) => decoder.read(out),
            Kind::Gzip(decoder) => decoder.read(out),
            Kind::Brotli(decoder) => decoder.read(out),
            Kind::Lz4(decoder) => decoder.read(out),
            Kind::Compress(decoder) => decoder.read(out),
        }
    }
}
