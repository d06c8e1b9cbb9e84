//! LZ4 frames, one after another.

use std::io::{self, BufRead, Read};

use lz4_flex::frame::FrameDecoder;

use super::error::corrupt;

pub(super) struct Lz4<R: BufRead> {
    frames: FrameDecoder<R>,
}

impl<R: BufRead> Lz4<R> {
    pub(super) fn new(source: R) -> Self {
        Self { frames: FrameDecoder::new(source) }
    }

    pub(super) fn source_mut(&mut self) -> &mut R {
        self.frames.get_mut()
    }
}

impl<R: BufRead> Read for Lz4<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            let len = self.frames.read(out).map_err(as_damage)?;
            // 0 is the end of one frame; the next read starts another one, if there is more.
            if len > 0 || out.is_empty() || self.frames.get_mut().fill_buf()?.is_empty() {
                return Ok(len);
            }
        }
    }
}

fn as_damage(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<lz4_flex::frame::Error>());
    match inner {
        Some(damage) => corrupt("lz4", damage),
        None => error,
    }
}
