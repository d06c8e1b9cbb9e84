use std::io;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use super::encoder::Encoder;
use crate::http1::accept::Coding;
use crate::message::body::Body;
use crate::message::body::produced::{Produced, Rest};
use crate::message::body::source::{BodySource, BodyWaker, Fill, SegmentBuf};

/// Bytes that are compressed at a time.
const READ: usize = 64 * 1024;

/// A body that is compressed as the client reads it. Every piece can be decompressed at once, so the client sees what
/// the handler streams.
pub(super) struct CompressedSource {
    coding: Coding,
    /// `None` before the first piece, and after the last.
    encoder: Option<Encoder>,
    body: Produced,
}

impl CompressedSource {
    pub(super) fn new(coding: Coding, body: Body) -> Self {
        Self { coding, encoder: None, body: Produced::new(body) }
    }
}

impl BodySource for CompressedSource {
    fn fill(&mut self, out: &mut SegmentBuf) -> io::Result<Fill> {
        let mut encoder = match self.encoder.take() {
            Some(encoder) => encoder,
            None => Encoder::new(self.coding)?,
        };
        let mut input = vec![0; READ];
        // One quantum of input produces about as much output at most, and takes a few milliseconds.
        let (mut left, mut has_asked) = (SegmentBuf::QUANTUM, false);
        self.body.resume();
        let fill = loop {
            let most = input.len().min(left);
            let taken =
                if self.body.ready() > 0 { self.body.take(input.get_mut(..most).unwrap_or_default())? } else { 0 };
            if taken > 0 {
                encoder.write(input.get(..taken).unwrap_or_default())?;
                left -= taken;
            }
            match self.body.rest() {
                _ if left == 0 => break Fill::More,
                _ if taken > 0 => {}
                Rest::End { .. } => {
                    out.memory().append(&mut encoder.finish()?);
                    return Ok(Fill::Done);
                }
                Rest::Waiting => break Fill::Wait,
                // What a source has made is sent before it makes more.
                _ if has_asked => break Fill::More,
                Rest::Here | Rest::Worker | Rest::Making => {
                    self.body.make(left)?;
                    has_asked = true;
                }
            }
        };
        encoder.flush_into(out.memory())?;
        self.encoder = Some(encoder);
        Ok(fill)
    }

    fn wait(&mut self, waker: BodyWaker) -> Duration {
        self.body.wait(waker)
    }

    fn hang_up(&mut self) -> bool {
        self.body.hang_up()
    }

    fn trailers(&mut self) -> Vec<(HeaderName, HeaderValue)> {
        self.body.trailers()
    }
}
