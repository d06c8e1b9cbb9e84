//! zstd in frames: a NAR cut into pieces of 16 MiB, each compressed on its own and saying its size, so that a client
//! can decompress a large NAR on several cores. The same NAR and level give the same bytes, whoever makes them.

use std::io;

use zstd::stream::raw::{CParameter, Encoder, InBuffer, Operation, OutBuffer};

/// Bytes of the NAR in one frame; the last has what is left.
pub(crate) const FRAME_BYTES: u64 = 16 * 1024 * 1024;
/// Output is taken in pieces of this size: `ZSTD_CStreamOutSize()` rounded up.
const OUT_BYTES: usize = 256 * 1024;

/// Compresses a NAR of a known size, piece by piece.
pub(crate) struct FrameEncoder {
    encoder: Encoder<'static>,
    out: Box<[u8]>,
    /// Bytes of the NAR that are still to come.
    left: u64,
    /// Bytes still to come in this frame.
    frame_left: u64,
}

impl FrameEncoder {
    /// An encoder for `size` bytes in all.
    pub(crate) fn new(level: i32, size: u64) -> io::Result<Self> {
        let mut encoder = Encoder::new(level)?;
        encoder.set_parameter(CParameter::ContentSizeFlag(true))?;
        let mut this = Self { encoder, out: vec![0; OUT_BYTES].into(), left: size, frame_left: 0 };
        this.begin_frame()?;
        Ok(this)
    }

    fn begin_frame(&mut self) -> io::Result<()> {
        self.encoder.reinit()?;
        self.frame_left = self.left.min(FRAME_BYTES);
        self.encoder.set_pledged_src_size(Some(self.frame_left))
    }

    /// Takes the next bytes of the NAR, and appends what can be sent of them.
    ///
    /// # Errors
    /// zstd's own, or more bytes than were announced.
    pub(crate) fn push(&mut self, mut nar: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        if nar.len() as u64 > self.left {
            return Err(io::Error::other("more bytes than the NAR has"));
        }
        while !nar.is_empty() {
            let take = usize::try_from(self.frame_left).unwrap_or(usize::MAX).min(nar.len());
            let (now, rest) = nar.split_at(take);
            self.compress(now, out)?;
            nar = rest;
            self.left -= take as u64;
            self.frame_left -= take as u64;
            if self.frame_left == 0 {
                self.end_frame(out)?;
                if self.left > 0 {
                    self.begin_frame()?;
                }
            }
        }
        Ok(())
    }

    /// Whether all bytes have come.
    pub(crate) fn is_complete(&self) -> bool {
        self.left == 0
    }

    fn compress(&mut self, piece: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let mut input = InBuffer::around(piece);
        while input.pos < piece.len() {
            let mut output = OutBuffer::around(&mut *self.out);
            self.encoder.run(&mut input, &mut output)?;
            out.extend_from_slice(output.as_slice());
        }
        Ok(())
    }

    fn end_frame(&mut self, out: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let mut output = OutBuffer::around(&mut *self.out);
            let left = self.encoder.finish(&mut output, false)?;
            out.extend_from_slice(output.as_slice());
            if left == 0 {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that compress somewhat.
    fn text(length: usize) -> Vec<u8> {
        let mut state = 1_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            b'a' + u8::try_from(state >> 28).unwrap()
        };
        let block: Vec<u8> = (0..70_000).map(|_| next()).collect();
        let mut text = block.repeat(length / block.len() + 1);
        text.truncate(length);
        text
    }

    fn encode(nar: &[u8], piece: usize) -> Vec<u8> {
        let mut encoder = FrameEncoder::new(1, nar.len() as u64).unwrap();
        let mut out = Vec::new();
        nar.chunks(piece).for_each(|piece| encoder.push(piece, &mut out).unwrap());
        assert!(encoder.is_complete());
        out
    }

    #[test]
    fn frames_say_their_sizes_and_hold_the_nar() {
        let frame = usize::try_from(FRAME_BYTES).unwrap();
        for length in [1, 112, frame - 1, frame, frame + 1, 2 * frame + 12345] {
            let nar = text(length);
            let out = encode(&nar, 200_000);
            assert!(zstd::decode_all(&out[..]).unwrap() == nar, "{length}");
            let mut rest = &out[..];
            let mut sizes = Vec::new();
            while !rest.is_empty() {
                sizes.push(zstd::zstd_safe::get_frame_content_size(rest).unwrap().unwrap());
                rest = &rest[zstd::zstd_safe::find_frame_compressed_size(rest).unwrap()..];
            }
            assert_eq!(sizes.iter().sum::<u64>(), length as u64);
            assert!(sizes.iter().rev().skip(1).all(|size| *size == FRAME_BYTES), "{sizes:?}");
        }
    }

    #[test]
    fn the_pieces_do_not_matter() {
        let nar = text(3_000_000);
        assert!(encode(&nar, 1_000) == encode(&nar, 2_999_999));
    }

    #[test]
    fn more_than_announced_is_refused() {
        let mut encoder = FrameEncoder::new(1, 3).unwrap();
        assert!(encoder.push(b"four", &mut Vec::new()).is_err());
        assert!(!encoder.is_complete());
    }
}
