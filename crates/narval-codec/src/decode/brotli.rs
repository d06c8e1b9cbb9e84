//! Brotli.

use std::io::{self, BufRead, Read};

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};

use super::error::{corrupt, truncated};

type State = BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>;

pub(super) struct Brotli<R> {
    source: R,
    state: State,
    done: bool,
}

impl<R: BufRead> Brotli<R> {
    pub(super) fn new(source: R) -> Self {
        let state = BrotliState::new(StandardAlloc::default(), StandardAlloc::default(), StandardAlloc::default());
        Self { source, state, done: false }
    }

    pub(super) const fn source_mut(&mut self) -> &mut R {
        &mut self.source
    }
}

impl<R: BufRead> Read for Brotli<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.done || out.is_empty() {
            return Ok(0);
        }
        let (mut room, mut filled, mut total) = (out.len(), 0, 0);
        loop {
            let input = self.source.fill_buf()?;
            let at_end = input.is_empty();
            let (mut left, mut taken) = (input.len(), 0);
            let result = BrotliDecompressStream(
                &mut left,
                &mut taken,
                input,
                &mut room,
                &mut filled,
                out,
                &mut total,
                &mut self.state,
            );
            self.source.consume(taken);
            match result {
                BrotliResult::ResultSuccess => {
                    self.done = true;
                    return Ok(filled);
                }
                BrotliResult::ResultFailure => return Err(corrupt("brotli", "not a valid stream")),
                BrotliResult::NeedsMoreOutput => return Ok(filled),
                BrotliResult::NeedsMoreInput if at_end => return Err(truncated("brotli")),
                BrotliResult::NeedsMoreInput => {}
            }
        }
    }
}
