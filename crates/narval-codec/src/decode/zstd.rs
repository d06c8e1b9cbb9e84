//! Zstandard by libzstd: any number of frames, including skippable ones; on several threads if the frames allow it.

use std::io::{self, BufRead, Read};

use zstd_safe::{DCtx, InBuffer, OutBuffer, get_error_name};

use super::error::{DecodeError, corrupt, truncated};
use super::memory::Window;
use super::zstd_context::{WINDOW_LOG_MAX, context};
use super::zstd_frames::{HEADER_LEN_MAX, Next, Pool, SKIPPABLE_MAGIC, collect, little_endian, take, window_len};

/// What a decoder needs besides the window: its tables and buffers.
const CONTEXT_BYTES: u64 = 512 * 1024;

pub(super) struct Zstd<R> {
    source: R,
    context: DCtx<'static>,
    /// Whether a frame is incomplete.
    in_frame: bool,
    /// Bytes taken from the source, and how many of them are decoded.
    taken: (Vec<u8>, usize),
    /// Contents decoded by a thread, and how many bytes of them were returned.
    contents: (Vec<u8>, usize),
    pool: Option<Pool>,
    /// Where memory is reserved before the decoder allocates it.
    window: Option<Window>,
    /// Whether skippable frames are refused.
    is_strict: bool,
}

impl<R: BufRead> Zstd<R> {
    pub(super) fn new(source: R, threads: usize) -> Result<Self, DecodeError> {
        let pool = if threads > 1 { Some(Pool::start(threads)?) } else { None };
        Ok(Self { pool, ..Self::with_context(source, context()?) })
    }

    /// A decoder on one thread with this context.
    pub(super) fn with_context(source: R, context: DCtx<'static>) -> Self {
        let (taken, contents) = ((Vec::new(), 0), (Vec::new(), 0));
        Self { source, context, in_frame: false, taken, contents, pool: None, window: None, is_strict: false }
    }

    pub(super) fn reserve_in(&mut self, window: Window, is_strict: bool) {
        (self.window, self.is_strict) = (Some(window), is_strict);
    }

    /// Reads the header of the next frame, and reserves memory for its window.
    fn begin_frame(&mut self) -> io::Result<()> {
        let Some(window) = &mut self.window else { return Ok(()) };
        let mut head = self.taken.0.split_off(self.taken.1);
        let missing = HEADER_LEN_MAX.saturating_sub(head.len());
        take(&mut self.source, &mut head, missing)?;
        if self.is_strict && little_endian(&head, 0, 4) & 0xFFFF_FFF0 == u64::from(SKIPPABLE_MAGIC) {
            // They would be kept and sent, and are no part of the contents.
            return Err(io::Error::new(io::ErrorKind::InvalidData, "skippable frames are not accepted"));
        }
        // The decoder refuses larger ones.
        let len = window_len(&head).min(1 << WINDOW_LOG_MAX);
        self.taken = (head, 0);
        window.grow_to(len + CONTEXT_BYTES)
    }

    pub(super) const fn source_mut(&mut self) -> &mut R {
        &mut self.source
    }

    /// Keeps the threads busy, and waits for the oldest frame. Returns `false` at the end of the file, or if the next
    /// frame must be decoded as a stream.
    fn next_contents(&mut self) -> io::Result<bool> {
        let Some(pool) = &mut self.pool else { return Ok(false) };
        while pool.has_room() && self.taken.0.is_empty() {
            match collect(&mut self.source)? {
                Next::Frame(frame, contents_len) => pool.give(frame, contents_len)?,
                Next::Start(start) => self.taken = (start, 0),
                Next::End => break,
            }
        }
        match pool.next()? {
            Some(contents) => self.contents = (contents, 0),
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Decodes on this thread; with a pool, until the frame ends.
    fn stream(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < out.len() {
            if !self.in_frame {
                self.begin_frame()?;
            }
            let from_taken = self.taken.1 < self.taken.0.len();
            let source = if from_taken {
                self.taken.0.get(self.taken.1..).unwrap_or_default()
            } else {
                self.source.fill_buf()?
            };
            let at_end = source.is_empty();
            if at_end && !self.in_frame {
                break;
            }
            let mut input = InBuffer::around(source);
            let mut output = OutBuffer::around_pos(out, filled);
            let hint = self.context.decompress_stream(&mut output, &mut input);
            let hint = hint.map_err(|code| corrupt("zstd", get_error_name(code)))?;
            let (taken, made) = (input.pos(), output.pos() - filled);
            filled += made;
            if from_taken {
                self.taken.1 += taken;
            } else {
                self.source.consume(taken);
            }
            self.in_frame = hint != 0;
            if self.taken.1 == self.taken.0.len() {
                self.taken = (Vec::new(), 0);
                if !self.in_frame && self.pool.is_some() {
                    break;
                }
            }
            if at_end && made == 0 && self.in_frame {
                return if filled == 0 { Err(truncated("zstd")) } else { Ok(filled) };
            }
        }
        Ok(filled)
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let (contents, given) = &mut self.contents;
            let rest = contents.get(*given..).unwrap_or_default();
            if !rest.is_empty() {
                let len = rest.len().min(out.len());
                if let (Some(to), Some(from)) = (out.get_mut(..len), rest.get(..len)) {
                    to.copy_from_slice(from);
                }
                *given += len;
                return Ok(len);
            }
            if out.is_empty() {
                return Ok(0);
            }
            if !self.in_frame && self.next_contents()? {
                continue;
            }
            let something_came = self.in_frame || !self.taken.0.is_empty();
            let made = self.stream(out)?;
            // An empty or skipped frame, or a frame's checksum, has no bytes, but is not the end.
            if made > 0 || !something_came || self.pool.is_none() {
                return Ok(made);
            }
        }
    }
}
