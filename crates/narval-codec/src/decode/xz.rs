//! xz (and lzma, lzip) by liblzma 5.8.
//!
//! The CRC of each block is not checked: every NAR's SHA-256 covers the same bytes and more.

use std::io::{self, BufRead, Read};

use liblzma::stream::{Action, CONCATENATED, Error, IGNORE_CHECK, MtStreamBuilder, Status, Stream};

use super::error::{corrupt, truncated};
use super::memory::{PARALLEL_MEMORY_MAX, Window, XZ_MEMORY_MAX};

/// Offset of the first block's flags: after the stream header (12 bytes) and the block header's size byte.
const BLOCK_FLAGS_AT: usize = 13;
/// The block header contains both of its sizes, which only encoders of several blocks write (xz file format 3.1.2).
const SIZES_PRESENT: u8 = 0xc0;

/// What is reserved for decoders. Dictionaries have 2^n or 2^n + 2^(n-1) bytes (xz file format 5.3.1), and the rest takes less than 1 MiB.
fn memory_steps() -> impl Iterator<Item = u64> {
    let sizes = (20..27).flat_map(|log| [1 << log, 3 << (log - 1)]);
    sizes.map(|dictionary: u64| dictionary + (1 << 20)).chain([XZ_MEMORY_MAX])
}

/// One of liblzma's formats.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Xz,
    Lzma,
    Lzip,
}

impl Format {
    const fn name(self) -> &'static str {
        match self {
            Self::Xz => "xz",
            Self::Lzma => "lzma",
            Self::Lzip => "lzip",
        }
    }
}

pub(super) struct Xz<R> {
    source: R,
    format: Format,
    threads: usize,
    /// Created at the first read, which detects the type of file.
    stream: Option<Stream>,
    done: bool,
    /// Where memory is reserved before the decoder allocates it.
    window: Option<Window>,
}

impl<R: BufRead> Xz<R> {
    pub(super) const fn new(source: R, format: Format, threads: usize) -> Self {
        Self { source, format, threads, stream: None, done: false, window: None }
    }

    pub(super) const fn source_mut(&mut self) -> &mut R {
        &mut self.source
    }

    pub(super) fn reserve_in(&mut self, window: Window) {
        self.window = Some(window);
    }

    fn start(&mut self) -> io::Result<Stream> {
        let head = self.source.fill_buf()?;
        let sizes = head.get(BLOCK_FLAGS_AT).is_some_and(|flags| flags & SIZES_PRESENT == SIZES_PRESENT);
        // With the least limit, the decoder stops at each header that asks for more.
        let memory_max = if self.window.is_some() { 1 } else { XZ_MEMORY_MAX };
        let made = match self.format {
            // The parallel decoder only supports one stream per file, which is what encoders of several blocks write;
            // `read` starts a second stream.
            Format::Xz if self.threads > 1 && sizes => MtStreamBuilder::new()
                // If the memory limit is too low for that, liblzma uses fewer threads.
                .threads(u32::try_from(self.threads).unwrap_or(1))
                .memlimit_threading(PARALLEL_MEMORY_MAX)
                .memlimit_stop(XZ_MEMORY_MAX.max(PARALLEL_MEMORY_MAX))
                .decoder(),
            Format::Xz => Stream::new_stream_decoder(memory_max, CONCATENATED | IGNORE_CHECK),
            Format::Lzma => Stream::new_lzma_decoder(memory_max),
            Format::Lzip => Stream::new_lzip_decoder(memory_max, CONCATENATED),
        };
        made.map_err(|error| io::Error::other(format!("the {} decoder cannot start: {error}", self.format.name())))
    }
}

impl<R: BufRead> Read for Xz<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.done || out.is_empty() {
            return Ok(0);
        }
        let name = self.format.name();
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.start()?,
        };
        let mut filled = 0;
        while filled < out.len() {
            let input = self.source.fill_buf()?;
            let at_end = input.is_empty();
            let action = if at_end { Action::Finish } else { Action::Run };
            let (before_in, before_out) = (stream.total_in(), stream.total_out());
            let status = stream.process(input, out.get_mut(filled..).unwrap_or_default(), action);
            let taken = usize::try_from(stream.total_in() - before_in).unwrap_or(0);
            let made = usize::try_from(stream.total_out() - before_out).unwrap_or(0);
            self.source.consume(taken);
            filled += made;
            if let (Err(Error::MemLimit), Some(window)) = (&status, &mut self.window)
                // A step that is less than what the header asks for is refused.
                && let Some(bytes) = memory_steps().find(|bytes| stream.set_memlimit(*bytes).is_ok())
            {
                // Nothing is allocated before the next call.
                window.grow_to(bytes)?;
                continue;
            }
            if status.map_err(|error| corrupt(name, error))? == Status::StreamEnd {
                self.done = self.format != Format::Xz || self.source.fill_buf()?.is_empty();
                if !self.done {
                    stream = self.start()?;
                    continue;
                }
                break;
            }
            // No progress and no end: input is missing.
            if at_end && taken == 0 && made == 0 {
                return if filled == 0 { Err(truncated(name)) } else { self.keep(stream, filled) };
            }
        }
        self.keep(stream, filled)
    }
}

impl<R> Xz<R> {
    fn keep(&mut self, stream: Stream, filled: usize) -> io::Result<usize> {
        self.stream = Some(stream);
        Ok(filled)
    }
}
