use std::collections::VecDeque;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderName, HeaderValue};

use super::encoder::Encoder;
use crate::http1::accept::Coding;
use crate::{BodySource, BodyWaker, FileRange, Fill, SegmentBuf};

/// Bytes of a file that are read at a time.
const READ: usize = 64 * 1024;

/// A body that is compressed as the client reads it. Every piece can be decompressed at once, so the client sees what
/// the handler streams.
pub(super) struct CompressedSource {
    coding: Coding,
    /// `None` before the first piece, and after the last.
    encoder: Option<Encoder>,
    /// Input that is not compressed yet.
    pieces: VecDeque<Piece>,
    /// `None` at its end.
    source: Option<Box<dyn BodySource>>,
    /// Its last answer was [`Fill::Wait`].
    waits: bool,
    /// Its trailer fields.
    trailers: Vec<(HeaderName, HeaderValue)>,
}

/// A piece of input.
pub(super) enum Piece {
    Memory(Bytes),
    File(FileRange),
}

impl CompressedSource {
    pub(super) fn of_piece(coding: Coding, piece: Piece) -> Self {
        Self { coding, encoder: None, pieces: [piece].into(), source: None, waits: false, trailers: Vec::new() }
    }

    pub(super) fn of_source(coding: Coding, source: Box<dyn BodySource>) -> Self {
        let source = Some(source);
        Self { coding, encoder: None, pieces: VecDeque::new(), source, waits: false, trailers: Vec::new() }
    }

    /// Compresses up to `budget` bytes of the first piece; returns how many.
    fn compress_some(&mut self, encoder: &mut Encoder, budget: usize) -> io::Result<usize> {
        let Some(piece) = self.pieces.front_mut() else {
            return Ok(0);
        };
        let (done, left) = match piece {
            Piece::Memory(bytes) => {
                let taken = bytes.len().min(budget);
                encoder.write(bytes.get(..taken).unwrap_or_default())?;
                bytes.advance(taken);
                (taken, bytes.len() as u64)
            }
            Piece::File(range) => {
                let mut buffer = vec![0; READ.min(budget).min(usize::try_from(range.length).unwrap_or(READ))];
                range.file.read_exact_at(&mut buffer, range.offset)?;
                encoder.write(&buffer)?;
                range.offset += buffer.len() as u64;
                range.length -= buffer.len() as u64;
                (buffer.len(), range.length)
            }
        };
        if left == 0 {
            self.pieces.pop_front();
        }
        Ok(done)
    }

    /// Gets the next piece from the source. Called when everything before it is compressed.
    fn ask(&mut self) -> io::Result<()> {
        let Some(source) = &mut self.source else { return Ok(()) };
        let mut made = SegmentBuf::default();
        let fill = source.fill(&mut made)?;
        self.waits = fill == Fill::Wait;
        if fill == Fill::Done {
            self.trailers = source.trailers();
            self.source = None;
        }
        let mut memory = Bytes::from(made.memory);
        let mut at = 0;
        for (position, range) in made.files {
            self.pieces.push_back(Piece::Memory(memory.split_to((position - at).min(memory.len()))));
            self.pieces.push_back(Piece::File(range));
            at = position;
        }
        self.pieces.push_back(Piece::Memory(memory));
        Ok(())
    }
}

impl BodySource for CompressedSource {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let mut encoder = match self.encoder.take() {
            Some(encoder) => encoder,
            None => Encoder::new(self.coding)?,
        };
        // One quantum of input produces about as much output at most, and takes a few milliseconds.
        let mut budget = SegmentBuf::QUANTUM;
        if self.pieces.is_empty() {
            self.ask()?;
        }
        while budget > 0 && !self.pieces.is_empty() {
            budget -= self.compress_some(&mut encoder, budget)?;
        }
        if self.pieces.is_empty() && self.source.is_none() {
            out.memory().append(&mut encoder.finish()?);
            return Ok(Fill::Done);
        }
        encoder.flush_into(out.memory())?;
        self.encoder = Some(encoder);
        Ok(if self.waits && self.pieces.is_empty() { Fill::Wait } else { Fill::More })
    }

    fn wait(&mut self, waker: BodyWaker) -> Duration {
        self.source.as_mut().map_or(Duration::ZERO, |source| source.wait(waker))
    }

    fn hang_up(&mut self) -> bool {
        self.source.as_mut().is_some_and(|source| source.hang_up())
    }

    fn trailers(&mut self) -> Vec<(HeaderName, HeaderValue)> {
        std::mem::take(&mut self.trailers)
    }
}
